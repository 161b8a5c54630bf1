"""What an operator means who names a revision or brings a tree: to be applied, or to go back to.

Only names are settled here, and whether what they name is valid; whether it may be taken up is `adoption`'s.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from llmgw.base.ids import Revision, short
from llmgw.catalog.compile import Rejected
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.control.catalogs import Candidate, Catalogs
from llmgw.control.revision_book import RevisionBook
from llmgw.control.revisions import CannotAdopt, is_commit
from llmgw.ports.revisions import Record
from llmgw.ports.sinks import StoreUnavailable

SHORTEST = 7
"""Characters of a revision that name it."""
T = TypeVar("T")


class Choices:
    """What can be chosen from. All methods raise CannotAdopt."""

    def __init__(self, catalogs: Catalogs, book: RevisionBook) -> None:
        self._catalogs = catalogs
        self._book = book

    async def of(self, wanted: SourceTree | str) -> Candidate:
        """Return what is to be applied: a tree, or a revision by its name.

        A tree that is the newest's, byte for byte, is the newest: else that would wait behind an older one like it.
        """
        state = self._catalogs.state.value
        if not isinstance(wanted, str):
            newest = state.candidate
            if newest is not None and tree_digest(newest.tree) == tree_digest(wanted):
                return newest
            return await self.valid(wanted)
        if state.candidate is not None and _names(wanted, state.candidate.tree.revision):
            return state.candidate
        if state.tree is not None and _names(wanted, state.tree.revision):
            return await self.valid(state.tree)
        applied = (one for one in self._book.records if one.applied is not None)
        known = next((one for one in applied if _names(wanted, one.revision)), None)
        tree = await stored(lambda: self._book.tree(known.digest)) if known is not None else None
        if known is None or tree is None:
            newest_is = state.fetched.revision if state.fetched is not None else "none"
            raise CannotAdopt(
                f"revision {wanted} is not one that this server knows; the newest is {newest_is}. "
                "Push it, or apply a directory",
                404,
            )
        own = (
            tree.trailers if tree.revision == known.revision else ()
        )  # trees are kept by contents: another's may be there
        return await self.valid(replace(tree, revision=known.revision, trailers=own))

    async def valid(self, tree: SourceTree) -> Candidate:
        """Return a tree as a candidate, if it is valid."""
        outcome = await self._catalogs.candidate_of(tree)
        if isinstance(outcome, Rejected):
            errors = [str(one) for one in outcome.problems if one.severity == "error"]
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            raise CannotAdopt(f"revision {short(tree.revision)} is not valid: {errors[0]}{more}", 422)
        return outcome

    def earlier(self, revision: str, in_force: Revision) -> Record:
        """Return the applied revision to go back to; the one before if none is named."""
        standing = self._book.standing
        applied = [one for one in self._book.records if one.applied is not None]
        known = [one for one in applied if one.digest != standing.in_force]
        if revision:
            if revision in (in_force, short(in_force)):
                raise CannotAdopt(f"revision {short(in_force)} is in force already")
            matches = dict.fromkeys(one.revision for one in known if _names(revision, one.revision))
            if len(matches) > 1 and revision not in matches:
                raise CannotAdopt(f"{revision} may be any of {', '.join(map(short, matches))}; write more of it", 400)
            found = next((one for one in known if _names(revision, one.revision)), None)
            if found is None and any(_names(revision, one.revision) for one in applied):
                raise CannotAdopt(
                    f"revision {revision} has the same contents as {short(in_force)}, which is in force: there is nothing "
                    "to go back from"
                )
        else:
            found = next((one for one in known if one.revision not in standing.bad), None)
        if found is None:
            names = ", ".join(dict.fromkeys(short(one.revision) for one in known)) or "none"
            what = f"{revision} was not applied here" if revision else "no other revision was applied here"
            raise CannotAdopt(f"{what}; one can go back to: {names} (`llmgw history`)", 404)
        return found


def trailers_of(wanted: SourceTree | str, chosen: Candidate) -> tuple[str, ...]:
    """Return the trailers that what is to be applied is judged by: those of the commit that was named, of no other like it."""
    if isinstance(wanted, str) or not is_commit(wanted.revision):
        return chosen.tree.trailers
    return wanted.trailers


async def stored(work: Callable[[], Awaitable[T]]) -> T:
    """Ask the store."""
    try:
        return await work()
    except StoreUnavailable as error:
        raise CannotAdopt(f"the store cannot be used: {error}; nothing was changed, try again", 503) from error


def _names(text: str, revision: Revision) -> bool:
    return text == revision or (len(text) >= SHORTEST and revision.startswith(text))
