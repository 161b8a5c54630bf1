"""Two agents of one machine that are two nodes: an address each (127.0.0.1 and 127.0.0.2), and cards that are not real."""

import json
from pathlib import Path

from tests.fakes import nvml
from tests.live.lab import CLUSTER, Lab

CLASSES = '\ngpu_classes:\n- {name: h100, match: ["NVIDIA H100*"]}\n'
NODES = {"one": "127.0.0.1", "two": "127.0.0.2"}


def spawn_pair(lab: Lab, library: Path, cards: int) -> None:
    """Have these two nodes instead of the lab's own, with so many cards each, and run their agents."""
    (lab.cluster / "nodes/local.yaml").unlink()
    for place, (name, address) in enumerate(NODES.items()):
        directory = lab.root / name
        directory.mkdir()
        machine = nvml.Machine(directory, library)
        machine.add(nvml.H100, count=cards * (place + 1))
        machine.cards = machine.cards[cards * place :]
        machine.say()
        node = {
            "apiVersion": "llmgw/v1",
            "kind": "Node",
            "name": name,
            "local": True,
            "agent_socket": str(lab.root / f"{name}.sock"),
            "address": address,
            "traffic": "direct",
            "fabric": "rail",
            "pool": name,
        }
        lab.write(f"nodes/{name}.yaml", json.dumps(node))
        lab.spawn(
            *("agent", "--state-dir", str(directory / "state"), "--weights-dir", str(lab.weights)),
            log=f"{name}.log",
            env={**machine.environment, "LLMGW_AGENT_SOCKET": str(lab.root / f"{name}.sock")},
        )


def configure_pair(lab: Lab, text: str = "") -> None:
    """Write the cluster's file, with a class for those cards, and what else is said."""
    cluster = CLUSTER.replace("control:\n", "control:\n  mgmt_interface: lo\n")
    lab.write("cluster.yaml", cluster + lab._ports() + CLASSES + text)
