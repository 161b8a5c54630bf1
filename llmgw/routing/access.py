"""Who a client is, by what it presents, and what it may ask for; and how often somebody may be wrong about that. Pure.

A credential is hashed to be looked at. Whoever remembers that one was right has to forget it with the swap of the `Access`,
lest a key that is revoked lives on, and to look at when it expires.

Being wrong is limited by address, and being right is not: a right key passes from an address that was wrong a thousand times,
since behind one address there may be a whole company whose one forgotten script must not lock out the others. Guessing is
hopeless anyway; what is limited is what failing costs here.
"""

import hmac
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv6Address, ip_address
from math import ceil

from llmgw.base.time import Instant
from llmgw.fleet.access import Access, KnownKey, hash_of, taken_apart
from llmgw.routing.index import TableIndex

_NOBODY = KnownKey("", "0" * 64, "")
"""What a credential of an unknown key is compared with, so that it takes as long as one of a known key."""
FAILURES = 20
"""Failures that an address has at once."""
REGAIN = 3.0
"""Seconds after which it has one more."""
ADDRESSES = 10_000
"""Addresses that are remembered; of more, those that failed longest ago are forgotten."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. Made once for a key and used by all of its requests, until keys or models change."""

    tenant: str = ""
    key: str = ""
    models: frozenset[str] | None = None
    """Names and aliases it may ask for; None for all."""
    admin: bool = False
    expires: Instant | None = None

    def may_ask(self, model: str) -> bool:
        """Whether a model, as it was named, is for it; one that there is not is for nobody."""
        return self.models is None or model in self.models


ANYBODY = Caller()
"""Who asks where no key is needed."""


class Keys:
    """The lookup side of one `Access` and one table."""

    def __init__(self, access: Access, index: TableIndex) -> None:
        self.required = access.required
        self._keys: Mapping[str, KnownKey] = {key.id: key for key in access.keys}
        self._patterns = {one.name: one.models for one in access.tenants}
        self._index = index
        self._callers: dict[str, Caller] = {}
        self._allowed: dict[str, frozenset[str]] = {}

    def caller(self, credential: str, now: Instant) -> Caller | None:
        """Return who presents a credential; None for one that is wrong or has expired."""
        key = verified(self._keys, credential, now)
        if key is None:
            return None
        found = self._callers.get(key.id)
        if found is None:
            models = self._models(key.tenant) if key.tenant else None
            found = self._callers[key.id] = Caller(
                key.tenant, key.id, models, admin=not key.tenant, expires=key.expires
            )
        return found

    def knows(self, credential: str) -> str:
        """Return the id in a credential, if there is such a key; else nothing: a stranger's text is not to be repeated."""
        key, _ = taken_apart(credential)
        return key if key in self._keys else ""

    def _models(self, tenant: str) -> frozenset[str]:
        found = self._allowed.get(tenant)
        if found is None:
            found = self._allowed[tenant] = allowed(self._patterns.get(tenant, ()), self._index)
        return found


def verified(keys: Mapping[str, KnownKey], credential: str, now: Instant) -> KnownKey | None:
    """Return the key of a credential; None if there is none, if its secret is wrong, or if it has expired."""
    name, secret = taken_apart(credential)
    key = keys.get(name, _NOBODY)
    right = hmac.compare_digest(hash_of(secret), key.hash)
    if not right or key is _NOBODY or (key.expires is not None and now >= key.expires):
        return None
    return key


def allowed(patterns: tuple[str, ...], index: TableIndex) -> frozenset[str]:
    """Return every name of the models of which a name or an alias matches one of the patterns."""
    named: dict[str, list[str]] = {}
    for name, indexed in index.models.items():
        named.setdefault(indexed.model.name, []).append(name)
    return frozenset(
        name
        for names in named.values()
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
        for name in names
    )


@dataclass(slots=True)
class _Bucket:
    left: float
    at: Instant
    told: bool = False
    """Whether it was said that nothing is left."""


class Failures:
    """How often each address may still be wrong: a bucket of tokens for each, and a bounded number of them."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def failed(self, address: str, now: Instant) -> tuple[int | None, bool]:
        """Take note of a failure; return (seconds after which another is answered, whether this one is worth a line).

        The first is None while the address has failures left. A line is worth its first failure in a while, and the first
        that it has no more left for.
        """
        name = _network(address)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(FAILURES, now)
            if len(self._buckets) > ADDRESSES:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        passed = max(0.0, now - bucket.at)  # the wall clock may be set back
        bucket.left = min(FAILURES, bucket.left + passed / REGAIN)
        bucket.at = now
        if bucket.left >= FAILURES:
            bucket.told = False
            bucket.left -= 1
            return None, True
        if bucket.left >= 1:
            bucket.left -= 1
            return None, False
        worth, bucket.told = not bucket.told, True
        return max(1, ceil((1 - bucket.left) * REGAIN)), worth


def _network(address: str) -> str:
    """Return what stands for an address: itself, or the 64 bits before those that an IPv6 host chooses freely."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(IPv6Address(int(found) >> 64 << 64))
    return address
