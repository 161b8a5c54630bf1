"""What planning costs, by size of the fleet; and how much of what could run is placed, against an integer program.

Absolute figures are printed, ratios are asserted: how CPU time grows with the fleet, and placed over placeable. Each size is
measured in a process of its own (`sized`).
"""

import json
import math
import statistics
import subprocess
import sys

import pytest

from tests.builders import Desk, told

pytestmark = pytest.mark.bench

SIZES = (10, 100, 1000)
TOLERANCE = 2.0
"""How much faster than n log n a time may grow before it is not believed any more."""
FLEETS = 100


def test_time_grows_no_faster_than_n_log_n() -> None:
    figures = [_sized(size) for size in SIZES]
    wide = max(len(name) for name in figures[0])
    print(
        f"\nCPU seconds on one core; {SIZES[-1]} nodes have 8 cards each, {SIZES[-1] // 2} models, {4 * SIZES[-1]} replicas"
    )
    for name in figures[0]:
        row = [f"{each[name]:9.0f}" if name in {"nodes", "MiB"} else f"{each[name]:9.4f}" for each in figures]
        print(f"  {name:{wide}} {' '.join(row)}")
    small, large = SIZES[0], SIZES[-1]
    allowed = (large * math.log(large)) / (small * math.log(small)) * TOLERANCE
    for name in figures[0]:
        if name not in {"nodes", "MiB"}:
            grown = figures[-1][name] / max(figures[0][name], 1e-4)
            assert grown <= allowed, f"{name}: {grown:.0f} times as long for {large // small} times the nodes"
    assert figures[-1]["first"] / figures[-1]["nothing"] > 2, (
        "a round without anything to do is no cheaper than the first"
    )


def _sized(nodes: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.sized", str(nodes)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_nearly_all_that_could_run_is_placed() -> None:
    pytest.importorskip("scipy", reason="the integer program needs scipy: pip install -e '.[bench]'")
    from tests.bench import fleets

    shares: dict[str, list[float]] = {}
    whole = 0
    for seed in range(FLEETS):
        one = fleets.fleet(seed)
        most, in_turn = fleets.optimum(one), fleets.optimum_by_rank(one)
        desk = Desk.of(*one.objects(), cards=one.cards())
        placed = sum(line.startswith("start") for line in told(desk.plan()))
        assert placed <= most
        whole += placed == in_turn
        found = {
            "llmgw, of the best that keeps the order of importance": placed / in_turn,
            "llmgw, of the most replicas, whichever they are": placed / most,
            "first fit": fleets.first_fit(one) / most,
            "spread": fleets.spread(one) / most,
            "GPUStack's rules": fleets.gpustack(one) / most,
        }
        for name, share in found.items():
            shares.setdefault(name, []).append(share)
    print(
        f"\n{FLEETS} fleets, replicas placed over those that could be; llmgw reached the best of its order in {whole}"
    )
    for name, each in shares.items():
        print(f"  {name:56} mean {statistics.mean(each):7.2%}  least {min(each):7.2%}")
    ours, whichever, *others = shares.values()
    assert statistics.mean(ours) >= 0.99
    assert min(ours) >= 0.95
    assert statistics.mean(whichever) >= 0.99
    assert all(statistics.mean(whichever) > statistics.mean(other) for other in others)
