"""The text of the overview in `llmgw status`: sums that fit one screen for four nodes and for four hundred."""

from collections.abc import Mapping
from typing import Any

from llmgw.base.time import age
from llmgw.cli.tables import cut, table

BAR = 40
"""Characters of a usage bar."""
SIGNS = (("used", "#"), ("foreign", "f"), ("reserved", "r"), ("closed", "c"), ("unhealthy", "x"), ("free", "."))
MOST = 6
"""Lines of a list; it says how many more there are, and where."""


def lines(overview: dict[str, Any] | None) -> list[list[str]]:
    """Return the blocks of the overview, without empty ones."""
    if overview is None:
        return []
    blocks = [
        _capacity(overview),
        _fabrics(overview["fabrics"]),
        _counted(overview),
        _listed("cannot be placed", [_unplaced(one) for one in overview["cannot_be_placed"]], "get models"),
        _holding(overview["holding_cards"]),
        _listed("rollouts", [_rollout(one) for one in overview["rollouts"]], "get models"),
        _listed("asked for by operators", [act_line(one) for one in overview["acts"]], "status --json"),
    ]
    if overview.get("endpoints"):  # they may be all there is
        return [block for block in blocks if block]
    if not overview["nodes"]:
        blocks.append(["no nodes yet: add a file with `kind: Node` to the cluster directory"])
    if not overview["models"]:
        blocks.append(["no models yet: add a file with `kind: Model` to the cluster directory"])
    return [block for block in blocks if block]


def pools(overview: dict[str, Any]) -> list[str]:
    """Return the nodes by pool, for fleets of which a table of nodes would be longer than a screen."""
    rows = [(one["pool"], *(str(one[key]) for key in ("nodes", "open", "closed", "away"))) for one in overview["pools"]]
    rest = len(rows) - 2 * MOST
    more = [f"  and {rest} more (status --json)"] if rest > 0 else []
    return [*table(("POOL", "NODES", "OPEN", "CORDONED", "AWAY"), rows[: 2 * MOST]), *more]


def bar(counts: Mapping[str, int], total: int, width: int = BAR) -> str:
    """Return a bar in which each kind has its share, and what there is at least one of has at least one character."""
    wide = {kind: max(1, counts[kind] * width // total) for kind, _ in SIGNS if counts[kind]}
    while sum(wide.values()) != width:
        step = 1 if sum(wide.values()) < width else -1
        # the largest gives or takes: it shows the difference least
        wide[max(wide, key=lambda kind: (counts[kind], kind))] += step
    return "".join(sign * wide.get(kind, 0) for kind, sign in SIGNS)


def act_line(act: dict[str, Any]) -> str:
    """Return what an operator asked for in one line."""
    by = f" by {act['by']}" if act["by"] else ""
    ends = f", for another {age(act['ends_in'])}" if act["ends_in"] is not None else ""
    return f"{act['kind']} {act['target']}: {act['reason']} ({age(act['age'])} ago{by}{ends})"


def _capacity(overview: dict[str, Any]) -> list[str]:
    rows = []
    for one in overview["gpu_classes"]:
        said = [f"{one[kind]} {kind}" for kind, _ in SIGNS if one[kind] or kind in ("used", "free")]
        rows.append((one["class"] or "(no class)", str(one["total"]), f"[{bar(one, one['total'])}]", ", ".join(said)))
    cpu = overview["cpu"]
    if cpu["nodes"]:
        total = cpu["cpus"]
        filled = min(BAR, cpu["cpus_claimed"] * BAR // total) if total else 0
        claimed = f"{cpu['cpus_claimed']} cpus and {_gib(cpu['memory_claimed'])} of {_gib(cpu['memory'])} declared by replicas"
        rows.append(("cpus", str(total), f"[{'#' * filled}{'.' * (BAR - filled)}]", claimed))
    return table(("CAPACITY", "TOTAL", "USE", ""), rows)


def _fabrics(fabrics: list[dict[str, Any]]) -> list[str]:
    if not fabrics:
        return []
    shown = [
        f"{one['fabric'] or 'no fabric'} {one['class'] or '(no class)'} {one['free_nodes']} of {one['nodes']}"
        for one in fabrics
    ]
    rest = len(shown) - 4
    return [f"free whole nodes: {'; '.join(shown[:4])}{f'; and {rest} more (--json)' if rest > 0 else ''}"]


def _counted(overview: dict[str, Any]) -> list[str]:
    return [
        f"{name + ':':<10}{', '.join(f'{count} {state}' for state, count in overview[name].items())}"
        for name in ("nodes", "models", "replicas")
        if overview[name]
    ]


def _holding(holding: dict[str, Any]) -> list[str]:
    rows = [
        (one["replica"], one["node"], str(one["cards"]), age(one["idle_for"]) if one["idle_for"] is not None else "-")
        for one in holding["replicas"][:MOST]
    ]
    more = holding["more"] + max(0, len(holding["replicas"]) - MOST)
    head = ("HOLDS CARDS, NOT IN USE", "NODE", "CARDS", "NOT ASKED FOR SINCE")
    return [*table(head, rows), *([f"  and {more} more; {holding['cards']} cards in all"] if more else [])]


def _unplaced(one: dict[str, Any]) -> str:
    count = f" ({one['replicas']} replicas)" if one["replicas"] > 1 else ""
    return f"{one['model']}{count}: {one['why']}"


def _rollout(one: dict[str, Any]) -> str:
    if one["failed"]:
        return f"{one['model']}: failed: {one['failed']}"
    waits = f"; {one['waits_for']}" if one["waits_for"] else ""
    return f"{one['model']}: for {age(one['age'])}, {one['serving']} new serve{waits}"


def _listed(title: str, entries: list[str], where: str) -> list[str]:
    if not entries:
        return []
    rest = len(entries) - MOST
    more = [f"  and {rest} more (llmgw {where})"] if rest > 0 else []
    return [f"{title}:", *(f"  {cut(entry, 118)}" for entry in entries[:MOST]), *more]


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.0f}GiB"
