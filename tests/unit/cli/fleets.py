"""Five fleets of which the status is pinned: one box, four GPU nodes, four hundred, a broken one, an empty one."""

from dataclasses import replace
from typing import Any

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.catalog.compile import Rejected
from llmgw.catalog.problems import Problem
from llmgw.control.catalogs import CatalogState
from llmgw.control.status import Control, status
from llmgw.fleet.report import Gpu, GpuUser, Phase, Reason
from llmgw.fleet.usage import Active, Idle
from llmgw.fleet.view import NeverSeen
from llmgw.plan.result import Plan
from tests.builders import GIB, Desk, Object, cluster, cordoned, model, node, tree

CLASSES = [{"name": "h100", "match": ["*H100*"]}, {"name": "l40s", "match": ["*L40S*"]}]
CLUSTER = cluster(gpu_classes=CLASSES, control={"lost_after": "1m", "unreachable_after": "10s"})


def cards(name: str, count: int, card: str = "NVIDIA H100 80GB HBM3", memory: int = 80) -> tuple[Gpu, ...]:
    """Return so many cards of a node."""
    return tuple(Gpu(f"GPU-{name}-{index}", index, card, memory * GIB, 0, numa=index // 4) for index in range(count))


def on_cards(name: str, replicas: int, count: int, gpu_class: str = "h100", **fields: Any) -> Object:
    """Return a model that needs cards."""
    return model(name, replicas, profile={"gpu": {"class": gpu_class, "count": count}}, **fields)


def fleet(machines: dict[str, tuple[Gpu, ...]], *objects: Object) -> Desk:
    """Return a desk for these machines, all of which have just reported."""
    desk = Desk.of(CLUSTER, *objects)
    for name in desk.catalog.nodes:
        desk.cards[name] = machines.get(name, ())
        desk.hear(name)
    return desk


def shown(desk: Desk, last: Plan | None, **state: Any) -> dict[str, Any]:
    """Return the status of a fleet as the admin API gives it."""
    source = tree(revision="4f0c1ab23d", subject="two more of chat")
    known = CatalogState(desk.catalog, source, Instant(desk.now - 300), fetched=source)
    alarms = last.alarms if last is not None else ()
    control = Control("1.0", 1, "/etc/cluster", "http://127.0.0.1:8080/v1", "-", True, 3, (11, 12), alarms)
    return status(control, replace(known, **state), desk.snapshot(), last, desk.now)


def box() -> dict[str, Any]:
    """One CPU box with two models, one of them in use."""
    desk = fleet({}, node("box", local=True), model("chat", 1, profile={"cpus": 4, "memory": "8GiB"}), model("embed"))
    last = desk.settle()
    desk.use("chat-1-0", Active(2))
    desk.use("embed-1-0", Idle(Instant(desk.now - 4000)))
    return shown(desk, last)


def four() -> dict[str, Any]:
    """Four nodes with cards of two classes on two fabrics; one model rolls, one replica is idle."""
    machines = {
        "gpu-a1": cards("a1", 8),
        "gpu-a2": cards("a2", 8),
        "gpu-b1": cards("b1", 4, "NVIDIA L40S", 48),
        "gpu-b2": cards("b2", 4, "NVIDIA L40S", 48),
    }
    nodes = [node(name, fabric="ib-a" if "-a" in name else "eth-b") for name in machines]
    desk = fleet(machines, *nodes, on_cards("chat", 2, 2), on_cards("small", 3, 1, "l40s"), model("embed", 1))
    desk.settle()
    desk.now = Instant(desk.now + 100)
    desk.use("small-1-1", Idle(Instant(desk.now - 7300)))
    desk.use("chat-1-0", Active(7))
    changed = model("chat", 2, "--new", profile={"gpu": {"class": "h100", "count": 2}})
    desk.want(CLUSTER, *nodes, changed, on_cards("small", 3, 1, "l40s"), model("embed", 1))
    desk.plan()
    desk.obey(Phase.STARTING)
    return shown(desk, desk.plan())


def four_hundred() -> dict[str, Any]:
    """Four hundred nodes, some of them cordoned, sick, used by others or away; fifty models."""
    machines = {f"gpu-{n:03d}": cards(f"{n:03d}", 8) for n in range(400)}
    nodes = [
        cordoned(name) if n % 97 == 5 else node(name, fabric=f"ib-{n // 50}", reserved={"gpus": n % 2})
        for n, name in enumerate(machines)
    ]
    models = [on_cards(f"model-{n:02d}", 10 + n % 3, 1 + n % 4) for n in range(50)]
    desk = fleet(machines, *nodes, *models, on_cards("huge", 2, 8, "l40s"))
    desk.settle(rounds=60)
    for n in range(0, 400, 41):
        desk.card(f"GPU-{n:03d}-7", unhealthy="XID 79")
    stranger = GpuUser(4242, 30 * GIB, "python", None)
    for n in range(0, 400, 53):
        desk.card(f"GPU-{n:03d}-3", users=(stranger,))
    for n in range(1, 400, 131):
        desk.lose(f"gpu-{n:03d}", surviving=True)
    for n in range(30):
        desk.use(f"model-{n:02d}-1-0", Idle(Instant(desk.now - 600 * n)))
    return shown(desk, desk.plan())


def broken() -> dict[str, Any]:
    """Nearly everything that can be wrong at once."""
    machines = {name: cards(name[-2:], 4) for name in ("gpu-a1", "gpu-a2", "gpu-a3")}
    nodes = [node(name, fabric="ib-a", expect={"gpu_class": "h100", "gpus": 4}) for name in (*machines, "gpu-a4")]
    objects = [*nodes, on_cards("chat", 2, 2), on_cards("large", 1, 4, priority=1), model("odd", 1, "--one")]
    desk = fleet(machines, *objects)
    desk.settle()
    desk.now = Instant(desk.now + 200)
    desk.ask("drain", "node/gpu-a2", until=desk.now + 7200)
    desk.cards[NodeName("gpu-a3")] = machines["gpu-a3"][:3]
    desk.regain("gpu-a3")
    desk.card("GPU-a1-3", unhealthy="XID 79, fell off the bus")
    desk.card("GPU-a3-0", users=(GpuUser(4242, 20 * GIB, "python", None),))
    desk.phase("odd-1-0", Phase.FAILED, Reason("exit", "ended with status 1"))
    desk.views[NodeName("gpu-a4")] = NeverSeen(Instant(desk.now - 500), "no route to host")
    desk.lose("gpu-a2")
    for _ in range(4):
        last = desk.plan(30.0)
        desk.obey(Phase.BACKOFF)
    problem = Problem("models/chat.yaml", 7, 1, "unknown key 'replcas', did you mean 'replicas'?", "unknown-key")
    refused = Rejected(tree(revision="9e8d7c6b5a").revision, (problem,))
    return shown(desk, last, rejected=refused, fetched=tree(revision="9e8d7c6b5a", subject="more chat"))


def empty() -> dict[str, Any]:
    """A cluster file and nothing else."""
    desk = fleet({})
    return shown(desk, desk.plan())


FLEETS = {"box": box, "four": four, "four_hundred": four_hundred, "broken": broken, "empty": empty}

__all__ = ["FLEETS", "ReplicaId"]
