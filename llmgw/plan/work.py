"""One planning round under way: the replicas as they will be, what is free, and what is said about it.

Lives inside `plan` only, and is the only thing there that changes. The rules are in the modules that use it: `rollout`,
`starts`, `ends`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from llmgw.base.ids import ModelName, NodeName, ReplicaId, RestartHash
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.engines.placed import Placed, Seat
from llmgw.engines.shard import ShardSpec
from llmgw.engines.sizing import too_small
from llmgw.engines.weights import path_of
from llmgw.fleet.report import SERVING, Phase
from llmgw.fleet.view import NeverSeen, Reporting, report_of
from llmgw.plan.capacity import Ledger
from llmgw.plan.losses import losses
from llmgw.plan.placement import Place, listens_on, reached_at, why_not_here
from llmgw.plan.replicas import Part, Replica, by_id, existing, model_of, renamed
from llmgw.plan.result import Action, Hold, Verb
from llmgw.plan.snapshot import GaveUp, Rollout, Snapshot
from llmgw.spec.identity import restart_hash
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.profile import Profile


class Work:
    """See the module."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now = snapshot.now
        self.catalog: Catalog = snapshot.catalog
        self.models: dict[ModelName, Model] = dict(snapshot.catalog.models)
        """As they are acted on: a model whose rollout failed may be reverted."""
        self.replicas: dict[ReplicaId, Replica] = {one.id: one for one in existing(snapshot)}
        self.stopped: list[Replica] = []
        self.actions: list[Action] = []
        self.holds: dict[str, Hold] = {}
        self.losses = losses(snapshot)
        unheard = {*snapshot.unheard(), *self.losses.silent}
        self.unheard = [name for name in snapshot.catalog.nodes if name in unheard]
        self.acts = [act for act in snapshot.acts if act.holds(self.now)]
        self.draining: dict[ReplicaId, Instant] = {
            one.id: snapshot.previous.draining.get(one.id, self.now) if snapshot.previous.told else self.now
            for one in self.replicas.values()
            if one.draining and not one.leaving
        }
        self.rollouts: dict[ModelName, Rollout] = {}
        self.gave_up: dict[ModelName, tuple[GaveUp, ...]] = {}
        self.good: dict[ModelName, Model] = dict(snapshot.previous.good)
        self.preempted = dict(snapshot.previous.preempted)
        self.owed = dict(snapshot.previous.owed)
        """Replicas that were drained so that another of their model can have the place, until it has one."""
        self.no_room: dict[object, str] = {}
        """What was found to have no room, and why; forgotten when anything changes that could make room."""
        self.crowded: set[ModelName] = set()
        """Models that could start no replica because others of theirs are in the way."""
        self.changed: set[NodeName] = set()
        """Nodes of which an order may differ from the one before."""
        self.written: set[ReplicaId] = set()
        """Replicas that got their specs in this round."""
        self._too_small: dict[tuple[int, str], Mapping[NodeName, str]] = {}
        self._hashes: dict[tuple[int, str], RestartHash] = {}
        self._must_go: dict[ReplicaId, str] = {}
        self._of: dict[ModelName, list[Replica]] = {}
        self._made: Ledger | None = None
        self._going: list[Replica] | None = None
        self._by_model: dict[ModelName, set[ReplicaId]] = {}
        moved = {model.moved_from: name for name, model in self.models.items() if model.moved_from not in self.models}
        for name, one in list(self.replicas.items()):
            if one.model not in self.models:
                to = moved.get(one.model) or self._heir(one)
                if to is not None:
                    self.replicas[name] = one = renamed(one, to)  # noqa: PLW2901 - the one that is filed below
                    self.changed.update(one.nodes)
            self._by_model.setdefault(one.model, set()).add(name)
        for old, new in moved.items():
            if old is not None and ModelName(old) in self.good:
                self.good.setdefault(new, self.good[ModelName(old)])
        self._targets = {act.target: act for act in self.acts if act.kind in ("drain", "restart")}
        self._cards = self._bad_cards()

    def _heir(self, one: Replica) -> ModelName | None:
        """Return the model that a replica of no model belongs to; None if there is none.

        A rename that is undone needs no `moved_from`, since the id still says what the model was called at first. One that
        was done while a node was away, and is not said any more, is known by what is run: of what this control plane finds
        and has not ordered, a model takes as much as it lacks.
        """
        first = model_of(one.id)
        if first in self.models:
            return first
        if one.leaving or any(node in self.snapshot.previous.orders for node in one.nodes):
            return None
        there = Counter(known.model for known in self.replicas.values() if not known.leaving)
        alike = (
            name
            for name, model in self.models.items()
            if there[name] < model.replicas and one.spec.hash in self.wanted_hashes(model)
        )
        return next(alike, None)

    @property
    def ledger(self) -> Ledger:
        """What is free; made when it is first asked for, since a round that starts nothing does not need it."""
        if self._made is None:
            self._made = self._ledger()
        return self._made

    # the replicas

    def of(self, model: ModelName) -> list[Replica]:
        """Return a model's replicas, by epoch and number, without those that no order wants any more."""
        known = self._of.get(model)
        if known is None:
            found = (self.replicas[name] for name in self._by_model.get(model, ()))
            known = self._of[model] = sorted((one for one in found if not one.leaving), key=by_id)
        return known

    @property
    def going(self) -> list[Replica]:
        """The replicas on their way out whose nodes answer, so that their places will become free."""
        if self._going is None:
            leaving = [one for one in self.replicas.values() if one.draining or one.leaving]
            self._going = [one for one in [*leaving, *self.stopped] if one.node_answers]
        return self._going

    def _touch(self, one: Replica) -> None:
        self._of.pop(one.model, None)
        self._going = None
        self.no_room.clear()
        self.changed.update(one.nodes)

    def put(self, one: Replica) -> None:
        """Add a replica, or replace it by what it becomes."""
        ledger = self.ledger
        before = self.replicas.get(one.id)
        self.replicas[one.id] = one
        self._by_model.setdefault(one.model, set()).add(one.id)
        self._touch(one)
        for part in before.parts if before is not None else ():
            ledger.release(part.node, part.spec)
        for part in one.parts:
            ledger.claim(part.node, part.spec)

    def forget(self, one: Replica) -> None:
        """Take back a replica that was put in this round."""
        del self.replicas[one.id]
        self._by_model[one.model].discard(one.id)
        self._must_go.pop(one.id, None)
        self._touch(one)
        self.set_free([one])

    def is_taken(self, replica: ReplicaId) -> bool:
        """Whether an id is in use: also by what no order wants any more, was just stopped, or has another model's name now."""
        if replica in self.replicas or replica in self.snapshot.previous.spent:
            return True
        return any(one.id == replica for one in self.stopped)

    def set_free(self, replicas: list[Replica]) -> None:
        """Take their claims away, to see what would be if they were gone."""
        for one in replicas:
            for part in one.parts:
                self.ledger.release(part.node, part.spec)

    def take_back(self, replicas: list[Replica]) -> None:
        """Undo `set_free`."""
        for one in replicas:
            for part in one.parts:
                self.ledger.claim(part.node, part.spec)

    def keep(self, place: Place, why: str) -> None:
        """Keep what is free of a place from all that is less important, until the rest of it is free, too."""
        self.no_room.clear()
        for seat in place.seats:
            self.ledger.keep(seat.node, seat.gpus, place.profile.cpus or 0, place.profile.memory or 0, why)

    def mark(self, one: Replica, *, draining: bool) -> Replica:
        """Let a replica drain, or not; what it claims stays as it is."""
        changed = replace(one, draining=draining)
        self.replicas[one.id] = changed
        self._touch(one)
        return changed

    def renew(self, one: Replica, incarnation: int) -> None:
        """Order all shards of a replica in another incarnation; what it claims stays as it is."""
        parts = tuple(replace(part, spec=replace(part.spec, incarnation=incarnation)) for part in one.parts)
        self.replicas[one.id] = replace(one, parts=parts)
        self._touch(one)

    def drain(self, one: Replica, why: str) -> None:
        """Begin to drain a replica, unless it stands on a node that cannot be commanded."""
        deaf = next((node for node in one.nodes if not self.may_command(node)), None)
        if deaf is not None:
            self.hold(f"replica/{one.id}", f"drain ({why})", f"node {deaf} to answer")
            return
        self.mark(one, draining=True)
        self.draining[one.id] = self.now
        self.act(Verb.DRAIN, one, why)

    def too_small(self, model: Model, profile: Profile) -> Mapping[NodeName, str]:
        """Return the nodes whose cards cannot hold their share of a model, with the sum."""
        key = (id(model), profile.name)
        if key not in self._too_small:
            self._too_small[key] = self._cards_too_small(model, profile)
        return self._too_small[key]

    def _cards_too_small(self, model: Model, profile: Profile) -> dict[NodeName, str]:
        path = path_of(model.weights)
        if path is None or profile.gpu is None:
            return {}
        reports = {name: report_of(view) for name, view in self.snapshot.nodes.items()}
        have = [report.facts for report in reports.values() if report and path in report.facts.weights]
        if not have:
            return {}
        size = min(facts.weights[path] for facts in have)
        shape = next((facts.shapes[path] for facts in have if path in facts.shapes), None)
        found = {}
        for name, report in reports.items():
            cards = [one for one in report.gpus if self.ledger.class_of(one) == profile.gpu.gpu_class] if report else []
            largest = max((one.memory for one in cards), default=None)
            why = too_small(profile, largest, size, shape) if largest is not None else ""
            if why:
                found[name] = why
        return found

    def owe(self, one: Replica) -> None:
        """Note that the place of a replica is its model's: it goes for no other reason than to be replaced."""
        self.owed[one.id] = one.model

    def stop(self, one: Replica, why: str) -> None:
        """Leave a replica out of the orders. What it claims is not free before it is gone."""
        del self.replicas[one.id]
        self._by_model[one.model].discard(one.id)
        self._touch(one)
        self.stopped.append(one)
        self.draining.pop(one.id, None)
        self.act(Verb.STOP, one, why)

    # what is said

    def act(self, verb: Verb, one: Replica, why: str) -> None:
        """Say that something changes for a replica."""
        self.actions.append(Action(verb, one.id, one.model, one.node, why))

    def hold(self, subject: str, what: str, waits_for: str) -> None:
        """Say that something is not done now."""
        self.holds.setdefault(f"{subject} {what}", Hold(subject, what, waits_for))

    # what holds for a replica

    def may_command(self, node: NodeName) -> bool:
        """Whether an order may be made: the node has spoken to us, so that the order is not built from ignorance."""
        return isinstance(self.snapshot.nodes.get(node), Reporting) or node in self.snapshot.previous.orders

    def is_lost(self, one: Replica) -> bool:
        """Whether one of its nodes has not answered for so long that it is replaced."""
        return any(node in self.losses.lost for node in one.nodes)

    def available(self, one: Replica, model: Model) -> bool:
        """Whether it serves, and has done so for as long as a new replica must before it counts."""
        return one.serves and not one.draining and one.in_phase_for(self.now) >= model.rollout.min_ready

    def must_go(self, one: Replica) -> str:
        """Say why a replica may not stay where it is, or as it is; empty if it may."""
        known = self._must_go.get(one.id)
        if known is None:
            known = self._must_go[one.id] = self._why_it_must_go(one)
        return known

    def _why_it_must_go(self, one: Replica) -> str:
        for part in one.parts:
            why = self._leaves_node(part)
            if why:
                return why
        found = self.profile_of(one)
        if found is not None:
            for part in one.parts:
                why = why_not_here(found[1], self.catalog.nodes[part.node])
                if why:
                    return f"node {part.node} {why}"
        if not one.whole and one.node_answers and not self._may_be_hidden():
            gone = one.spec.shards - sum(not part.leaving for part in one.parts)
            return f"{gone} of its {one.spec.shards} shards {'is' if gone == 1 else 'are'} gone"
        asked = self._targets.get(f"replica/{one.id}")
        return f"{asked.kind} was asked for ({asked.reason})" if asked is not None else ""

    def _may_be_hidden(self) -> bool:
        """Whether a shard that nobody told us of may run on a node that has not spoken yet."""
        patience = self.catalog.cluster.control.lost_after
        views = self.snapshot.nodes.values()
        return any(isinstance(view, NeverSeen) and self.now - view.since < patience for view in views)

    def _leaves_node(self, part: Part) -> str:
        node = self.catalog.nodes.get(part.node)
        if node is None:
            return f"node {part.node} is no longer in the catalog"
        cordoned = self._cordon(node)
        if cordoned:
            return f"node {part.node} is cordoned"
        asked = self._targets.get(f"node/{part.node}")
        if asked is not None:
            return f"node {part.node} is drained ({asked.reason})"
        if part.spec.host != listens_on(node):
            return f"it listens on {part.spec.host}, and the traffic of node {part.node} goes to {listens_on(node)}"
        for uuid in part.spec.gpus:
            if uuid in self._cards:
                return f"card {uuid} is {self._cards[uuid]}"
        return ""

    def wanted_hashes(self, model: Model) -> set[RestartHash]:
        """Return the hashes of all that the model's profiles would start."""
        return {self.hash_of(model, profile) for profile in model.profiles}

    def hash_of(self, model: Model, profile: Profile) -> RestartHash:
        """Return the restart hash of a replica by this profile, also of a model as it was before."""
        if self.catalog.models.get(ModelName(model.name)) is model:
            return self.catalog.hash_of(model, profile)
        key = (id(model), profile.name)
        if key not in self._hashes:
            self._hashes[key] = restart_hash(model, profile, self.catalog.engine(profile.engine))
        return self._hashes[key]

    def profile_of(self, one: Replica) -> tuple[Model, Profile] | None:
        """Return the model and profile as they are wanted that a replica runs by, or None if it is outdated."""
        model = self.models.get(one.model)
        if model is None:
            return None
        # profiles that differ only in where they may run have one hash
        found = [each for each in model.profiles if self.hash_of(model, each) == one.spec.hash]
        nodes = [self.catalog.nodes[node] for node in one.nodes if node in self.catalog.nodes]
        here = [each for each in found if not any(why_not_here(each, node) for node in nodes)]
        return (model, (here or found)[0]) if found else None

    def spec(
        self, model: Model, profile: Profile, replica: ReplicaId, seats: tuple[Seat, ...], incarnation: int = 0
    ) -> tuple[ShardSpec, ...]:
        """Return what the engine's adapter makes of a replica with these seats."""
        control = self.catalog.cluster.control
        placed = Placed(
            replica=replica,
            model=model,
            profile=profile,
            definition=self.catalog.engine(profile.engine),
            hash=self.hash_of(model, profile),
            seats=seats,
            backoff=control.backoff,
            interface=control.mgmt_interface,
            incarnation=incarnation,
        )
        return self.snapshot.engines[profile.engine].shards(placed)

    def refreshed(self, one: Replica) -> tuple[ShardSpec, ...]:
        """Return the specs as the catalog would write them today: what does not restart takes effect without one."""
        found = self.profile_of(one)
        if found is None or not one.whole or one.id in self.written:
            return tuple(replace(part.spec, incarnation=one.incarnation) for part in one.parts)
        seats = tuple(
            Seat(part.node, part.spec.port, part.spec.host, self.address(part.node), part.spec.gpus)
            for part in one.parts
        )
        return self.spec(*found, one.id, seats, one.incarnation)

    def address(self, node: NodeName) -> str:
        """Return where other nodes reach a node."""
        known = self.catalog.nodes.get(node)
        return reached_at(known) if known is not None else node

    # what is free

    def _ledger(self) -> Ledger:
        closed = {}
        for name, node in self.catalog.nodes.items():
            asked = next((act for act in self.acts if act.target == f"node/{name}"), None)
            cordoned = self._cordon(node)
            if cordoned:
                closed[name] = f"cordoned ({cordoned})"
            elif asked is not None:
                closed[name] = f"{'drained' if asked.kind == 'drain' else 'cordoned'} ({asked.reason})"
        cards = {act.target.removeprefix("gpu/"): act.reason for act in self.acts if act.target.startswith("gpu/")}
        ledger = Ledger(self.catalog, self.snapshot.nodes, closed, cards, self.snapshot.engines)
        for one in [*self.replicas.values(), *self.stopped]:
            for part in one.parts:
                ledger.claim(part.node, part.spec)
        ledger.open()
        return ledger

    def _cordon(self, node: Node) -> str:
        """Return why a node is cordoned by its file; empty if it is not, or not any more."""
        if node.cordoned is None:
            return ""
        until = node.cordoned.until
        over = until is not None and datetime.fromisoformat(until).timestamp() <= self.now
        return "" if over else node.cordoned.reason

    def _bad_cards(self) -> dict[str, str]:
        """Return the cards that nothing may stay on, and why: condemned, missing, or drained by an operator."""
        bad = {
            act.target.removeprefix("gpu/"): f"drained ({act.reason})"
            for act in self.acts
            if act.kind == "drain" and act.target.startswith("gpu/")
        }
        for name, view in self.snapshot.nodes.items():
            report = report_of(view)
            if report is None:
                continue
            for gpu in report.gpus:
                if gpu.unhealthy:
                    bad[gpu.uuid] = f"unhealthy ({gpu.unhealthy})"
            if isinstance(view, Reporting) and not report.facts.gpu_trouble:
                there = {gpu.uuid for gpu in report.gpus}
                for one in report.shards:
                    if one.phase not in SERVING:  # what serves has its card, whatever the driver says
                        bad.update(
                            (uuid, f"no longer there (node {name} has {len(there)})")
                            for uuid in one.spec.gpus
                            if uuid not in there
                        )
        return bad

    # what was learned

    def learn(self, model: Model) -> None:
        """Remember the nodes on which replicas of the model's present profiles gave up."""
        wanted = self.wanted_hashes(model)
        name = ModelName(model.name)
        before = [*self.snapshot.previous.gave_up.get(name, ()), *self.snapshot.previous.gave_up.get(_was(model), ())]
        known = {(each.hash, each.node): each for each in before if each.hash in wanted}
        known |= {(each.hash, each.node): each for each in self.gave_up.get(name, ())}
        for one in self.of(name):
            for part in one.parts:
                if part.spec.hash in wanted and part.phase is Phase.FAILED and part.report is not None:
                    why = part.report.reason.text if part.report.reason is not None else "it ended"
                    known[part.spec.hash, part.node] = GaveUp(part.spec.hash, part.node, why)
        if known:
            self.gave_up[name] = tuple(known[key] for key in sorted(known))


def _was(model: Model) -> ModelName:
    """Return a model's name before it was renamed; empty if it was not."""
    return ModelName(model.moved_from or "")
