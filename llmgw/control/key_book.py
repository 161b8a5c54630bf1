"""`KeyBook`: the keys of tenants and administrators, in step with the store and published to the gateways.

Tenants and what they may ask for are in git, keys in the store: who may use a cluster is reviewed like everything else, and no
secret, not even hashed, is ever committed. A change here is published at once; one that another control plane made on the same
store is seen by its version within a second. While the store is away, what was read last holds: it is the newest that is
known, and a database that restarts must not lock everybody out. A copy of it, in a file beside the server, lets one that starts
while the store is away do the same.

Without keys asked for (`router.auth: off`) on an address that other hosts reach, keys are asked for all the same: such a server
does not start, and a commit that would open a running one has not that effect.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import IdSource
from llmgw.base.time import Clock, Instant, age, later
from llmgw.catalog.catalog import Catalog
from llmgw.control.acts import CannotAct
from llmgw.fleet.access import Access, KnownKey, TenantRight, credential_of, hash_of
from llmgw.ports.keys import KeptKeys, Key, KeyKeeper, Scope
from llmgw.ports.sinks import AccessSink, StoreUnavailable
from llmgw.routing.access import verified

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at the store, and at what is in force."""
NOTE_USED = 5.0
"""Seconds between two writes of when keys were used."""
ID_LENGTH = 10
"""Hexadecimal digits of a key's id; an id that is taken is refused by the store."""
MOST_KEYS = 20_000
"""Keys that hold at once: all of them are one message to each gateway, which has a limit."""
_KEPT = TypeAdapter(KeptKeys)


@dataclass(frozen=True, slots=True)
class Made:
    """A new key, and what its owner presents: shown once, and kept nowhere."""

    key: Key
    credential: str
    old: Key | None = None
    """The one that it takes the place of, as it was."""


class KeyBook:
    """One for a control plane. Use from the event loop's thread; `load` first, then `run`."""

    def __init__(
        self,
        keeper: KeyKeeper,
        sink: AccessSink,
        catalog: Callable[[], Catalog | None],
        clock: Clock,
        ids: IdSource,
        secret: Callable[[], str],
        *,
        loopback: bool,
        copy: Path | None = None,
    ) -> None:
        """`secret` returns 256 bits of chance as text; `loopback` says that only this host reaches the gateway.

        `copy` is the file that says what was read last: hashes, no secret. None for a store that is a file itself.
        """
        self._keeper = keeper
        self._sink = sink
        self._catalog = catalog
        self._clock = clock
        self._ids = ids
        self._secret = secret
        self._loopback = loopback
        self._copy = copy
        self._kept = KeptKeys(-1)
        self._read = False
        self._admins: dict[str, KnownKey] = {}
        self._scopes: dict[str, Scope] = {}
        self._access: Access | None = None
        self._used: dict[str, Instant] = {}
        self._noted = clock.now()
        self._due = asyncio.Event()
        self._trouble = ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """All keys that are kept, those that are over included."""
        return self._kept.keys

    @property
    def alarms(self) -> tuple[str, ...]:
        """What people must know."""
        catalog = self._catalog()
        found = [self._trouble] if self._trouble else []
        if catalog is not None and catalog.cluster.router.auth == "off" and not self._loopback:
            found.append(
                "router.auth is off, and --listen can be reached from other hosts: keys are asked for all the same; "
                "write `auth: keys`, or listen on 127.0.0.1"
            )
        return tuple(found)

    async def load(self) -> None:
        """Read the store. Raises StoreUnavailable."""
        self._take(await self._keeper.keys())
        self.publish()

    def recall(self) -> None:
        """Go by what was read last by a server here, until the store can be read."""
        if self._copy is None:
            return
        try:
            kept = _KEPT.validate_json(self._copy.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            log.warning(
                "the copy of the keys cannot be read: %s", str(error).splitlines()[0], extra={"file": self._copy}
            )
            return
        self._take(KeptKeys(-1, kept.keys))
        self.publish()

    async def run(self) -> None:
        """Keep the store, the catalog and the gateways in step for ever."""
        while True:
            try:
                await self.step()
                self._trouble = ""
            except StoreUnavailable as error:
                if not self._trouble:
                    log.warning("keys and store are not in step", extra={"reason": str(error)})
                self._trouble = f"keys that are revoked elsewhere are not seen: the store cannot be used: {error}"
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._due.wait()

    async def step(self) -> None:
        """Take what was written, publish what follows, and write when keys were used. Raises StoreUnavailable."""
        self._due.clear()
        self.publish()
        if await self._keeper.version() != self._kept.version:
            self._take(await self._keeper.keys())
            self.publish()
        now = self._clock.now()
        if self._used and now - self._noted >= NOTE_USED:
            await self.note_used()

    async def note_used(self) -> None:
        """Write when keys were used. Raises StoreUnavailable."""
        used, self._used = self._used, {}
        self._noted = self._clock.now()
        try:
            await self._keeper.note_used(used)
        except StoreUnavailable:
            self._used = {**used, **self._used}
            raise

    def used(self, keys: Iterable[str], at: Instant) -> None:
        """Take note that keys were used; written down a little later."""
        for key in keys:
            if key:
                self._used[key] = max(at, self._used.get(key, at))

    def publish(self) -> None:
        """Have the gateways go by what is known now; nothing is sent if that is what they go by."""
        catalog = self._catalog()
        if catalog is None:
            return
        now = self._clock.now()
        tenants = tuple(TenantRight(name, tuple(tenant.models)) for name, tenant in sorted(catalog.tenants.items()))
        keys = tuple(
            _known(one)
            for one in self._kept.keys
            if one.holds(now) and (one.tenant in catalog.tenants or one.scope == "admin")
        )
        required = catalog.cluster.router.auth == "keys" or not self._loopback
        if required and not self._read:
            return  # gateways of an earlier server go on by what they know, which is better than by no key at all
        before = self._access
        version = before.version if before is not None else 1
        access = Access(version, required, keys, tenants)
        if access != before:
            self._access = access if before is None else Access(version + 1, required, keys, tenants)
            self._sink.admit(self._access)

    def admin(self, credential: str) -> tuple[str, Scope] | None:
        """Return (id, scope) of an administrator's key that is presented; None for anything else."""
        now = self._clock.now()
        key = verified(self._admins, credential, now)
        if key is None:
            return None
        self.used([key.id], now)
        return key.id, self._scopes[key.id]

    async def create(self, tenant: str, scope: Scope | None, note: str, expires: Instant | None, by: str) -> Made:
        """Make a key of a tenant, or, with a scope, of an administrator. Raises CannotAct, StoreUnavailable."""
        if scope is None:
            catalog = self._catalog()
            tenants = catalog.tenants if catalog is not None else {}
            if tenant not in tenants:
                known = ", ".join(sorted(tenants)) or "none yet; write one into the cluster directory (kind: Tenant)"
                raise CannotAct(f"there is no tenant {tenant!r}; there are: {known}", 404)
        made = self._made(tenant, scope, note, expires, by)
        if not await self._keeper.add(made.key):
            raise CannotAct("this id is taken, which is as likely as a lost lottery; try again", 409)
        await self._now()
        return made

    async def rotate(self, which: str, overlap: float, by: str) -> Made:
        """Make a key in place of another, which holds on for so many seconds. Raises CannotAct, StoreUnavailable.

        The new one lasts as long as the old one was to.
        """
        old = self._one(which)
        end = Instant(self._clock.now() + overlap)
        lasts = old.expires - old.created if old.expires is not None else None
        made = self._made(old.tenant, old.scope, old.note, later(self._clock.now(), lasts) if lasts else None, by)
        if not await self._keeper.add(made.key, old.id, end):
            raise CannotAct(f"key {old.id} was revoked just now; make another with `llmgw keys create`", 409)
        await self._now()
        return Made(made.key, made.credential, old)

    async def revoke(self, which: str, *, every: bool = False) -> tuple[Key, ...]:
        """Revoke a key, or every one of a tenant; return which. Raises CannotAct, StoreUnavailable."""
        found = self._holding(which) if every else (self._one(which),)
        if not found:
            raise CannotAct(f"{which!r} has no key that holds", 404)
        for one in found:
            await self._keeper.revoke(one.id, self._clock.now())
        await self._now()
        return found

    def _made(self, tenant: str, scope: Scope | None, note: str, expires: Instant | None, by: str) -> Made:
        now = self._clock.now()
        holding = sum(one.holds(now) for one in self._kept.keys)
        if holding >= MOST_KEYS:
            raise CannotAct(f"{holding} keys hold, which is the most there may be; revoke some first", 409)
        name, secret = self._ids.new()[:ID_LENGTH], self._secret()
        key = Key(name, "" if scope else tenant, scope, note, hash_of(secret), now, by, expires)
        return Made(key, credential_of(name, secret))

    def _holding(self, which: str) -> tuple[Key, ...]:
        now = self._clock.now()
        return tuple(one for one in self._kept.keys if which in (one.id, one.tenant) and which and one.holds(now))

    def _one(self, which: str) -> Key:
        """Return the key of this id, or the only one of this tenant. Raises CannotAct."""
        found = self._holding(which)
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(
                f"{one.id} ({one.note or f'{age(self._clock.now() - one.created)} old'})" for one in found
            )
            raise CannotAct(f"tenant {which} has {len(found)} keys; name one of them: {shown}", 409)
        raise CannotAct(f"no key that holds is called {which!r}, and no tenant with one; see `llmgw keys list`", 404)

    async def _now(self) -> None:
        """Let a change that is written hold at once; if it cannot be read, it does within a second of when it can."""
        with suppress(StoreUnavailable):
            self._take(await self._keeper.keys())
        self.publish()
        self._due.set()

    def _take(self, kept: KeptKeys) -> None:
        self._kept = kept
        self._read = True
        if self._copy is not None and kept.version >= 0:
            _write(self._copy, kept)
        now = self._clock.now()
        admins = [one for one in kept.keys if one.scope is not None and one.holds(now)]
        self._admins = {one.id: _known(one) for one in admins}
        self._scopes = {one.id: one.scope for one in admins if one.scope is not None}


def _write(file: Path, kept: KeptKeys) -> None:
    """Keep a copy. What is lost with the power is only used while the store is away."""
    fresh = file.with_suffix(".new")
    try:
        fresh.touch(0o600)
        fresh.write_bytes(_KEPT.dump_json(kept))
        fresh.replace(file)
    except OSError as error:
        log.warning("a copy of the keys cannot be kept: %s", error.strerror, extra={"file": file})


def _known(key: Key) -> KnownKey:
    return KnownKey(key.id, key.hash, key.tenant, key.expires)
