"""Two `llmgw server` on one PostgreSQL, two agents with real llama.cpp, clients of both, and a leader that has trouble.

Each time: no stream breaks at the other gateway, no engine is started or stopped, and a commit takes effect soon after.
The lease is a short one; all else is as it is in use.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from llmgw.cli.client import ask
from llmgw.cli.outcomes import Failed
from tests.live.conftest import program
from tests.live.lab import Lab, free_port, model_yaml
from tests.postgres import Postgres

LEASE = 3.0
SOON = 2 * LEASE + 6.0
"""Seconds until another leads and has carried out a commit: a lease, a renewal, the looks at source and store."""
NODE = """\
apiVersion: llmgw/v1
kind: Node
name: {name}
local: true
agent_socket: {socket}
"""


class Clients:
    """A client of one gateway: one stream after the other, each read to its end, until it is told to stop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.errors: list[str] = []
        self.done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._stream()
                self.done += 1
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.errors.append(f"{time.time():.1f}: {error!r}")
                self._stop.wait(0.2)

    def _stream(self) -> None:
        messages = [{"role": "user", "content": "tell me a story"}]
        body = {"model": "m", "stream": True, "max_tokens": 150, "messages": messages}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        assert response.status == 200, text[:300]
        assert text.rstrip().endswith("data: [DONE]"), text[-300:]


class Side:
    """One server of the pair, known to the database by a name of its own."""

    def __init__(self, pair: "Pair", name: str) -> None:
        self.pair, self.name = pair, name
        self.port = free_port()
        self.admin = pair.lab.root / name / "admin.sock"
        pair.postgres.execute("postgres", f"create role {name} login superuser")
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        lab = self.pair.lab
        store = self.pair.url.replace("postgres@", f"{self.name}@")
        self.process = lab.spawn(
            "server", str(lab.cluster), "--listen", f"127.0.0.1:{self.port}", "--drain", "3", "--store", store,
            log=f"{self.name}.log", env={"LLMGW_STATE_DIR": str(lab.root / self.name), "LLMGW_LEASE": str(LEASE)},
        )  # fmt: skip
        lab.until(self.answers, f"server {self.name} to answer", self.process)

    def answers(self) -> bool:
        try:
            return bool(self.status())
        except Failed:
            return False

    def status(self) -> dict[str, Any]:
        return ask(str(self.admin), "GET", "/v1/status")

    def serves(self, count: int) -> bool:
        """Whether its gateway has so many replicas of the model, and every worker of it knows."""
        status = self.status()
        ready = [one for one in status["replicas"] if one["phase"] == "ready"]
        return len(ready) == len(status["replicas"]) == count and status["control"]["workers_current"]

    @property
    def leads(self) -> bool:
        return bool(self.status()["control"]["leading"])


class Pair:
    """Two servers, two agents, one database."""

    def __init__(self, lab: Lab, postgres: Postgres) -> None:
        self.lab, self.postgres = lab, postgres
        self.url = postgres.database()
        self.replicas = 2
        (lab.cluster / "nodes/local.yaml").unlink()
        for name in ("a", "b"):
            socket = lab.root / f"{name}.sock"
            lab.write(f"nodes/{name}.yaml", NODE.format(name=name, socket=socket))
            lab.spawn(
                "agent", "--socket", str(socket), "--state-dir", str(lab.root / f"ag{name}"),
                "--weights-dir", str(lab.weights), log=f"{name}.log",
            )  # fmt: skip
            lab.until(socket.is_socket, f"agent {name} to listen")
        lab.write("models/m.yaml", model_yaml("m", replicas=2))
        lab.commit("two")
        self.sides = (Side(self, "s1"), Side(self, "s2"))
        for side in self.sides:
            side.start()
        self.until_both_serve()

    def until_both_serve(self) -> None:
        for side in self.sides:
            self.lab.until(lambda side=side: side.serves(self.replicas), f"{side.name} to serve {self.replicas}")

    def leader(self) -> Side:
        return self.lab.until(
            lambda: next((side for side in self.sides if side.answers() and side.leads), None), "a leader"
        )

    def other(self, side: Side) -> Side:
        return self.sides[1] if side is self.sides[0] else self.sides[0]

    def pids(self) -> dict[str, int]:
        rows = next(side for side in self.sides if side.answers()).status()["replicas"]
        return {one["replica"]: one["pid"] for one in rows if one["phase"] == "ready"}

    def commit(self, replicas: int) -> None:
        self.replicas = replicas
        self.lab.write("models/m.yaml", model_yaml("m", replicas=replicas))
        self.revision = self.lab.commit(f"{replicas} of m")

    def until_in_force(self, side: Side) -> None:
        """Wait until a side that leads has planned by the newest commit, which is soon."""
        self.lab.until(
            lambda: side.leads and side.status()["source"]["planned"] == self.revision,
            f"{side.name} to carry out the commit", patience=SOON,
        )  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    program("git")
    lab, postgres = Lab(), Postgres()
    try:
        postgres.start()
        yield Pair(lab, postgres)
    finally:
        lab.close()
        postgres.close()


def says_first(side: Side, text: str) -> bool:
    """Whether the first alarm of a side begins so."""
    alarms = side.status()["control"]["alarms"]
    return bool(alarms) and alarms[0].startswith(text)


@contextlib.contextmanager
def streams(pair: Pair, *spared: Side) -> Iterator[None]:
    """Let clients stream through both gateways; none of them may lose a stream, but for those of a side that is spared."""
    clients = {side.name: Clients(side.port) for side in pair.sides}
    before = pair.pids()
    try:
        yield
        begun = {name: one.done for name, one in clients.items()}
        names = [name for name in clients if name not in [side.name for side in spared]]
        pair.lab.until(lambda: all(clients[name].done > begun[name] for name in names), "another stream of each")
    finally:
        for one in clients.values():
            one.stop()
    after = pair.pids()
    kept = before.keys() & after.keys()
    assert len(kept) == min(len(before), pair.replicas), "more was stopped than the commit took away"
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}, "an engine was started anew"
    assert {name: clients[name].errors for name in names} == {name: [] for name in names}


def test_a_server_that_starts_while_its_database_is_away_serves_and_leads_when_it_is_back(lab: Lab) -> None:
    postgres = Postgres()
    try:
        postgres.start()
        url = postgres.database()
        postgres.stop()
        lab.write("models/m.yaml", model_yaml("m"))
        lab.commit()
        lab.start_agent()
        lab.start_server("--store", url)
        status = lab.status()
        assert not status["control"]["leading"]
        assert status["control"]["alarms"][0].startswith("the store cannot be used: ")
        shown = lab.llmgw("status").stdout
        assert shown.startswith("! the store cannot be used: "), "it is said before all else"
        postgres.start()
        lab.until(lambda: lab.ready("m"), "the model, once there is a leader")
        assert lab.status()["control"]["epoch"] == 1
    finally:
        postgres.close()


def test_a_leader_that_is_killed_is_replaced_within_a_lease_and_no_stream_of_the_other_breaks(pair: Pair) -> None:
    first = pair.leader()
    second = pair.other(first)
    epoch = first.status()["control"]["epoch"]
    with streams(pair, first):
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        pair.commit(3)
        pair.until_in_force(second)
        pair.lab.until(lambda: second.serves(3), "the third replica")
        first.start()
        pair.until_both_serve()
    status = second.status()
    assert status["control"]["epoch"] == epoch + 1
    assert any("leads with epoch" in alarm for alarm in status["control"]["alarms"])
    shown = pair.lab.llmgw("get", "leader", "--server", str(first.admin), "--json")
    (row,) = json.loads(shown.stdout)
    assert (row["epoch"], row["here"]) == (epoch + 1, False)


def test_a_leader_that_stood_still_finds_another_one_and_obeys(pair: Pair) -> None:
    first = pair.leader()
    second = pair.other(first)
    with streams(pair):
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            pair.commit(2)
            pair.until_in_force(second)
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        pair.lab.until(lambda: not first.leads, "the zombie to notice", patience=SOON)
        pair.until_both_serve()
    assert second.leads
    assert not first.leads


def test_a_leader_that_is_cut_off_from_the_store_steps_down_when_an_agent_obeys_another(pair: Pair) -> None:
    first = pair.leader()
    second = pair.other(first)
    with streams(pair):
        pair.postgres.execute("postgres", f"alter role {first.name} nologin")
        pair.postgres.execute(
            "postgres", f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{first.name}'"
        )
        pair.commit(3)
        pair.until_in_force(second)
        pair.lab.until(lambda: not first.leads, "the one that was cut off to step down", patience=SOON)
        assert says_first(first, "the store cannot be used: ")
        pair.lab.until(lambda: first.serves(3), "the one that was cut off to serve the new replica, too")
        pair.postgres.execute("postgres", f"alter role {first.name} login")
        pair.lab.until(lambda: "store" not in "".join(first.status()["control"]["alarms"]), "the store", patience=SOON)
        pair.until_both_serve()


def test_a_leader_that_is_stopped_politely_gives_way_at_once(pair: Pair) -> None:
    first = pair.leader()
    second = pair.other(first)
    with streams(pair, first):
        begun = time.monotonic()
        first.process.terminate()
        pair.lab.until(lambda: second.leads, "the other one to lead", patience=SOON)
        assert time.monotonic() - begun < LEASE + 1.0, "not after the lease, but at the next look"
        pair.commit(2)
        pair.until_in_force(second)
        first.process.wait(20)
        first.start()
        pair.until_both_serve()


def test_postgresql_may_be_restarted_under_both(pair: Pair) -> None:
    first = pair.leader()
    epoch = first.status()["control"]["epoch"]
    with streams(pair):
        pair.postgres.stop()
        for side in pair.sides:
            pair.lab.until(lambda side=side: says_first(side, "the store cannot be used: "), f"{side.name} to say so")
        assert first.leads, "it is no evidence that another one leads"
        pair.commit(3)
        pair.until_in_force(first)
        pair.lab.until(lambda: first.serves(3), "the third replica")
        pair.postgres.start()
        pair.lab.until(
            lambda: not any("store cannot" in "".join(side.status()["control"]["alarms"]) for side in pair.sides),
            "the store to be used again", patience=SOON,
        )  # fmt: skip
        pair.until_both_serve()
    assert pair.leader().status()["control"]["epoch"] in (epoch, epoch + 1)
    events = ask(str(pair.leader().admin), "GET", "/v1/events?limit=200")["events"]
    assert "store_lost" in [event["kind"] for event in events], "what happened meanwhile was written afterwards"
