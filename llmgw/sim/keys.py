"""A `KeyKeeper` in memory."""

from collections.abc import Mapping
from dataclasses import replace

from llmgw.base.time import Instant
from llmgw.ports.keys import KeptKeys, Key
from llmgw.ports.sinks import StoreUnavailable


class FakeKeys:
    """See `KeyKeeper`; `available` takes it away."""

    def __init__(self) -> None:
        self.available = True
        self._keys: dict[str, Key] = {}
        self._version = 0

    async def version(self) -> int:
        """Return the present version."""
        self._raise_if_away()
        return self._version

    async def keys(self) -> KeptKeys:
        """Return all of them."""
        self._raise_if_away()
        found = sorted(self._keys.values(), key=lambda one: (one.tenant, one.created, one.id))
        return KeptKeys(self._version, tuple(found))

    async def add(self, key: Key, old: str = "", old_expires: Instant | None = None) -> bool:
        """Keep a new key, and have an old one expire."""
        self._raise_if_away()
        before = self._keys.get(old)
        if key.id in self._keys or (old and (before is None or before.revoked is not None)):
            return False
        if before is not None and old_expires is not None:
            sooner = old_expires if before.expires is None else min(before.expires, old_expires)
            self._keys[old] = replace(before, expires=sooner)
        self._keys[key.id] = key
        self._version += 1
        return True

    async def revoke(self, key: str, now: Instant) -> bool:
        """Revoke a key."""
        self._raise_if_away()
        found = self._keys.get(key)
        if found is None or found.revoked is not None:
            return False
        self._keys[key] = replace(found, revoked=now)
        self._version += 1
        return True

    async def note_used(self, used: Mapping[str, Instant]) -> None:
        """Keep when keys were used."""
        self._raise_if_away()
        for key, at in used.items():
            found = self._keys.get(key)
            if found is not None and (found.last_used is None or found.last_used < at):
                self._keys[key] = replace(found, last_used=at)

    async def forget(self, before: Instant) -> None:
        """Drop what is over for long."""
        self._raise_if_away()
        over = [
            one.id
            for one in self._keys.values()
            if any(end is not None and end < before for end in (one.revoked, one.expires))
        ]
        for key in over:
            del self._keys[key]
        self._version += bool(over)

    def _raise_if_away(self) -> None:
        if not self.available:
            raise StoreUnavailable("the database does not answer")
