"""Cards for the nodes of tests: four kinds of them, the classes of a cluster that has them, and who else is on a card."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from llmgw.fleet.report import Gpu, GpuUser

Object = dict[str, Any]

GIB = 1 << 30
H100, L40S, A100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"
CLASSES = [
    {"name": "h100", "match": ["*H100*"]},
    {"name": "l40s", "match": ["*L40S*"]},
    {"name": "a100", "match": ["*A100*", "*A800*"]},
    {"name": "rtx4090", "match": ["*RTX 4090*"]},
]
"""GPU classes for a `Cluster`."""


def on_cards(count: int = 1, gpu_class: str = "h100", **fields: Any) -> Object:
    """Return a profile's fields for a replica on so many cards a node; with `nodes`, by an engine that can span them."""
    nodes = fields.get("nodes", 1)
    spanning = {"engine": "vllm", "tensor_parallel": count, "pipeline_parallel": nodes} if nodes > 1 else {}
    return {"gpu": {"class": gpu_class, "count": count}, **spanning, **fields}


def gpus(
    name: str,
    count: int = 8,
    kind: str = H100,
    *,
    linked: Sequence[Collection[int]] | None = None,
    numa: Callable[[int], int | None] = lambda index: index // 4,
) -> tuple[Gpu, ...]:
    """Return a node's cards, `GPU-NAME-0` and so on; each collection in `linked` is linked, by default all are."""
    groups = [range(count)] if linked is None else linked
    near = {one: [other for other in group if other != one] for group in groups for one in group}
    return tuple(
        Gpu(f"GPU-{name}-{n}", n, kind, 80 * GIB, 0, (), "", numa(n), tuple(f"GPU-{name}-{m}" for m in near.get(n, ())))
        for n in range(count)
    )


def stranger(pid: int = 4242, memory: int | None = 4 * GIB, command: str = "python") -> GpuUser:
    """Return a process on a card that is not ours."""
    return GpuUser(pid, memory, command, None)
