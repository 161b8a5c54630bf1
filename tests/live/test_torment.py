"""Agents, servers and engines that are killed, starved and confused, one test a case; `Witness` says what must hold after."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.clock import FakeClock
from tests.live.agent_node import running_node
from tests.live.lab import ENGINE, Lab, alive, fake_yaml, model_yaml, stolen
from tests.live.test_broken import _switch
from tests.live.test_skeleton import Stream
from tests.live.witness import OtherAgent, Witness, answers, engines, kill, secrets_of, tagged

SLOW = ("--chunks", "60", "--chunk-interval", "0.1")
DAY = 86400


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherAgent]:
    with running_node(tmp_path_factory.mktemp("other")) as node:
        yield OtherAgent(node)


@pytest.fixture
def witness(lab: Lab, other: OtherAgent) -> Iterator[Witness]:
    witness = Witness(lab, other)
    try:
        yield witness
    finally:
        witness.close()
        if (lab.root / "ag/id").exists():
            secrets_of(lab).unlink(missing_ok=True)


def begin(lab: Lab, **models: str) -> None:
    """Start agent and server and have these models served."""
    for name, text in models.items():
        lab.write(f"models/{name}.yaml", text)
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: all(lab.ready(name) for name in models), "the models")


def replica(lab: Lab, model: str = "m") -> dict[str, Any]:
    return next(iter(lab.replicas(model)), {})


def whole(stream: Stream) -> bool:
    stream.end()
    return (stream.error, stream.finish) == (None, "stop")


def commanded(text: str, command: list[str]) -> str:
    """Return the model with another command."""
    line = next(line for line in text.splitlines() if "command:" in line)
    return text.replace(line, f"    command: {json.dumps(command)}")


@pytest.mark.parametrize("order", ["agent first", "server first"])
def test_agent_and_server_killed_at_once(lab: Lab, witness: Witness, order: str) -> None:
    begin(lab, m=model_yaml("m"), slow=fake_yaml("slow", *SLOW))
    before = lab.pids()
    stream = Stream(lab, "slow")
    kill(lab.agent, lab.server)
    assert answers(lab, "m"), "engine and gateway need neither"
    if order == "agent first":
        lab.start_agent()
        lab.start_server()
    else:
        lab.start_server()
        lab.until(lambda: "no agent" in str(lab.node()["why"]), "the reason")
        lab.start_agent()
    witness.check(m=1, slow=1)
    assert whole(stream)
    assert lab.pids() == before
    assert lab.node()["adoptions"]["adopted"] == 2
    assert [one["attempt"] for one in lab.status()["replicas"]] == [1, 1]


def test_a_killed_agent_is_named_while_its_engines_serve(lab: Lab, witness: Witness) -> None:
    begin(lab, m=model_yaml("m"), slow=fake_yaml("slow", *SLOW))
    before = lab.pids()
    stream = Stream(lab, "slow")
    kill(lab.agent)
    lab.until(lambda: "no agent listens" in str(lab.node()["why"]), "the reason")
    assert lab.node()["state"] == "unreachable"
    assert "node local is unreachable: no agent listens" in lab.llmgw("status").stdout
    lab.start_agent()
    witness.check(m=1, slow=1)
    assert whole(stream)
    assert lab.pids() == before


def test_an_agent_killed_again_and_again_during_an_engines_start_starts_it_once(lab: Lab, witness: Witness) -> None:
    lab.write("models/m.yaml", fake_yaml("m", "--load-seconds", "6"))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    first = lab.until(lambda: engines(lab), "the engine's process")
    kill(lab.agent)  # at once, perhaps before it was recorded
    for pause in (0.2, 0.4, 0.8, 1.2):
        lab.agent = lab.start_agent()
        time.sleep(pause)  # a moment of the start that nothing marks
        kill(lab.agent)
        assert engines(lab) == first
    lab.agent = lab.start_agent()
    lab.until(lambda: replica(lab).get("phase") == "starting", "the start to be known")
    witness.check(m=1)
    assert engines(lab) == first
    assert replica(lab)["attempt"] == 1


def test_an_agent_killed_while_it_stops_an_engine_goes_on_with_the_stop(lab: Lab, witness: Witness) -> None:
    text = fake_yaml("m", "--ignore-sigterm")
    begin(lab, m=text, keep=fake_yaml("keep"))
    doomed, kept = lab.pids()["m-1-0"], lab.pids()["keep-1-0"]
    lab.write("models/m.yaml", text.replace("replicas: 1", "replicas: 0"))
    lab.commit()
    lab.until(lambda: replica(lab).get("reason_code") == "asked_to_end", "the stop")
    kill(lab.agent)
    assert alive(doomed)
    lab.agent = lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent")
    assert replica(lab)["reason_code"] == "asked_to_end", "the stop was begun again"
    assert "killed if it has not ended after 10 s" in replica(lab)["reason"]
    _switch(replica(lab)["port"], '{"exit_after": 0.5, "exit_code": 0}')  # saves those seconds
    witness.check(keep=1)
    assert not alive(doomed)
    assert lab.pids() == {"keep-1-0": kept}


def test_a_server_killed_in_the_middle_of_a_roll_out_goes_on_with_it(lab: Lab, witness: Witness) -> None:
    lab.write("models/m.yaml", fake_yaml("m", replicas=2))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m", 2), "two replicas")
    before = set(lab.pids().values())
    lab.write("models/m.yaml", fake_yaml("m", "--load-seconds", "1.5", replicas=2))
    lab.commit()
    lab.until(lambda: len(engines(lab)) == 3, "the first new one")
    kill(lab.server)
    assert answers(lab, "m")
    lab.server = lab.start_server()
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(json.loads((lab.root / "ag/order.json").read_text())["shards"]))
        assert answers(lab, "m")
        return lab.ready("m", 2) and before.isdisjoint(lab.pids().values())

    lab.until(done, "both to be new")
    assert most == 3, "two and one more are ordered; what is not ordered any more may still be about to end"
    witness.check(m=2)


def test_an_agent_whose_socket_was_removed_listens_again(lab: Lab, witness: Witness) -> None:
    begin(lab, m=fake_yaml("m"))
    before = lab.pids()
    (lab.root / "a.sock").unlink()
    lab.until((lab.root / "a.sock").is_socket, "another socket")
    assert lab.node()["state"] == "reporting", "the connection that there was is kept"
    kill(lab.server)
    lab.server = lab.start_server()
    witness.check(m=1)
    assert lab.pids() == before
    assert "the socket was removed" in lab.log("agent.log")


def test_a_recorded_pid_that_a_stranger_has_now_is_left_alone(lab: Lab, witness: Witness) -> None:
    begin(lab, m=fake_yaml("m"))
    engine = lab.pids()["m-1-0"]
    kill(lab.agent)
    os.kill(engine, signal.SIGKILL)
    record = lab.root / "ag/shards/m-1-0.s0.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "pid": witness.strangers[0].pid}))
    lab.agent = lab.start_agent()
    witness.check(m=1)
    assert replica(lab)["last_end"]["code"] == "ended_unseen"
    assert "belongs to another process now" in lab.log("agent.log")


def test_an_agent_that_can_open_nothing_takes_nothing_for_gone(lab: Lab, witness: Witness) -> None:
    begin(lab, m=fake_yaml("m"), n=model_yaml("n"))
    before = lab.pids()
    limit = resource.prlimit(lab.agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(lab.agent.pid, resource.RLIMIT_NOFILE, (3, limit[1]))
    os.kill(before["m-1-0"], signal.SIGKILL)
    lab.until(lambda: replica(lab).get("reason_code") == "cannot_kill", "what cannot be verified to be said")
    assert answers(lab, "n")
    assert lab.agent.poll() is None
    resource.prlimit(lab.agent.pid, resource.RLIMIT_NOFILE, limit)
    witness.check(m=1, n=1)
    assert lab.pids()["n-1-0"] == before["n-1-0"]


@pytest.fixture
def tag() -> Iterator[str]:
    """Yield the argument of the sleepers of one test. They carry no mark: when the lab is gone, only this finds them."""
    one = f"4000.{os.getpid()}"
    yield one
    for pid in tagged(one):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("watched", [True, False])
def test_grandchildren_that_left_session_and_environment_go_with_their_engine(
    tag: str, lab: Lab, witness: Witness, watched: bool
) -> None:
    if not _cgroups():
        pytest.skip("without cgroups nothing tells such a process from a stranger's")
    shell = f'env -i setsid sleep {tag} & exec {sys.executable} {ENGINE} "$@"'
    begin(lab, m=commanded(fake_yaml("m"), ["sh", "-c", shell, "sh"]))
    (grandchild,) = tagged(tag)
    engine = lab.pids()["m-1-0"]
    if not watched:
        kill(lab.agent)
    os.kill(engine, signal.SIGKILL)
    if not watched:
        assert alive(grandchild)
        lab.agent = lab.start_agent()
    lab.until(lambda: replica(lab).get("attempt") == 2, "the next attempt")
    witness.check(m=1)
    assert not alive(grandchild)
    assert len(tagged(tag)) == 1, "that of the new engine alone"
    end = replica(lab)["last_end"]
    assert end["code"] == ("killed" if watched else "ended_unseen")
    assert end["text"] in lab.llmgw("status").stdout


def _cgroups() -> bool:
    return any(Path(path, "cgroup.procs").exists() for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"))


def test_a_port_stolen_while_its_engine_restarts(lab: Lab, witness: Witness) -> None:
    begin(lab, m=fake_yaml("m"))
    assert replica(lab)["port"] == witness.first + 2, "the first that no stranger has"
    engine, port = lab.pids()["m-1-0"], replica(lab)["port"]
    os.kill(engine, signal.SIGKILL)
    with stolen(lab, port):
        who = f"port {port} is taken by pid {os.getpid()} ("
        lab.until(lambda: who in str(replica(lab).get("reason")) or replica(lab).get("port") != port, "the thief")
        lab.until(lambda: replica(lab).get("port") != port, "another port")
        witness.check(m=1)
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            pass
    assert not alive(engine)
    assert replica(lab)["last_end"]["code"] == "killed"


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """A file system of 2 MiB as the agent's state directory."""
    place = lab.root / "ag"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "lab", str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        reason = f"cannot mount a tmpfs: {mounted.stderr.strip()}; run the tests as root"
        if os.environ.get("LLMGW_NO_SKIP") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield place
    finally:
        lab.agent.terminate()
        lab.agent.wait()
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no byte free."""
    path = place / "filling"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def test_a_full_disk_stops_no_engine_obeys_no_order_says_so_and_heals(
    lab: Lab, witness: Witness, small_disk: Path
) -> None:
    begin(lab, m=model_yaml("m"), n=fake_yaml("n"))
    before = lab.pids()
    filling = fill(small_disk)
    lab.write("models/new.yaml", fake_yaml("new"))
    lab.commit()
    lab.until(lambda: "cannot store orders" in str(lab.node().get("complaint")), "the complaint")
    assert "No space left" in lab.llmgw("status").stdout
    os.kill(before["n-1-0"], signal.SIGKILL)
    lab.until(lambda: replica(lab, "n").get("reason_code") == "state_unwritable", "the reason")
    assert "No space left" in replica(lab, "n")["reason"]
    kill(lab.agent)
    lab.agent = lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent to be back")
    assert answers(lab, "m")
    assert lab.pids()["m-1-0"] == before["m-1-0"]
    witness.check_strangers()
    filling.unlink()
    witness.check(m=1, n=1, new=1)
    assert lab.pids()["m-1-0"] == before["m-1-0"]
    assert lab.node()["complaint"] is None


def test_a_clock_that_jumps_moves_nothing(lab: Lab, witness: Witness) -> None:
    clock = FakeClock(lab.root)
    lab.environment.update(clock.environment)
    begin(lab, m=model_yaml("m"), slow=fake_yaml("slow", *SLOW))
    epoch = lab.status()["control"]["epoch"]
    stream = Stream(lab, "slow")
    ages = [one["age"] for one in lab.status()["replicas"]]
    for jump in (DAY, -DAY, 400 * DAY):
        clock.jump(jump)
        engine = lab.pids()["m-1-0"]
        os.kill(engine, signal.SIGKILL)
        restarted = "a restart without a wait"
        lab.until(lambda one=engine: lab.pids()["m-1-0"] not in (one, None) and lab.ready("m"), restarted)
        assert lab.node()["state"] == "reporting"
    assert all(one["age"] < ages[0] + 120 for one in lab.status()["replicas"])
    assert whole(stream)
    before = lab.pids()
    kill(lab.agent)
    clock.jump(-400 * DAY)
    lab.agent = lab.start_agent()
    lab.until(lambda: lab.node()["state"] == "reporting", "the agent to be back")
    assert lab.status()["control"]["epoch"] == epoch, "nobody else led"
    assert lab.pids() == before
    kill(lab.server)
    clock.jump(-800 * DAY)
    lab.server = lab.start_server()
    witness.check(m=1, slow=1)
    assert lab.pids() == before
    assert lab.node()["adoptions"]["adopted"] == 2


def test_an_engines_secret_is_in_its_environment_and_in_memory_alone(lab: Lab, witness: Witness) -> None:
    value = "hunter-two-and-twenty"
    lab.environment["LLMGW_SECRET_TOKEN"] = value
    begin(lab, m=model_yaml("m", extra="    env:\n      HF_TOKEN: {secret: TOKEN}\n"))
    engine = lab.pids()["m-1-0"]
    lab.llmgw("logs", "m-1-0")
    kill(lab.agent, lab.server)
    lab.environment.pop("LLMGW_SECRET_TOKEN")  # of what is started from here on, only memory can know it
    lab.agent = lab.start_agent()
    os.kill(engine, signal.SIGKILL)
    again = lab.until(lambda: engines(lab) not in ([], [engine]) and engines(lab), "the engine, with nobody connected")
    assert f"HF_TOKEN={value}".encode() in Path(f"/proc/{again[0]}/environ").read_bytes()
    assert stat_mode(secrets_of(lab)) == 0o600
    lab.environment["LLMGW_SECRET_TOKEN"] = value
    lab.server = lab.start_server()
    witness.check(m=1)
    shown = [
        json.dumps(lab.status()),
        json.dumps(lab.plan()[1]),
        *(lab.llmgw(*command).stdout for command in (("status",), ("logs", "m-1-0"), ("plan", str(lab.cluster)))),
    ]
    assert not [text for text in shown if value in text]
    for path in lab.root.rglob("*"):
        assert not path.is_file() or value.encode() not in path.read_bytes(), path
    for process in psutil.process_iter(["cmdline"]):
        assert value not in " ".join(process.info["cmdline"] or [])
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit("without the secret")
    lab.until(lambda: not secrets_of(lab).exists(), "the value to be forgotten when nothing uses it")
    witness.check(m=1)


def stat_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("seed", [2])
def test_a_storm_of_kills_ends_with_what_is_wanted(lab: Lab, witness: Witness, seed: int) -> None:
    rng = random.Random(seed)
    begin(lab, m=fake_yaml("m", "--spawn-child"), n=model_yaml("n"), o=fake_yaml("o"))
    did: list[str] = []
    until = time.monotonic() + 8
    while time.monotonic() < until:
        what = rng.choice(["agent", "server", "engine", "engine", "both", "change"])
        did.append(what)
        if what in ("agent", "both"):
            kill(lab.agent)
        if what in ("server", "both"):
            kill(lab.server)
        if what == "engine" and engines(lab):
            os.kill(rng.choice(engines(lab)), signal.SIGKILL)
        if what == "change":
            lab.write("models/o.yaml", fake_yaml("o", "--load-seconds", str(len(did) / 10)))
            lab.commit()
        time.sleep(rng.random() * 0.4)  # a moment that nothing marks
        if lab.agent.poll() is not None:
            lab.agent = lab.start_agent()
        if lab.server.poll() is not None:
            lab.server = lab.start_server()
    print(f"seed {seed}: {' '.join(did)}")
    witness.check(m=1, n=1, o=1)
