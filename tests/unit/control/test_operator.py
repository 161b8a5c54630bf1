"""The operators' part of the admin API over its socket, asked as the commands ask it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.cli import acts as acting
from llmgw.cli import explaining
from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.cli.tables import Asked, show_table
from llmgw.control.acts import Acts, check_forgettable
from llmgw.control.operator import OperatorApi
from llmgw.fleet.usage import Active
from llmgw.plan.snapshot import Suspension
from llmgw.ports.sinks import Event
from llmgw.sim.store import FakeStore
from tests.builders import Desk, cordoned, model, node
from tests.unit.cli.fleets import shown


class Place:
    """A desk behind the API."""

    def __init__(self, socket: str) -> None:
        self.desk = Desk.of(node("a"), node("b"), cordoned("c"), model("m", 2), model("n", 0))
        self.desk.settle()
        self.store = FakeStore(self)
        self.acts = Acts(self.store, self.store, self)
        self.why_not = ""
        self.wakes = 0
        self.socket = socket
        self.forgotten: list[tuple[str, str, str]] = []
        self.api = OperatorApi(
            self.acts, self.store, self, self.desk.snapshot, lambda: self.why_not, self.wake, self.forget
        )

    def forget(self, name: NodeName, by: str, reason: str) -> tuple[ReplicaId, ...]:
        check_forgettable(self.desk.snapshot(), name)
        self.forgotten.append((name, by, reason))
        return (ReplicaId("m-1-0"),)

    def now(self) -> Instant:
        return self.desk.now

    def wake(self) -> None:
        self.wakes += 1
        self.desk.acts = self.acts.current or ()

    async def status(self, _: web.Request) -> web.Response:
        """Answer `GET /v1/status`, after a round in which all nodes obey."""
        last = self.desk.plan()
        self.desk.obey()
        return web.json_response(shown(self.desk, last))

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await asyncio.to_thread(ask, self.socket, method, path, body)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    found = Place(str(tmp_path / "admin.sock"))
    await found.acts.load()
    app = web.Application()
    found.api.add_to(app)
    app.router.add_get("/v1/status", found.status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, found.socket).start()
    yield found
    await runner.cleanup()


async def test_an_act_is_asked_for_shown_and_taken_back(place: Place) -> None:
    body = {"kind": "drain", "target": "node/a", "reason": "new memory", "until": "2h", "by": "ann"}
    expected = {"kind": "drain", "target": "node/a", "reason": "new memory", "by": "ann", "age": 0.0, "ends_in": 7200.0}
    assert await place.ask("POST", "/v1/acts", body) == {"acts": [expected]}
    assert (await place.ask("GET", "/v1/acts"))["acts"] == [expected]
    assert (place.wakes, [act.target for act in place.store.acts]) == (1, ["node/a"])
    await place.ask("DELETE", "/v1/acts?target=node/a")
    assert (place.wakes, place.store.acts) == (2, ())


async def refused(asking: Awaitable[object]) -> str:
    with pytest.raises(Failed) as error:
        await asking
    return str(error.value)


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("DELETE", "/v1/acts?target=node/c", None, "node/c is cordoned by its file (new memory); remove"),
        ("DELETE", "/v1/acts?target=node/a", None, "nothing was asked for of 'node/a'"),
        ("POST", "/v1/acts", {"kind": "drain", "target": "node/zz", "reason": "r"}, "there is no node 'zz'"),
        ("POST", "/v1/forget", {"node": "a", "reason": "burnt"}, "node/a is in the cluster directory; remove its file"),
        ("POST", "/v1/forget", {"node": "zz", "reason": "burnt"}, "no node 'zz' is leaving; these are: none"),
        ("POST", "/v1/forget", {"node": "a"}, "say why, for whoever reads it later: llmgw forget node/a --reason"),
        ("GET", "/v1/explain?model=zz", None, "there is no model 'zz'; there are: m, n"),
        ("GET", "/v1/events?limit=0", None, "limit is a whole number from 1 to 10000"),
        ("GET", "/v1/events?since=ever", None, "--since 'ever' is not understood; write 2h"),
    ],
)
async def test_what_is_refused_says_what_to_do(place: Place, method, path, body, said) -> None:
    assert (await refused(place.ask(method, path, body))).startswith(said)


async def test_a_dead_node_is_given_up_and_what_it_may_still_run_is_said(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.desk.want(node("b"), cordoned("c"), model("m", 2), model("n", 0))
    assert "node/a answers: it is forgotten by itself" in await refused(
        place.ask("POST", "/v1/forget", {"node": "a", "reason": "burnt"})
    )
    place.desk.lose("a")
    out = await run(lambda: acting.forget_target("node/a", "burnt", place.socket, as_json=False), capsys)
    assert out.splitlines()[0] == "node/a is forgotten (burnt)"
    assert "may these engines, unused: m-1-0" in out
    assert [(name, reason) for name, _, reason in place.forgotten] == [("a", "burnt")]
    place.why_not = "this server does not lead; ask the one that does (x)"
    assert await refused(place.ask("POST", "/v1/forget", {"node": "a", "reason": "burnt"})) == place.why_not
    for target, reason in (("gpu/x", "burnt"), ("node/a", "")):
        with pytest.raises(WrongUsage):
            acting.forget_target(target, reason, place.socket, as_json=False)


async def test_without_the_lead_or_the_store_nothing_is_taken(place: Place) -> None:
    body = {"kind": "drain", "target": "node/a", "reason": "r"}
    place.why_not = "this server does not lead; ask the one that does (x)"
    assert await refused(place.ask("POST", "/v1/acts", body)) == place.why_not
    assert await refused(place.ask("DELETE", "/v1/acts?target=node/a")) == place.why_not
    place.why_not, place.store.available = "", False
    assert "the store cannot be used now: the database does not answer; whether it was kept" in await refused(
        place.ask("POST", "/v1/acts", body)
    )
    assert place.wakes == 0


async def test_events_are_read_with_limit_age_and_subject(place: Place) -> None:
    for at, subject in ((100.0, "replica/m-1-0"), (place.now() - 60, "replica/m-1-1"), (place.now(), "node/a")):
        place.store.record(Event(Instant(at), "start", subject, "2 wanted", "r1#1"))
    subjects = [one["subject"] for one in (await place.ask("GET", "/v1/events?since=2m"))["events"]]
    assert subjects == ["node/a", "replica/m-1-1"]
    newest = (await place.ask("GET", "/v1/events?subject=model/m&limit=1"))["events"]
    assert [(one["subject"], one["age"], one["cause"]) for one in newest] == [("replica/m-1-1", 60.0, "r1#1")]


Run = Callable[[], None]


async def run(what: Run, capsys: pytest.CaptureFixture[str]) -> str:
    await asyncio.to_thread(what)
    return capsys.readouterr().out


async def test_get_prints_tables_and_json(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    out = await run(lambda: show_table(Asked("endpoints", filters=("model=m",)), place.socket), capsys)
    assert [line.split()[0] for line in out.splitlines()] == ["ENDPOINT", "m-1-0", "m-1-1"]
    out = await run(lambda: show_table(Asked("models", "json"), place.socket), capsys)
    assert [one["name"] for one in json.loads(out)] == ["m", "n"]
    out = await run(lambda: show_table(Asked("gpus"), place.socket), capsys)
    assert out == "no gpus\n"


async def test_explain_prints_a_model(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    out = await run(lambda: explaining.show_explanation("model/m", place.socket, as_json=False), capsys)
    assert out.splitlines()[0] == "model/m: 2 of 2 replicas serve"


async def test_a_drain_is_waited_for_with_what_it_waits_for(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    acting.LOOK_AGAIN = 0.01
    asked = lambda: acting.act("drain", "node/a", "new memory", "", place.socket, as_json=False)  # noqa: E731
    assert (await run(asked, capsys)).startswith("drain node/a: new memory (0s ago by ")
    out = await run(lambda: acting.wait_drained("node/a", 20.0, place.socket), capsys)
    lines = out.splitlines()
    assert lines[0].startswith("0 of 1 replicas have left node/a; still there: m-1-0 (")
    assert lines[-1] == "node/a is drained, 1 replica(s) left it"


async def test_a_drain_that_is_not_done_in_time_ends_with_5_and_goes_on(place: Place) -> None:
    place.desk.use("m-1-0", Active(1))
    await asyncio.to_thread(acting.act, "drain", "replica/m-1-0", "r", "", place.socket, as_json=False)
    with pytest.raises(typer.Exit) as end:
        await asyncio.to_thread(acting.wait_drained, "replica/m-1-0", 0.2, place.socket)
    assert end.value.exit_code == acting.NOT_DONE


async def test_what_is_asked_while_suspended_says_that_nothing_moves(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    now = place.desk.now
    for suspended in (None, Suspension("switch works", "ann", now, Instant(now + 60))):
        place.desk.suspended = suspended
        for kind, target in (("drain", "node/a"), ("cordon", "node/b"), ("restart", "model/m")):
            await asyncio.to_thread(acting.act, kind, target, "r", "", place.socket, as_json=False)
            said = capsys.readouterr().out
            assert ("nothing moves until `llmgw resume`" in said) == (suspended is not None), (kind, said)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "drain", "target": "local", "reason": "r"},
        {"kind": "drain", "target": "model/m", "reason": "r"},
        {"kind": "cordon", "target": "node/a", "reason": "r", "until": "yesterday"},
        {"kind": "cordon", "target": "node/a", "reason": "r", "until": "1970-01-01T00:00Z"},
    ],
)
async def test_what_cannot_be_understood_is_wrong_usage(place: Place, body: dict[str, Any]) -> None:
    with pytest.raises(WrongUsage):
        await place.ask("POST", "/v1/acts", body)


async def test_texts_of_an_act_are_made_fit_to_be_shown(place: Place) -> None:
    body = {"kind": "drain", "target": "node/a", "reason": "a\x1b[2J\nb\ud83d", "by": "\x1bann"}
    acts = (await place.ask("POST", "/v1/acts", body))["acts"]
    assert (acts[0]["reason"], acts[0]["by"]) == ("a\ufffd[2J\ufffdb\ufffd", "\ufffdann")
