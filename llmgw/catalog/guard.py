"""What one revision may remove without saying so. The rules are those of what is in force, never the new revision's own.

A `Guarded` is kept with the catalog in force, in the store, too: deleting a protected file, or the `guard` itself, does not
delete the protection. To give an object up, a commit first takes `protect` away, or says what it removes: in a trailer of
its message, or on the command line of `llmgw apply`, naming each object. So the last object can be removed as well.

Objects are known by kind and name, so a moved file removes nothing; nor does a model that takes another name. What is
named is not counted against the limits. A name that was in force already is nobody's new one, whatever `moved_from` says.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from llmgw.base.ids import ModelName
from llmgw.catalog.catalog import Catalog

TRAILER = "LLMGW-Allow-Remove"
SHOWN = 5
"""Objects named in a sentence; the data has all of them."""


@dataclass(frozen=True, slots=True)
class GuardedObject:
    """One object that is in force."""

    address: str
    """`model/NAME`, as overrides name it."""
    protected: str = ""
    """By what it is protected; empty if it is not."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """All objects in force but the cluster itself, and how many of them one revision may remove."""

    objects: tuple[GuardedObject, ...] = ()
    max_removed: int | None = None
    max_removed_share: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule that a revision breaks."""

    rule: str
    """`protect`, `max_removed` or `max_removed_share`."""
    objects: tuple[str, ...]
    text: str

    @property
    def trailer(self) -> str:
        """The line that allows it, at the end of the commit's message."""
        return f"{TRAILER}: {', '.join(self.objects)}"

    @property
    def options(self) -> str:
        """The options of `llmgw apply` that allow it."""
        return " ".join(f"--allow-remove {each}" for each in self.objects)


def guarded(catalog: Catalog) -> Guarded:
    """Return what a catalog protects while it is in force."""
    rules = catalog.cluster.guard
    objects = []
    for address in sorted(addresses(catalog)):
        pattern = next((each for each in rules.protect if fnmatchcase(address, each)), None)
        kind, _, name = address.partition("/")
        own = kind == "model" and catalog.models[ModelName(name)].protect
        why = "protect: true" if own else (f"guard.protect: {pattern}" if pattern is not None else "")
        objects.append(GuardedObject(address, why))
    return Guarded(tuple(objects), rules.max_removed, rules.max_removed_share)


def addresses(catalog: Catalog) -> set[str]:
    """Return `kind/NAME` of every object but the cluster, of which there is always one."""
    return {f"{kind.lower()}/{name}" for kind, name in catalog.paths if kind != "Cluster"}


def refusals(before: Guarded, after: Catalog, allowed: frozenset[str] = frozenset()) -> tuple[Refusal, ...]:
    """Return every rule that a revision breaks by what it removes; none if it may be taken."""
    left = addresses(after) | _renamed(before, after)
    gone = [one for one in before.objects if one.address not in left and one.address not in allowed]
    names = tuple(one.address for one in gone)
    models = tuple(name for name in names if name.startswith("model/"))
    had = sum(one.address.startswith("model/") for one in before.objects)
    found = []
    protected = [one for one in gone if one.protected]
    if protected:
        told = [f"{one.address} ({one.protected})" for one in protected]
        text = f"it removes {_some(told)}, which {'is' if len(protected) == 1 else 'are'} protected"
        found.append(Refusal("protect", tuple(one.address for one in protected), text))
    if before.max_removed is not None and len(names) > before.max_removed:
        text = (
            f"it removes {len(names)} objects, {_some(names)}; at most {before.max_removed} may go (guard.max_removed)"
        )
        found.append(Refusal("max_removed", names, text))
    if before.max_removed_share is not None and had and len(models) / had > before.max_removed_share:
        share = f"{before.max_removed_share:.0%}"
        text = f"it removes {len(models)} of {had} models, {_some(models)}; at most {share} may go (guard.max_removed_share)"
        found.append(Refusal("max_removed_share", models, text))
    return tuple(found)


def _renamed(before: Guarded, after: Catalog) -> set[str]:
    """Return the models that live on under a name which was not in force before: one that was is no other model's new name."""
    known = {one.address for one in before.objects}
    return {
        f"model/{model.moved_from}"
        for name, model in after.models.items()
        if model.moved_from and f"model/{name}" not in known
    }


def allowed_by(trailers: tuple[str, ...]) -> frozenset[str]:
    """Return the objects that a commit's trailers say it may remove."""
    found: set[str] = set()
    for line in trailers:
        key, _, value = line.partition(":")
        if key.strip().lower() == TRAILER.lower():
            found.update(filter(None, re.split(r"[\s,]+", value)))
    return frozenset(found)


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
