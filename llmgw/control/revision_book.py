"""What is remembered of revisions, and its copy in the store: one `Standing` and the newest records.

Two ways to change it. `write` puts it in the store first and lets it hold only then: for what a person was told. `hold_true`
lets it hold at once and marks it unsaved, for `flush`: for what happens by itself. The store compares serials, so of two
control planes that both believe they lead, the second one's write is refused, and it takes over what the first wrote.
"""

from dataclasses import replace

from llmgw.catalog.source import SourceTree
from llmgw.ports.revisions import KEPT_RECORDS, Record, RevisionKeeper, Standing


class RevisionBook:
    """One for a control plane. The asynchronous methods raise StoreUnavailable, and are called one at a time."""

    def __init__(self, keeper: RevisionKeeper) -> None:
        self._keeper = keeper
        self._records: list[Record] = []
        self._unsaved: dict[str, Record] = {}
        self._unsaved_tree: SourceTree | None = None
        self._dirty = False
        self._doubted = False
        """Whether a write did not end well: it may be in the store all the same."""
        self.standing = Standing()

    @property
    def records(self) -> tuple[Record, ...]:
        """The newest attempts, newest first."""
        return tuple(self._records)

    @property
    def attempted(self) -> Record | None:
        """The record of what is being carried out, or was last."""
        return self.record(self.standing.attempted)

    def record(self, name: str) -> Record | None:
        """Return an attempt by its id."""
        return next((one for one in self._records if one.id == name), None)

    async def newer(self) -> bool:
        """Take what another control plane has written since, in place of what is here; False if none has.

        What is unsaved here is dropped then: it was decided without knowing of that.
        """
        there = await self._keeper.standing()
        if there is None or there.serial <= self.standing.serial:
            return False
        records = await self._keeper.records(KEPT_RECORDS)
        self._records, self.standing = records, there
        self._unsaved, self._unsaved_tree, self._dirty = {}, None, False
        self._doubted = False
        return True

    async def _is_newer(self) -> bool:
        there = await self._keeper.standing()
        return there is not None and there.serial > self.standing.serial

    async def tree(self, digest: str) -> SourceTree | None:
        """Return a kept tree, or None."""
        return await self._keeper.tree(digest)

    def hold_true(self, standing: Standing, records: list[Record], tree: SourceTree | None) -> None:
        """Let it hold now; `flush` writes it. Records are newest first."""
        self.standing = standing
        self._remember(records)
        self._unsaved.update({one.id: one for one in reversed(records)})
        if tree is not None:
            self._unsaved_tree = tree
        self._dirty = True

    async def write(self, standing: Standing, records: list[Record], tree: SourceTree | None) -> bool:
        """Write it, and let it hold then; False, and nothing, if another control plane has written. `flush` first."""
        wanted = replace(standing, serial=self.standing.serial + 1)
        self._doubted = True
        if not await self._keeper.keep(wanted, records, tree):
            return False
        self._doubted = False
        self.standing = wanted
        self._remember(records)
        for one in records:
            self._unsaved.pop(one.id, None)
        return True

    async def flush(self) -> bool:
        """Write what is unsaved; False if there is something newer in the store: look at it with `newer` then."""
        if self._doubted:
            if await self._is_newer():
                return False
            self._doubted = False
        if not self._dirty:
            return True
        records, tree = dict(self._unsaved), self._unsaved_tree
        serial = self.standing.serial + 1
        self._dirty = False
        kept = False
        self._doubted = True
        try:
            kept = await self._keeper.keep(replace(self.standing, serial=serial), list(records.values()), tree)
        finally:
            self._dirty = self._dirty or not kept
        if not kept:
            return False
        self._doubted = False
        self.standing = replace(self.standing, serial=serial)
        for name, one in records.items():
            if self._unsaved.get(name) is one:
                del self._unsaved[name]
        if self._unsaved_tree is tree:
            self._unsaved_tree = None
        return True

    def _remember(self, records: list[Record]) -> None:
        for one in reversed(records):
            at = next((n for n, known in enumerate(self._records) if known.id == one.id), None)
            if at is None:
                self._records.insert(0, one)
            else:
                self._records[at] = one
        del self._records[KEPT_RECORDS:]
