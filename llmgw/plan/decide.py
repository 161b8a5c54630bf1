"""`plan(snapshot) -> Plan`: the brain. The server obeys it, `llmgw plan` prints it, the tests call it.

For each model the existing replicas are of three kinds: **current** (right restart hash, on a node that may keep it),
**outdated** (everything else that is still wanted to serve), and those on their way out. The rules, in the order applied:

1. A drain is called off before anything new is started for the same purpose.
2. Missing current replicas are started; beside outdated ones at most one more than wanted runs (surge), and where there is
   no room for it, one outdated replica gives way only if another keeps serving.
3. An outdated replica is drained when enough others serve without it, or when it does not serve at all.
4. Surplus current replicas are drained, those that serve least first.
5. What drains is stopped only when it is out of every gateway's table and nothing is in flight, or its deadline passed.

Nothing is decided about replicas nobody has told us of: see `Snapshot.unheard`.
"""

from dataclasses import replace

from llmgw.base.ids import Generation, ModelName, NodeName, ReplicaId, order_of, replica_id
from llmgw.base.time import Instant, age
from llmgw.engines.adapter import ENGINES
from llmgw.engines.placed import Placed
from llmgw.engines.shard import ShardSpec
from llmgw.fleet.order import NodeOrder, ShardOrder
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active, Idle, Unknown, is_quiet
from llmgw.fleet.view import Reporting, report_of
from llmgw.plan.placement import NoPlace, free_port, listens_on, place
from llmgw.plan.publish import table_of
from llmgw.plan.replicas import Replica, existing, free_number
from llmgw.plan.result import Action, Hold, Plan, Verb
from llmgw.plan.snapshot import Snapshot
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile

SURGE = 1
"""Replicas that may run beyond the wanted number while a model is being rolled over."""


def plan(snapshot: Snapshot) -> Plan:
    """Return what should change now, and what is held back with the reason."""
    work = _Work(snapshot)
    by_priority = sorted(snapshot.catalog.models.values(), key=lambda model: (-model.priority, model.name))
    for model in by_priority:
        work.roll(model)
    # every model gets its first replica before any gets its second
    for wanted in range(1, max([model.replicas for model in by_priority], default=0) + 1):
        for model in by_priority:
            if wanted <= model.replicas:
                work.start(model, wanted)
    for model in by_priority:
        work.retire(model)
    work.remove_unwanted()
    work.finish_drains()
    work.move_ports()
    return work.result()


class _Work:
    """One planning round: the replicas as they will be, and what is said about it. Lives inside `plan` only."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.catalog = snapshot.catalog
        self.nodes = dict(snapshot.nodes)
        self.replicas = existing(snapshot)
        self.actions: list[Action] = []
        self.holds: dict[str, Hold] = {}
        self.stopped: list[Replica] = []
        self.draining: dict[ReplicaId, Instant] = {
            one.id: snapshot.previous.draining.get(one.id, snapshot.now)
            for one in self.replicas
            if one.draining and not one.leaving
        }
        self.unheard = snapshot.unheard()
        self.crowded: set[str] = set()
        """Models that could start no replica because others of theirs are in the way."""

    def of(self, model: Model) -> tuple[list[Replica], list[Replica]]:
        """Return the model's (current, outdated) replicas, in order of id, without those on their way out."""
        hashes = {self.catalog.hash_of(model, profile) for profile in model.profiles}
        current: list[Replica] = []
        outdated: list[Replica] = []
        for one in sorted(self.replicas, key=lambda one: order_of(one.id)):
            if one.model != model.name or one.draining or one.leaving:
                continue
            (current if one.spec.hash in hashes and self._may_stay(one) else outdated).append(one)
        return current, outdated

    def roll(self, model: Model) -> None:
        """Call drains off where the model needs the replica after all."""
        current, _ = self.of(model)
        hashes = {self.catalog.hash_of(model, profile) for profile in model.profiles}
        for one in self.replicas:
            if len(current) >= model.replicas:
                return
            fits = one.spec.hash in hashes and self._may_stay(one)
            if one.model == model.name and one.draining and not one.leaving and fits and self._may_command(one.node):
                kept = replace(one, draining=False)
                self._replace(one, kept)
                del self.draining[one.id]
                current.append(kept)
                self._act(Verb.KEEP, kept, "it is wanted again")

    def start(self, model: Model, wanted: int) -> None:
        """Start the model's `wanted`-th replica, unless it has as many or something is in the way."""
        current, outdated = self.of(model)
        if len(current) >= wanted:
            return
        subject = f"model/{model.name}"
        if self.unheard:
            names = ", ".join(self.unheard[:3]) + (" …" if len(self.unheard) > 3 else "")
            self._hold(subject, "start", f"the first word of {names}, which may run it already")
            return
        running = [one for one in self.replicas if one.model == model.name and not one.leaving]
        if len(running) >= model.replicas + SURGE:
            self._hold(subject, "roll over", self._progress(current, running))
            self.crowded.add(model.name)
            return
        where = place(model, self.catalog, self.nodes, self.replicas)
        if isinstance(where, NoPlace):
            self.crowded.add(model.name)
            if not self._make_room(model, current, outdated):
                self._hold(subject, f"start replica {wanted} of {model.replicas}", f"room: {where}")
            return
        spec = self._spec(
            model,
            where.profile,
            replica_id(ModelName(model.name), self.snapshot.epoch, self._number(model)),
            where.port,
            listens_on(self.catalog.nodes[where.node]),
        )
        new = Replica(where.node, spec, None, None, node_answers=True, draining=False, leaving=False)
        self.replicas.append(new)
        why = (
            f"replaces an outdated one ({outdated[0].id})"
            if outdated
            else f"{model.replicas} wanted, {len(current)} there"
        )
        self._act(Verb.START, new, f"{why}; fewest replicas on {where.node}, port {where.port}")

    def retire(self, model: Model) -> None:
        """Drain outdated replicas as others take over, and current ones beyond the wanted number."""
        current, outdated = self.of(model)
        for one in outdated:
            others = [other for other in current + outdated if other is not one and other.serves and not other.draining]
            if not one.serves and self._is_hopeless(one, model, bool(others)):
                self._drain(one, f"{self._why_outdated(one)} and it does not serve")
                outdated = [other for other in outdated if other is not one]
            elif len(others) >= model.replicas:
                self._drain(one, f"{self._why_outdated(one)} and {len(others)} others serve")
                outdated = [other for other in outdated if other is not one]
            else:
                self._hold(
                    f"replica/{one.id}", "drain (outdated)", f"{model.replicas - len(others)} more to serve first"
                )
        newest_first = sorted(current, key=lambda one: order_of(one.id), reverse=True)
        surplus = sorted(newest_first, key=lambda one: (one.serves, one.has_process))
        for one in surplus[: max(0, len(current) - model.replicas)]:
            self._drain(one, f"{model.replicas} wanted, {len(current)} there")

    def remove_unwanted(self) -> None:
        """Drain the replicas of models that left the catalog."""
        for one in list(self.replicas):
            if one.model not in self.catalog.models and not one.draining and not one.leaving:
                self._drain(one, f"model/{one.model} is no longer in the catalog")

    def finish_drains(self) -> None:
        """Stop what has drained."""
        published = {endpoint.id for endpoint in self.snapshot.previous.table.endpoints}
        limit = self.catalog.cluster.router.timeouts.drain
        for one in list(self.replicas):
            if not one.draining or one.leaving:
                continue
            usage = self.snapshot.usage.of(one.id)
            waited = self.snapshot.now - self.draining[one.id]
            withdrawn = one.id not in published and one.id in self.snapshot.previous.draining
            if not one.serves and not one.has_process and one.id not in published:
                self._stop(one, "it has no process")
            elif withdrawn and is_quiet(usage):
                self._stop(one, "withdrawn everywhere and nothing is in flight")
            elif waited >= limit and withdrawn and self.snapshot.usage.current:
                self._stop(one, f"its drain deadline of {age(limit)} passed ({_in_words(usage)})")
            else:
                self._hold(f"replica/{one.id}", "stop", f"its requests to finish: {_in_words(usage)}")

    def move_ports(self) -> None:
        """Give another port to what cannot start because something else holds its own."""
        for one in list(self.replicas):
            reason = one.report.reason if one.report else None
            if one.leaving or one.phase is not Phase.WAITING or reason is None or reason.code != "port_taken":
                continue
            model = self.catalog.models.get(one.model)
            profile = self._profile(model, one) if model else None
            report = report_of(self.nodes[one.node])
            if model is None or profile is None or report is None or one.spec.port not in report.facts.foreign_ports:
                continue
            on_node = [other for other in self.replicas if other.node == one.node]
            port = free_port(report, on_node, self.catalog, one.spec.ports)
            if port is None:
                self._hold(f"replica/{one.id}", "move to another port", "a free port in control.ports")
                continue
            self._replace(one, replace(one, spec=self._spec(model, profile, one.id, port, one.spec.host)))
            self._act(Verb.MOVE_PORT, one, f"{reason.text}; gets port {port}")

    def result(self) -> Plan:
        """Return the plan that all of this makes."""
        orders = {name: self._order(name) for name in sorted(self.nodes) if self._may_command(name)}
        table, published, withdrawn = table_of(self.snapshot, self.replicas)
        known = {one.id: one for one in self.replicas + self.stopped}
        for endpoint in published:
            self._act(Verb.PUBLISH, known[endpoint.id], f"it is ready at {endpoint.address}")
        for endpoint in withdrawn:
            one = known.get(endpoint.id)
            node = one.node if one else NodeName("?")
            self.actions.append(Action(Verb.WITHDRAW, endpoint.id, endpoint.model, node, _why_withdrawn(one)))
        return Plan(
            based_on=self.catalog.revision,
            orders=orders,
            table=table,
            draining=dict(sorted(self.draining.items())),
            actions=tuple(self.actions),
            holds=tuple(self.holds.values()),
            settled=not self.unheard,
            cause=self.snapshot.cause,
        )

    def _may_command(self, node: NodeName) -> bool:
        """Whether an order may be made: the node has spoken to us, so that the order is not built from ignorance."""
        return isinstance(self.nodes[node], Reporting) or node in self.snapshot.previous.orders

    def _order(self, name: NodeName) -> NodeOrder:
        shards = tuple(
            ShardOrder(self._refreshed(one), one.draining)
            for one in sorted(self.replicas, key=lambda one: one.id)
            if one.node == name and not one.leaving
        )
        node = self.catalog.nodes.get(name)
        before = self.snapshot.previous.orders.get(name)
        weights_dir = node.weights_dir if node else (before.weights_dir if before else None)
        report = report_of(self.nodes[name])
        # a node that left the catalog and came back has obeyed generations of this epoch that were forgotten here
        obeyed = report.generation if report and report.epoch == self.snapshot.epoch else 0
        same = before is not None and (before.shards, before.weights_dir) == (shards, weights_dir)
        if before is not None and same and obeyed <= before.generation:
            return before
        generation = Generation(max(before.generation if before else 0, obeyed) + 1)
        return NodeOrder(name, self.snapshot.epoch, generation, shards, weights_dir, self.snapshot.cause)

    def _refreshed(self, one: Replica) -> ShardSpec:
        """Return the spec as the catalog would write it today: what does not restart takes effect, now or at the next start."""
        model = self.catalog.models.get(one.model)
        profile = self._profile(model, one) if model else None
        if model is None or profile is None:
            return one.spec
        return self._spec(model, profile, one.id, one.spec.port, one.spec.host)

    def _profile(self, model: Model, one: Replica) -> Profile | None:
        return next((p for p in model.profiles if self.catalog.hash_of(model, p) == one.spec.hash), None)

    def _spec(self, model: Model, profile: Profile, replica: ReplicaId, port: int, host: str) -> ShardSpec:
        definition = self.catalog.engine(profile.engine)
        hashed = self.catalog.hash_of(model, profile)
        backoff = self.catalog.cluster.control.backoff
        return ENGINES[profile.engine].shards(Placed(replica, model, profile, definition, hashed, port, backoff, host))[
            0
        ]

    def _number(self, model: Model) -> int:
        return free_number(ModelName(model.name), self.snapshot.epoch, self.replicas + self.stopped)

    def _make_room(self, model: Model, current: list[Replica], outdated: list[Replica]) -> bool:
        """Let one outdated replica give way where there is no room to surge, if another keeps serving."""
        serving = [one for one in current + outdated if one.serves]
        victim = next((one for one in reversed(outdated) if one.serves), None)
        if victim is None or len(serving) < 2 or len(serving) < model.replicas:
            return False
        self._drain(victim, "it is outdated, there is no room for one more, and others serve meanwhile")
        return True

    def _may_stay(self, one: Replica) -> bool:
        """Whether its node may keep it, and it listens where that node's traffic goes."""
        node = self.catalog.nodes.get(one.node)
        return node is not None and node.cordoned is None and one.spec.host == listens_on(node)

    def _why_outdated(self, one: Replica) -> str:
        node = self.catalog.nodes.get(one.node)
        if node is None:
            return f"node {one.node} is no longer in the catalog"
        if node.cordoned is not None:
            return f"node {one.node} is cordoned"
        if one.spec.host != listens_on(node):
            return f"it listens on {one.spec.host}, and the traffic of node {one.node} goes to {listens_on(node)}"
        return "it is outdated"

    def _is_hopeless(self, one: Replica, model: Model, others_serve: bool) -> bool:
        """Whether an outdated replica that does not serve is of no more use.

        While nothing else serves, one that may come back (its engine crashed, its node does not answer) is kept: a new
        revision may turn out not to start. It gives way to a replacement that could not start beside it.
        """
        if others_serve or one.phase is Phase.FAILED or model.replicas == 0:
            return True
        # one that runs behind a broken connection is not known to be gone, and its place would not become free
        return model.name in self.crowded and one.node_answers and not one.phase_serves

    def _progress(self, current: list[Replica], running: list[Replica]) -> str:
        new = next((one for one in current if not one.serves), None)
        if new is not None:
            reason = f" ({new.report.reason.text})" if new.report and new.report.reason else ""
            return f"{new.id} to serve; it is {new.phase}{reason}"
        leaving = next((one for one in running if one.draining), None)
        return f"{leaving.id} to drain" if leaving else "an outdated replica to drain"

    def _drain(self, one: Replica, why: str) -> None:
        if not self._may_command(one.node):
            self._hold(f"replica/{one.id}", f"drain ({why})", f"node {one.node} to answer")
            return
        self._replace(one, replace(one, draining=True))
        self.draining[one.id] = self.snapshot.previous.draining.get(one.id, self.snapshot.now)
        self._act(Verb.DRAIN, one, why)

    def _stop(self, one: Replica, why: str) -> None:
        self.replicas = [other for other in self.replicas if other is not one]
        self.stopped.append(one)
        self.draining.pop(one.id, None)
        self._act(Verb.STOP, one, why)

    def _replace(self, old: Replica, new: Replica) -> None:
        self.replicas = [new if one is old else one for one in self.replicas]

    def _act(self, verb: Verb, one: Replica, why: str) -> None:
        self.actions.append(Action(verb, one.id, one.model, one.node, why))

    def _hold(self, subject: str, what: str, waits_for: str) -> None:
        self.holds.setdefault(f"{subject} {what}", Hold(subject, what, waits_for))


def _in_words(usage: Active | Idle | Unknown) -> str:
    match usage:
        case Active(in_flight=n):
            return f"{n} in flight"
        case Idle():
            return "nothing in flight"
        case Unknown(quiet=True):
            return "a word from every gateway about the table without it"
        case Unknown(why=why):
            return why


def _why_withdrawn(one: Replica | None) -> str:
    if one is None:
        return "it is gone"
    if one.draining or one.leaving:
        return "it is being drained"
    if one.address is None and one.phase is Phase.READY:
        return "there is no way to it now"
    return f"it is {one.phase}"
