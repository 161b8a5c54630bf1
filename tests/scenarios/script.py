"""The small language of the scenario scripts: one command a line, run against the simulated world in virtual time.

    node NAME [cpus N] [pool P] [local]                    write a node down, and put up its machine if there is none
    cordon NAME REASON ... | uncordon NAME | remove node NAME | remove model NAME
    model NAME [replicas N] [cpus N] [memory SIZE] [alias A] [priority N] [args ARG ...]     (args come last)
    commit [SUBJECT ...]         push the directory as it was written down; `commit!` pushes one that is not valid
    control start | control restart | control kill         (a killed one does not give its lease up)
    agent stop NAME | agent start NAME
    lose NAME | find NAME        put a node out of reach, and back
    crash REPLICA                let an engine end
    stream REPLICA | finish      begin a request, end all requests
    step DURATION                let time pass; what happens is shown with its time
    show status | plan

Everything takes exactly the time it takes on average, so that the output says the same on every run and host.
"""

import asyncio
import shlex
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.cli.states import text
from llmgw.control.status import Control as Said
from llmgw.control.status import status
from llmgw.spec.common import Duration
from tests.builders import Object, cluster, model, node
from tests.sim.loop import EPOCH
from tests.sim.world import World

SECONDS: TypeAdapter[float] = TypeAdapter(Duration)
CLUSTER = cluster(
    control={"interval": "5s", "unreachable_after": "10s", "backoff": {"base": "2s", "max": "1m", "give_up_after": 3}},
    router={"timeouts": {"drain": "1m"}},
)


class Script:
    """One run of one script."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes: dict[str, Object] = {}
        self._models: dict[str, Object] = {}
        self._shown = 0
        self._requests: list[int] = []

    async def run(self, lines: list[str]) -> list[str]:
        """Run the commands and return what they show."""
        out: list[str] = []
        for line in lines:
            words = shlex.split(line, comments=True)
            if words:
                shown = [part.rstrip() for part in await self._do(words[0], words[1:])]
                out += [f"> {line.strip()}", *shown]
        return out

    async def _do(self, command: str, words: list[str]) -> list[str]:
        if self._write_down(command, words) or await self._act(command, words):
            return []
        match command, words:
            case "stream", [replica]:
                number = self._world.gateway.begin(ReplicaId(replica))
                return [f"  taken by {replica}"] if number is not None else ["  no engine takes it"]
            case "finish", []:
                for number in list(self._world.gateway.requests):
                    self._world.gateway.finish(number)
                return []
            case "step", [duration]:
                await asyncio.sleep(SECONDS.validate_python(duration))
                return list(self._happened())
            case "show", ["plan"]:
                return self._plan()
            case "show", ["status"]:
                return self._status()
            case _:
                raise ValueError(f"unknown command: {command} {' '.join(words)}")

    def _write_down(self, command: str, words: list[str]) -> bool:
        match command, words:
            case "node", [name, *rest]:
                self._node(name, rest)
            case "model", [name, *rest]:
                self._models[name] = _model(name, rest)
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
                self._world.commit(CLUSTER, *objects, subject=" ".join(subject))
            case _:
                return False
        return True

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
            case "lose", [name]:
                world.lose(name)
            case "find", [name]:
                world.regain(name)
            case "crash", [replica]:
                machine, engine = world.engine(replica)
                machine.end(engine)
            case _:
                return False
        return True

    def _node(self, name: str, words: list[str]) -> None:
        local = "local" in words
        given = _pairs([word for word in words if word != "local"])
        facts: dict[str, Any] = {"cpus": int(given.pop("cpus", "8")), "local": local}
        if NodeName(name) not in self._world.machines:
            self._world.machine(name, **facts)
        self._nodes[name] = node(name, **given, **({"local": True} if local else {}))

    def _happened(self) -> Iterator[str]:
        events = self._world.store.events[self._shown :]
        self._shown += len(events)
        for event in events:
            subject = event.subject.removeprefix("replica/")
            yield f"  {event.at - EPOCH:7.1f}s  {event.kind.replace('_', ' '):<17} {subject:<8} {event.text}"

    def _plan(self) -> list[str]:
        assert self._world.control is not None
        last = self._world.control.reconciler.last
        if last is None:
            return ["  nothing was planned yet"]
        todo = [f"  {one.verb} {one.replica} on {one.node}: {one.why}" for one in last.actions]
        held = [f"  held: {one.subject}, {one.what}, waits for {one.waits_for}" for one in last.holds]
        return [*todo, *held] or ["  nothing to do"]

    def _status(self) -> list[str]:
        world = self._world
        control = world.control
        assert control is not None
        epoch = control.leadership.epoch
        workers = tuple(worker.number for worker in world.gateway.workers)
        alarms = control.reconciler.alarms
        said = Said("sim", 1, "memory", "http://gateway/v1", "-", epoch is not None, epoch, workers, alarms)
        state, last = control.catalogs.state.value, control.reconciler.last
        shown = status(said, state, control.snapshot(), last, world.clock.now())
        return [f"  {line}" for line in text(shown).splitlines()]


def _model(name: str, words: list[str]) -> Object:
    args: list[str] = []
    if "args" in words:
        args = words[words.index("args") + 1 :]
        words = words[: words.index("args")]
    given = _pairs(words)
    profile = {key: given.pop(key) for key in ("memory", "pool", "start_timeout") if key in given}
    cpus = {"cpus": int(given.pop("cpus"))} if "cpus" in given else {}
    fields: dict[str, Any] = {"aliases": [given.pop("alias")]} if "alias" in given else {}
    fields["priority"] = int(given.pop("priority", "0"))
    replicas = int(given.pop("replicas", "1"))
    assert not given, f"unknown words for a model: {given}"
    return model(name, replicas, *args, profile={**profile, **cpus}, **fields)


def _pairs(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))
