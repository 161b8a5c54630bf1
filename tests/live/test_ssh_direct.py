"""`traffic: direct`: a node on a network of its own, whose cable is pulled in the middle of a stream."""

from collections.abc import Iterator

import pytest

from tests.live.lab import Lab, fake_yaml
from tests.live.netns import Network
from tests.live.sshd import Sshd, tunnels
from tests.live.test_skeleton import Stream


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        yield network
    finally:
        network.close()


def test_a_stream_outlives_a_cut_that_the_connection_does_not(network: Network, lab: Lab) -> None:
    sshd = Sshd(lab, netns=network.name, address=network.far)
    (lab.cluster / "nodes/local.yaml").unlink()
    lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + "  unreachable_after: 2s\n")
    node = sshd.node_yaml("far", sshd.public(sshd.host_key), lab.root / "a.sock")
    lab.write("nodes/far.yaml", f"{node}traffic: direct\naddress: {network.far}\n")
    lab.write("models/slow.yaml", fake_yaml("slow", "--chunks", "300", "--chunk-interval", "0.1"))
    lab.commit()
    network.start_agent(lab)
    lab.start_server()
    lab.until(lambda: lab.ready("slow"), "the model")
    assert lab.replicas("slow")[0]["address"].startswith(f"{network.far}:")
    assert not tunnels(lab), "nobody needs one"
    before = lab.pids()
    stream = Stream(lab, "slow")
    network.unplug()
    try:
        lab.until(lambda: lab.node()["state"] == "unreachable", "the silence to be noticed")
        assert lab.replicas("slow")[0]["address"] is not None, "its address needs no connection"
        assert stream.error is None
    finally:
        network.plug()
    lab.until(lambda: lab.node()["state"] == "reporting", "the node to be back")
    stream.end()
    assert (stream.error, stream.finish, len(stream.chunks)) == (None, "stop", 301)
    assert lab.pids() == before
    assert lab.plan()[0] == 0
