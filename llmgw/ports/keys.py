"""Keys as they are kept: by whom, for what, until when. Their secrets are not: only hashes of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from llmgw.base.time import Instant

Scope = Literal["read", "apply", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "apply", "admin")
"""What an administrator's key is good for; each includes those before it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Of its life, only `expires`, `revoked` and `last_used` change."""

    id: str
    tenant: str
    """Empty for one of an administrator."""
    scope: Scope | None
    """None for one of a tenant, which is good for the gateway alone."""
    note: str
    hash: str
    created: Instant
    by: str
    """Who made it."""
    expires: Instant | None = None
    revoked: Instant | None = None
    last_used: Instant | None = None

    def holds(self, now: Instant) -> bool:
        """Whether it is good for anything now."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """All keys, as of a version."""

    version: int
    keys: tuple[Key, ...] = ()


class KeyKeeper(Protocol):
    """Keeps keys. Every method raises StoreUnavailable; those that write do all of it or nothing.

    Several control planes may share a store. Each finds out that another has written by the version, which grows with every
    write but those of `note_used`.
    """

    async def version(self) -> int:
        """Return the present version. Cheap: it is asked every second."""
        ...

    async def keys(self) -> KeptKeys:
        """Return all of them, by tenant, then by when they were made."""
        ...

    async def add(self, key: Key, old: str = "", old_expires: Instant | None = None) -> bool:
        """Keep a new key; False, and nothing, if its id is taken.

        With `old`, have that one expire then, unless it does so earlier; False, and nothing, if it is not there or revoked.
        """
        ...

    async def revoke(self, key: str, now: Instant) -> bool:
        """Revoke a key; False if there is none that is not revoked."""
        ...

    async def note_used(self, used: Mapping[str, Instant]) -> None:
        """Keep when keys were used, where that is later than what is known."""
        ...

    async def forget(self, before: Instant) -> None:
        """Drop what was revoked, or expired, before then."""
        ...
