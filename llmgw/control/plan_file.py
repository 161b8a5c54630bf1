"""A saved plan: what was shown, bound to all that it relied on, so that exactly this is applied later or nothing.

A fleet moves every second, so a plan that any new report made stale could never be applied. What is kept is a digest of only
those observations that an action relied on: whether its node answers and takes anything, which cards are there and fit to
use, what else is placed there, and which replicas its model has and whether they serve; and whether all is suspended. Ages,
memory in use, progress and counters are left out. A digest by itself cannot say what changed, so there is one for each
question, and its name says which it is.

The file is canonical JSON, and its id is the SHA-256 of all the rest: a file that was edited is not the plan that was shown.
It is good for one apply (`PlanKeeper`) and for an hour unless told otherwise. It has the tree itself, so it can be applied
where no repository is; values of secrets are in no tree.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmgw.base.ids import Epoch, ModelName, NodeName, Revision, short
from llmgw.base.time import Instant, age
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.fleet.report import Gpu, Phase, Report
from llmgw.fleet.view import Reporting, Unreachable, report_of
from llmgw.plan.replicas import Replica, existing
from llmgw.plan.result import Action, Plan
from llmgw.plan.snapshot import Snapshot

FORMAT_VERSION = "1.0"
VALID_FOR = 3600.0
"""Seconds from a plan's making to its expiry, unless told otherwise."""
LONGEST = 7 * 86400.0
USED = "it was applied already; a saved plan is good for one apply"

_WHAT = {
    "answers": "whether it answers, or takes new replicas",
    "cards": "which cards it has and which of them are fit to use",
    "placed": "which replicas are placed on it",
    "replicas": "which replicas it has, and which of them serve",
    "suspended": "whether it is suspended",
}


class BadPlanFile(Exception):
    """What was read is no saved plan, or not as it was written; the message says which."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A saved plan. Times in seconds since the epoch."""

    id: str
    """SHA-256 of everything else, in 64 hexadecimal digits."""
    format_version: str
    tool_version: str
    nonce: str
    """Makes two plans of the same thing two plans: each may be applied once."""
    base_revision: Revision | None
    """What was in force."""
    base_digest: str
    """Of the tree that was in force; empty if there was none."""
    revision: Revision
    desired_digest: str
    """Of the tree to apply."""
    epoch: Epoch
    created: Instant
    expires: Instant
    observed: Mapping[str, str]
    """`node/NAME answers`, `model/NAME replicas`, `cluster suspended`, … to a digest."""
    actions: tuple[str, ...]
    """For people: what would be done."""
    summary: str
    files: Mapping[str, str]
    """The tree to apply: path to base64."""
    subject: str = ""
    author: str = ""
    trailers: tuple[str, ...] = ()
    """Of the commit's message, where it says what may be removed. Not in the file if there are none, as in older ones."""

    @property
    def tree(self) -> SourceTree:
        """Return the tree to apply."""
        files = {path: base64.b64decode(data) for path, data in self.files.items()}
        return SourceTree(self.revision, files, {}, self.subject, self.author, trailers=self.trailers)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan is saved under."""

    nonce: str
    created: Instant
    valid_for: float
    tool_version: str
    summary: str = ""


def save(decided: Plan, there: Snapshot, base: SourceTree | None, tree: SourceTree, terms: Terms) -> PlanFile:
    """Return the plan as a file. `there` is what it was made from, `base` the tree in force, `tree` the one to apply."""
    observed = observations(decided.actions, there, decided)
    body = {
        "format_version": FORMAT_VERSION,
        "tool_version": terms.tool_version,
        "nonce": terms.nonce,
        "base_revision": base.revision if base is not None else None,
        "base_digest": tree_digest(base) if base is not None else "",
        "revision": tree.revision,
        "desired_digest": tree_digest(tree),
        "epoch": there.epoch,
        "created": float(terms.created),
        "expires": float(terms.created + min(terms.valid_for, LONGEST)),
        "observed": observed,
        "actions": [f"{one.verb} {one.replica} on {one.node}" for one in decided.actions if one.verb != "publish"],
        "summary": terms.summary,
        "files": {path: base64.b64encode(data).decode() for path, data in tree.files.items()},
        "subject": tree.subject,
        "author": tree.author,
        **({"trailers": list(tree.trailers)} if tree.trailers else {}),
    }
    return _ADAPTER.validate_python({"id": _sha256(body), **body})


def dump_plan(plan: PlanFile) -> str:
    """Return the file's text: canonical JSON and a newline."""
    return _canonical(plan_row(plan)) + "\n"


def load_plan(text: str | bytes) -> PlanFile:
    """Return the plan in a file. Raises BadPlanFile."""
    try:
        data = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadPlanFile("it is not JSON; `llmgw plan --out FILE` saves a plan") from error
    if not isinstance(data, dict) or "desired_digest" not in data:
        raise BadPlanFile("it is not a saved plan; `llmgw plan --out FILE` saves one")
    version = str(data.get("format_version", ""))
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise BadPlanFile(f"its format_version is {version}, this llmgw reads 1.x; plan again with this llmgw")
    claimed = data.pop("id", None)
    try:
        found = _sha256(data)
        json.dumps(data, ensure_ascii=False).encode()
    except ValueError as error:  # a number beyond all, or text that no UTF-8 can hold
        raise BadPlanFile("it is damaged; plan again") from error
    if claimed != found:
        raise BadPlanFile("it is not as it was written (its id does not match); plan again")
    try:
        plan = _ADAPTER.validate_python({"id": claimed, **data})
        digest = tree_digest(plan.tree)
    except (ValidationError, binascii.Error, ValueError, OverflowError) as error:
        raise BadPlanFile("it is damaged; plan again") from error
    if digest != plan.desired_digest:
        raise BadPlanFile("its tree is not the one that was planned for; plan again")
    return plan


def _no_number(said: str) -> float:
    """Refuse `NaN` and `Infinity`, which JSON does not have. Raises ValueError."""
    raise ValueError(said)


def stale(
    plan: PlanFile,
    snapshot: Snapshot | None,
    in_force: SourceTree | None,
    desired_digest: str,
    used: Collection[str],
    now: Instant,
) -> tuple[str, ...]:
    """Return what keeps a saved plan from being applied now: what changed since it was made; nothing if it may be.

    `snapshot` is the state now, `in_force` the tree in force, `desired_digest` that of the tree about to be applied, and
    `used` the ids of the plans that were applied. To be called by whoever may decide, before the first effect.
    """
    found = []
    if plan.id in used:
        found.append(USED)
    if now >= plan.expires:
        found.append(f"it expired {age(now - plan.expires)} ago")
    if desired_digest != plan.desired_digest:
        found.append("what is to be applied is not what was planned for")
    found += _base(plan, in_force)
    if snapshot is None:
        return (*found, *(["the state of the nodes is not known now"] if plan.observed else []))
    if snapshot.epoch != plan.epoch:
        found.append(f"another control plane decides now (epoch {snapshot.epoch}, it was {plan.epoch})")
    seen = _Seen(snapshot)
    for key, digest in plan.observed.items():
        if seen.digest(key) != digest:
            subject, _, what = key.rpartition(" ")
            found.append(f"{subject} has changed: {_WHAT.get(what, what)} (now: {seen.words(key)})")
    return tuple(found)


def observations(actions: Iterable[Action], snapshot: Snapshot, decided: Plan) -> dict[str, str]:
    """Return digests of what actions relied on, by name."""
    seen = _Seen(snapshot)
    keys: dict[str, None] = {"cluster suspended": None}  # what a suspension held back is in no plan made under it
    for action in actions:
        for node in _nodes_of(action, decided, seen):
            keys |= dict.fromkeys(f"node/{node} {what}" for what in ("answers", "cards", "placed"))
        keys[f"model/{action.model} replicas"] = None
    return {key: seen.digest(key) for key in sorted(keys)}


def _nodes_of(action: Action, decided: Plan, seen: "_Seen") -> list[NodeName]:
    ordered = {
        node for node, order in decided.orders.items() for one in order.shards if one.spec.replica == action.replica
    }
    there = {node for one in seen.replicas if one.id == action.replica for node in one.nodes}
    return sorted(ordered | there | {action.node})


def _base(plan: PlanFile, in_force: SourceTree | None) -> list[str]:
    digest = tree_digest(in_force) if in_force is not None else ""
    if digest == plan.base_digest:
        return []
    was = short(plan.base_revision) if plan.base_revision is not None else "none"
    now = short(in_force.revision) if in_force is not None else "none"
    return [f"revision {now} is in force now; it was {was} when this was planned"]


class _Seen:
    """The answers to the questions that plans rely on, from one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.replicas = existing(snapshot)

    def digest(self, key: str) -> str:
        """Return a digest of the answer."""
        return _sha256(self.answer(key))[:16]

    def answer(self, key: str) -> Any:
        """Return what is known, without what moves by itself."""
        subject, _, what = key.rpartition(" ")
        kind, _, name = subject.partition("/")
        if kind == "model":
            return sorted(
                [one.id, one.spec.hash, list(one.nodes), _stage(one)]
                for one in self.replicas
                if one.model == ModelName(name)
            )
        if kind == "cluster":
            return self.snapshot.suspended is not None
        view = self.snapshot.nodes.get(NodeName(name))
        report = report_of(view) if view is not None else None
        if what == "answers":
            state = type(view).__name__ if isinstance(view, Reporting | Unreachable) else "NeverSeen"
            return [state, self._closed(name, report)]
        if what == "cards":
            return sorted(_card(gpu) for gpu in report.gpus) if report is not None else None
        return sorted(
            [part.spec.shard, part.spec.port, list(part.spec.gpus), part.leaving]
            for one in self.replicas
            for part in one.parts
            if part.node == name
        )

    def words(self, key: str) -> str:
        """Return the answer in a few words."""
        found = self.answer(key)
        what = key.rpartition(" ")[2]
        if what == "suspended":
            return "suspended" if found else "not suspended"
        if what == "answers":
            state = {"Reporting": "it answers", "Unreachable": "it does not answer"}.get(found[0], "never seen")
            return f"{state}; closed by {', '.join(found[1])}" if found[1] else state
        if what == "cards":
            cards = found or []
            unfit = [one[0] for one in cards if one[3]]
            return f"{len(cards)} cards" + (f", not fit: {', '.join(unfit)}" if unfit else "")
        if what == "replicas":
            return ", ".join(f"{one[0]} {one[3]}" for one in found) or "none"
        return ", ".join(one[0] for one in found) or "nothing"

    def _closed(self, name: str, report: Report | None) -> list[str]:
        """Return what keeps new replicas off a node or its cards: by its file, or by operators."""
        targets = {f"node/{name}"} | ({f"gpu/{gpu.uuid}" for gpu in report.gpus} if report is not None else set())
        acts = [
            f"{act.kind} {act.target}"
            for act in self.snapshot.acts
            if act.target in targets and act.holds(self.snapshot.now)
        ]
        return sorted(acts)


def _stage(one: Replica) -> str:
    """Return how far a replica is, in steps that matter to a plan; the way from its start to serving is one of them."""
    if one.leaving:
        return "leaves"
    if one.phase is Phase.FAILED:
        return "gave up"
    stage = "serves" if one.phase_serves else "comes"
    return f"{stage}, draining" if one.draining else stage


def _card(gpu: Gpu) -> list[Any]:
    return [gpu.uuid, gpu.name, gpu.memory, bool(gpu.unhealthy) or any(one.shard is None for one in gpu.users)]


def _sha256(data: Any) -> str:
    return hashlib.sha256(_canonical(data).encode()).hexdigest()


def _canonical(data: Any) -> str:
    """Return JSON in the one form that digests are taken of: sorted keys, no spaces, only ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


_ADAPTER: TypeAdapter[PlanFile] = TypeAdapter(PlanFile)


def plan_row(plan: PlanFile) -> dict[str, Any]:
    """Return a saved plan as plain data, as it travels and as it lies in a file."""
    row: dict[str, Any] = _ADAPTER.dump_python(plan, mode="json")
    if not plan.trailers:
        del row["trailers"]
    return row
