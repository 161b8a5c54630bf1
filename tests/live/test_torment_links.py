"""The way to a node that freezes, is cut in the middle of a word, or loses its hop; `Witness` says what must hold after."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.live.cutter import Cutter
from tests.live.lab import Lab, fake_yaml, model_yaml
from tests.live.sshd import Sshd, tunnels
from tests.live.test_skeleton import Stream
from tests.live.test_ssh_faults import QUICK, _session, pinned, whole
from tests.live.test_torment import other
from tests.live.witness import OtherAgent, Witness, answers

__all__ = ["other"]

LONG = ("--chunks", "170", "--chunk-interval", "0.1")


@pytest.fixture
def sshd(lab: Lab) -> Sshd:
    (lab.cluster / "nodes/local.yaml").unlink()
    return Sshd(lab)


@pytest.fixture
def witness(lab: Lab, other: OtherAgent) -> Iterator[Witness]:
    witness = Witness(lab, other)
    yield witness
    witness.close()


def begin(lab: Lab, node: str, *flags: str, control: str = "") -> None:
    """Serve `m` by real llama.cpp and `slow` by a fake engine, on one node over SSH."""
    lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + control)
    lab.write("nodes/far.yaml", node)
    lab.write("models/m.yaml", model_yaml("m"))
    lab.write("models/slow.yaml", fake_yaml("slow", *flags))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m") and lab.ready("slow"), "the models")
    lab.until(lambda: answers(lab, "m"), "the way")


def test_a_frozen_connection_of_reports_holds_up_no_stream(lab: Lab, sshd: Sshd, witness: Witness) -> None:
    begin(lab, pinned(sshd, lab), *LONG, control=QUICK)
    before = lab.pids()
    stream = Stream(lab, "slow")
    frozen = sshd.session_of(lab.server.pid)
    os.kill(frozen, signal.SIGSTOP)
    try:
        lab.until(lambda: lab.node()["state"] == "unreachable", "the silence to be noticed")
        assert answers(lab, "m"), "the tunnel has a client of its own"
        lab.until(lambda: lab.node()["state"] == "reporting", "another connection beside the frozen one")
        assert _session(sshd, lab.server.pid) not in (None, frozen)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert stream.error is None
    witness.check(m=1, slow=1)
    assert whole(stream)
    assert lab.pids() == before


def test_a_tunnel_that_freezes_and_thaws_loses_no_token(lab: Lab, sshd: Sshd, witness: Witness) -> None:
    begin(lab, pinned(sshd, lab), "--chunks", "60", "--chunk-interval", "0.05")
    before = lab.pids()
    frozen = sshd.session_of(tunnels(lab)[0])
    stream = Stream(lab, "slow")
    os.kill(frozen, signal.SIGSTOP)
    try:
        time.sleep(4)  # longer than the stream would take: nothing is to happen
        so_far = len(stream.chunks)
        assert so_far < 60
        assert stream.error is None
        assert lab.node()["state"] == "reporting"
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert whole(stream)
    assert len(stream.chunks) == 61
    witness.check(m=1, slow=1)
    assert lab.pids() == before


def test_a_report_that_is_cut_in_the_middle_is_told_again(lab: Lab, sshd: Sshd, witness: Witness) -> None:
    cutter = Cutter(sshd.port)
    node = pinned(sshd, lab).replace(f"port: {sshd.port}", f"port: {cutter.port}")
    begin(lab, node, *LONG)
    try:
        before = lab.pids()
        stream = Stream(lab, "slow")
        for number, place in enumerate((1, 100, 700), 1):
            cutter.cut_after(place)
            os.kill(lab.pids()["m-1-0"], signal.SIGKILL)  # the report of this is the next thing that is said
            lab.until(lambda number=number: cutter.cuts == number, "the cut")
            lab.until(lambda number=number: lab.replicas("m")[0]["attempt"] == number + 1, "what was cut, told again")
            assert lab.replicas("m")[0]["last_end"]["code"] == "killed"
            lab.until(lambda: lab.ready("m") and lab.node()["state"] == "reporting", "the model")
        cutter.cut_after(1500, times=4)  # handshakes too are cut, then the next ones
        lab.until(lambda: cutter.cuts == 7, "the cuts")
        lab.until(lambda: lab.node()["state"] == "reporting", "a whole connection")
        witness.check(m=1, slow=1)
        assert stream.error is None
        assert lab.pids()["slow-1-0"] == before["slow-1-0"]
        assert whole(stream)
    finally:
        cutter.close()


def test_a_changed_host_key_is_refused_until_it_is_pinned(lab: Lab, sshd: Sshd, witness: Witness) -> None:
    begin(lab, pinned(sshd, lab))
    before = lab.pids()
    sessions = [sshd.session_of(lab.server.pid), sshd.session_of(tunnels(lab)[0])]
    sshd.stop()
    sshd.process = sshd.start(sshd.key("other"))
    for session in sessions:
        os.kill(session, signal.SIGKILL)
    lab.until(lambda: "pinned" in str(lab.node()["why"]), "the refusal")
    assert "pinned" in lab.llmgw("status").stdout
    assert not answers(lab, "m")
    lab.write("nodes/far.yaml", pinned(sshd, lab))
    lab.commit("its new key")
    witness.check(m=1, slow=1)
    assert lab.pids() == before


def test_a_jump_host_that_dies_and_returns(lab: Lab, sshd: Sshd, witness: Witness) -> None:
    hop = Sshd(lab, "hop")
    hop.authorized.write_text(Path(f"{sshd.identity}.pub").read_text())
    jump = f"""\
  proxy_jump:
    - {{host: 127.0.0.1, port: {hop.port}, user: {hop.user}, host_key: {hop.public(hop.host_key)}}}
"""
    begin(lab, pinned(sshd, lab, extra=jump))
    before = lab.pids()
    for _ in range(2):
        session = hop.session_of(lab.server.pid)
        hop.stop()
        for client in tunnels(lab):
            with suppress(AssertionError, ProcessLookupError, psutil.NoSuchProcess):  # it may be gone by now
                os.kill(hop.session_of(client), signal.SIGKILL)
        os.kill(session, signal.SIGKILL)
        lab.until(lambda: lab.node()["state"] == "unreachable", "the loss")
        lab.until(lambda: str(hop.port) in str(lab.node()["why"]), "the hop to be named")
        lab.until(lambda: not lab.ready("m"), "endpoints without a way to be withdrawn")
        hop.process = hop.start(hop.host_key)
        lab.until(lambda: lab.node()["state"] == "reporting", "the node behind it")
    witness.check(m=1, slow=1)
    assert lab.pids() == before
