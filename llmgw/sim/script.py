"""The small language of simulation scripts: one command a line, run against the simulated world in virtual time.

Write down:
    cluster [interval 5s] [unreachable_after 10s] [lost_after 5m] [drain 1m] [give_up_after 3] [ports 20000-20999]
            [brake_share 50%] [brake_nodes 2]
    node NAME [cpus N] [memory SIZE] [gpus N] [class h100|l40s|t4] [reserved N] [expect N] [pool P] [fabric F]
            [label K=V] [local]
    model NAME [replicas N] [cpus N] [memory SIZE] [gpus N] [class C] [nodes N] [engine E] [tp N]
            [pool P] [label K=V] [alias A] [priority N]
            [preempt] [min_life T] [placement pack] [start_timeout T] [strategy S] [max_surge N] [max_unavailable N]
            [min_ready T] [deadline T] [auto_revert] [args ARG ...]                         (args come last)
    cordon NAME REASON ... | uncordon NAME | remove node NAME | remove model NAME
    commit [SUBJECT ...]         push the directory as it was written down; `commit!` pushes one that is not valid
What happens to machines:
    gpu NODE INDEX xid 79 | gpu NODE INDEX well | gpu NODE INDEX gone | gpu NODE INDEX back
    foreign NODE INDEX pid 4242 python 20GiB | foreign NODE INDEX none
    port NODE PORT taken | port NODE PORT free | weights NODE MODEL missing | weights NODE MODEL there
    crash REPLICA [RANK] | reboot NODE [DURATION] | agent stop NODE | agent start NODE
    lose NODE [silently] | find NODE | drop NODE N (the next N orders get lost)
What people and gateways do:
    ask drain|cordon TARGET REASON ... | ask restart TARGET | ask until DURATION drain|cordon TARGET REASON ...
    ask uncordon TARGET | ask forget node/NAME REASON ...
    stream REPLICA | finish      begin a request, end all requests
    store away | store back | source fails REASON ... | control start | control restart | control kill
Look:
    step DURATION                let time pass; what happens is shown with its time
    show status | plan | alarms | nodes | gpus | replicas | endpoints | explain MODEL | if SUPPOSITION ...

An engine's arguments say how it behaves: `--load N` takes N seconds to load, `--crash-after N` ends N seconds after its
start, `--hang` never gets ready, `--deaf` must be killed. Everything takes exactly the time it takes on average, so that
the output says the same on every run and host.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.catalog.compile import Accepted
from llmgw.control.acts import CannotAct
from llmgw.control.operator import explained
from llmgw.control.overview import endpoint_rows, gpu_rows
from llmgw.control.preview import as_json, preview
from llmgw.control.status import Control as Said
from llmgw.control.status import status
from llmgw.fleet.report import GpuUser
from llmgw.plan.explain import explain
from llmgw.plan.snapshot import Snapshot
from llmgw.plan.what_if import CannotSuppose
from llmgw.ports.sinks import StoreUnavailable
from llmgw.sim.agent import Machine
from llmgw.sim.directory import Object, model
from llmgw.sim.language import ScriptError, cluster_of, model_of, node_of, number, seconds, size, words_of
from llmgw.sim.loop import EPOCH, simulate
from llmgw.sim.world import World


@dataclass(frozen=True, slots=True)
class Texts:
    """How what the server says is printed: the commands' own texts."""

    status: Callable[[dict[str, Any]], str]
    plan: Callable[[dict[str, Any]], str]
    explanation: Callable[[dict[str, Any]], str]
    table: Callable[[str, list[dict[str, Any]]], str]


def play(script: str, seed: int, texts: Texts) -> tuple[list[str], list[str]]:
    """Run a script; return (what it shows, what was unsafe). Raises ScriptError."""

    async def main() -> tuple[list[str], list[str]]:
        world = World.begin(seed, jitter=False)
        try:
            return await Script(world, texts).run(script.splitlines()), world.violations
        finally:
            await world.end()

    return simulate(main, seed)


class Script:
    """One run of one script."""

    def __init__(self, world: World, texts: Texts) -> None:
        self._world = world
        self._texts = texts
        self._cluster: Object = cluster_of([])
        self._nodes: dict[str, Object] = {}
        self._models: dict[str, Object] = {}
        self._shown = 0

    async def run(self, lines: list[str]) -> list[str]:
        """Run the commands and return what they show. Raises ScriptError."""
        out: list[str] = []
        for count, line in enumerate(lines, 1):
            try:
                words = words_of(line)
                if words:
                    shown = [part.rstrip() for part in await self._do(words[0], words[1:])]
                    out += [f"> {line.strip()}", *shown]
            except ScriptError as error:
                raise ScriptError(f"line {count}: {error}") from error
            except KeyError as error:
                raise ScriptError(f"line {count}: there is no {error.args[0]!s} now") from error
        return out

    async def _do(self, command: str, words: list[str]) -> list[str]:
        if self._write_down(command, words) or self._break(command, words) or await self._act(command, words):
            return []
        match command, words:
            case "stream", [replica]:
                taken = self._world.gateway.begin(ReplicaId(replica))
                return [f"  taken by {replica}"] if taken is not None else ["  no engine takes it"]
            case "finish", []:
                for request in list(self._world.gateway.requests):
                    self._world.gateway.finish(request)
                return []
            case "ask", _:
                return await self._ask(words)
            case "step", [duration]:
                await asyncio.sleep(seconds(duration))
                return list(self._happened())
            case "show", [what, *rest]:
                return [f"  {line}".rstrip() for line in self._show(what, rest).splitlines()]
            case _:
                raise ScriptError(
                    f"{' '.join([command, *words])!r} is not understood; `llmgw sim --words` lists the commands"
                )

    def _write_down(self, command: str, words: list[str]) -> bool:
        match command, words:
            case "cluster", settings:
                self._cluster = cluster_of(settings)
            case "node", [name, *rest]:
                self._nodes[name], facts = node_of(name, rest)
                if NodeName(name) not in self._world.machines:
                    self._world.machine(name, **facts)
            case "model", [name, *rest]:
                self._models[name] = model_of(name, rest)
            case "cordon", [name, *reason]:
                self._nodes[name] = {**self._nodes[name], "cordoned": {"reason": " ".join(reason)}}
            case "uncordon", [name]:
                self._nodes[name].pop("cordoned")
            case "remove", ["node", name]:
                del self._nodes[name]
            case "remove", ["model", name]:
                del self._models[name]
            case "commit" | "commit!", subject:
                bad = [model("bad", profile={"engine": "nonsense"})] if command == "commit!" else []
                objects = [*self._nodes.values(), *self._models.values(), *bad]
                self._world.commit(self._cluster, *objects, subject=" ".join(subject))
            case _:
                return False
        return True

    def _break(self, command: str, words: list[str]) -> bool:
        """Let something happen to a machine."""
        match command, words:
            case "gpu", [name, index, *how]:
                _change_card(self._machine(name), number(index), how)
            case "foreign", [name, index, "none"]:
                machine = self._machine(name)
                machine.strangers.pop(machine.card(number(index)), None)
            case "foreign", [name, index, "pid", pid, program, taken]:
                machine = self._machine(name)
                machine.strangers[machine.card(number(index))] = GpuUser(number(pid), size(taken), program, None)
            case "port", [name, port, "taken"]:
                self._machine(name).foreign_ports.add(number(port))
            case "port", [name, port, "free"]:
                self._machine(name).foreign_ports.discard(number(port))
            case "weights", [name, wanted, "missing"]:
                self._machine(name).missing_weights.add(f"/weights/{wanted}.gguf")
            case "weights", [name, wanted, "there"]:
                self._machine(name).missing_weights.discard(f"/weights/{wanted}.gguf")
            case "drop", [name, count]:
                self._machine(name).loses_orders = number(count)
            case "crash", [replica, *rank]:
                machine, engine = self._world.engine(replica, number(rank[0]) if rank else 0)
                machine.end(engine)
                return True
            case _:
                return False
        agent = self._world.agents.get(NodeName(words[0]))
        if agent is not None:
            agent.say()
        return True

    def _machine(self, name: str) -> Machine:
        return self._world.machines[NodeName(name)]

    async def _act(self, command: str, words: list[str]) -> bool:
        world = self._world
        match command, words:
            case "control", ["start"]:
                await world.start_control()
            case "control", ["restart" | "kill" as how]:
                await world.restart_control(release=how == "restart")
            case "agent", ["stop", name]:
                await world.stop_agent(name)
            case "agent", ["start", name]:
                world.start_agent(name)
            case "reboot", [name, *duration]:
                await world.reboot(name, seconds(duration[0]) if duration else 30.0)
            case "lose", [name, *how]:
                world.lose(name, silently=how == ["silently"])
            case "find", [name]:
                world.regain(name)
            case "store", ["away" | "back" as how]:
                world.store.available = how == "back"
            case "source", ["fails", *reason]:
                world.source.fail(" ".join(reason))
            case _:
                return False
        return True

    async def _ask(self, words: list[str]) -> list[str]:
        until = ""
        if words[:1] == ["until"]:
            until, words = words[1], words[2:]
        try:
            match words:
                case ["uncordon", target]:
                    return [] if await self._world.take_back(target) else [f"  nothing was asked for of {target}"]
                case ["forget", target, *reason]:
                    self._world.forget(target.removeprefix("node/"), "ann", " ".join(reason))
                    return []
                case [kind, target, *reason]:
                    await self._world.ask(kind=kind, target=target, reason=" ".join(reason), until=until, by="ann")
                    return []
                case _:
                    raise ScriptError(
                        "write `ask drain|cordon|restart|forget TARGET REASON ...` or `ask uncordon TARGET`"
                    )
        except (CannotAct, StoreUnavailable) as error:
            return [f"  refused: {error}"]

    def _happened(self) -> Iterator[str]:
        events = self._world.store.recorded[self._shown :]
        self._shown += len(events)
        for event in events:
            subject = event.subject.removeprefix("replica/")
            yield f"  {event.at - EPOCH:7.1f}s  {event.kind.replace('_', ' '):<17} {subject:<8} {event.text}"

    def _show(self, what: str, words: list[str]) -> str:
        snapshot = self._snapshot()
        match what, words:
            case "status", []:
                return self._texts.status(self._status())
            case "plan", []:
                return self._plan()
            case "alarms", []:
                assert self._world.control is not None
                return "\n".join(f"! {alarm}" for alarm in self._world.control.reconciler.alarms) or "none"
            case "gpus", []:
                return self._texts.table("gpus", gpu_rows(snapshot))
            case "endpoints", []:
                return self._texts.table("endpoints", endpoint_rows(snapshot))
            case "nodes" | "models" | "replicas", []:
                return self._texts.table(what, self._status()[what])
            case "explain", [name] if name in snapshot.catalog.models:
                return self._texts.explanation(explained(explain(snapshot, ModelName(name)), snapshot.now))
            case "if", supposition:
                try:
                    shown = preview(
                        Accepted(snapshot.catalog, ()), snapshot.catalog, snapshot, (" ".join(supposition),)
                    )
                except CannotSuppose as error:
                    raise ScriptError(str(error)) from error
                return self._texts.plan(as_json(shown))
            case _:
                raise ScriptError(
                    f"cannot show {' '.join([what, *words])}; `llmgw sim --words` lists what can be shown"
                )

    def _snapshot(self) -> Snapshot:
        control = self._world.control
        snapshot = control.snapshot() if control is not None else None
        if snapshot is None:
            raise ScriptError("there is nothing to show before `control start` and a valid commit")
        return snapshot

    def _plan(self) -> str:
        assert self._world.control is not None
        last = self._world.control.reconciler.last
        if last is None:
            return "nothing was planned yet"
        todo = [f"{one.verb} {one.replica} on {one.node}: {one.why}" for one in last.actions]
        held = [f"held: {one.subject}, {one.what}, waits for {one.waits_for}" for one in last.holds]
        return "\n".join([*todo, *held]) or "nothing to do"

    def _status(self) -> dict[str, Any]:
        world = self._world
        control = world.control
        assert control is not None
        epoch = control.leadership.epoch
        workers = tuple(worker.number for worker in world.gateway.workers)
        alarms = tuple(alarm for alarm in (control.leadership.trouble, *control.reconciler.alarms) if alarm)
        said = Said("sim", 1, "memory", "http://gateway/v1", "-", epoch is not None, epoch, workers, alarms)
        state, last = control.catalogs.state.value, control.reconciler.last
        return status(said, state, control.snapshot(), last, world.clock.now())


def _change_card(machine: Machine, index: int, how: list[str]) -> None:
    card = machine.card(index)
    match how:
        case ["well"]:
            machine.sick.pop(card, None)
        case ["gone"]:
            machine.fallen.add(card)
        case ["back"]:
            machine.fallen.discard(card)
        case [_, *_]:
            machine.sick[card] = " ".join(how).replace("xid", "XID")
        case _:
            raise ScriptError("write `gpu NODE INDEX xid 79`, `… well`, `… gone` or `… back`")
