"""What is remembered of revisions, in memory; `available` takes the store away."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.ports.revisions import KEPT_RECORDS, KEPT_TREES, Outcome, Record, Standing
from llmgw.ports.sinks import StoreUnavailable


@dataclass
class FakeRevisions:
    """A `RevisionKeeper`."""

    available: bool = True
    silent: bool = False
    """Writes what it is given, and does not say so in time."""
    kept: Standing | None = None
    history: list[Record] = field(default_factory=list)
    """Oldest first."""
    trees: dict[str, SourceTree] = field(default_factory=dict)

    async def keep(self, standing: Standing, records: Sequence[Record], tree: SourceTree | None) -> bool:
        """Write all of it or nothing."""
        self._raise_if_away()
        if (self.kept.serial if self.kept is not None else 0) != standing.serial - 1:
            return False
        self.kept = standing
        for record in records:
            at = next((n for n, known in enumerate(self.history) if known.id == record.id), len(self.history))
            self.history[at : at + 1] = [record]
        self.history = self.history[-KEPT_RECORDS:]
        if tree is not None:
            self.trees[tree_digest(tree)] = tree
            self._prune(standing)
        if self.silent:
            raise StoreUnavailable("it did not answer within 10 s")
        return True

    async def standing(self) -> Standing | None:
        """Return what was written last, or None."""
        self._raise_if_away()
        return self.kept

    async def records(self, limit: int) -> list[Record]:
        """Return the newest records, newest first."""
        self._raise_if_away()
        return self.history[::-1][:limit]

    async def tree(self, digest: str) -> SourceTree | None:
        """Return a kept tree, or None."""
        self._raise_if_away()
        return self.trees.get(digest)

    def _prune(self, standing: Standing) -> None:
        applied = list(dict.fromkeys(one.digest for one in self.history[::-1] if one.applied is not None))[:KEPT_TREES]
        under_way = [one.digest for one in self.history if one.outcome is Outcome.UNDER_WAY]
        kept = {standing.in_force, *applied, *under_way}
        self.trees = {key: tree for key, tree in self.trees.items() if key in kept}

    def _raise_if_away(self) -> None:
        if not self.available:
            raise StoreUnavailable("the database does not answer")
