"""What agents make of the pages that each engine shows, and what the cluster may say of their names instead.

The pages are cut to what matters, with the names and labels that the sources of the releases give.
"""

from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.figures import pulse
from llmgw.agent.liveness import Liveness, Pulse
from llmgw.base.time import Instant
from llmgw.engines.adapter import ENGINES
from llmgw.engines.shard import MetricNames
from tests.builders import Object, catalog, cluster, model, spec_of

PAGES = Path(__file__).with_name("pages")
PROFILES: dict[str, Object] = {
    "llamacpp": {"engine": "llamacpp"},
    "vllm": {"engine": "vllm", "gpu": {"class": "h100"}},
    "sglang": {"engine": "sglang", "gpu": {"class": "h100"}},
    "tei": {"engine": "tei"},
    "command": {"engine": "command", "command": ["serve", "{port}"]},
}
USED = 2048.0 + 0.5 + 51.5
"""What SGLang's gauges add to a sum of which only a change counts."""


def names(engine: str, **said: str) -> MetricNames | None:
    engines = [{"name": engine, "metrics": said}] if said else []
    classes = [{"name": "h100", "match": ["*"]}]
    found = catalog(cluster(gpu_classes=classes, engines=engines), model("m", profile=PROFILES[engine]))
    return spec_of(found, "m").metrics


@pytest.mark.parametrize(
    ("page", "in_flight", "tokens"),
    [
        ("llamacpp_b11434", 7, 1600.0),
        ("vllm_0.10.2", 7, 1600.0),
        ("vllm_0.33", 7, 1600.0),
        ("sglang_0.5.23", 7, 1600.0 + USED),
        ("tei_1.9.3", None, None),
    ],
)
def test_what_an_engine_says_of_its_work(page: str, in_flight: int | None, tokens: float | None) -> None:
    known = names(page.partition("_")[0])
    assert known is not None
    found = pulse(known, (PAGES / f"{page}.txt").read_bytes(), b"[]" if known.activity else None)
    assert (found.in_flight, found.tokens) == (in_flight, tokens)


def test_every_engine_is_among_these_pages() -> None:
    assert {file.name.partition("_")[0] for file in PAGES.iterdir()} == set(ENGINES) - {"command"}


def test_a_long_answer_of_sglang_is_no_stall_although_its_counters_stand_still() -> None:
    known = names("sglang")
    assert known is not None
    page = (PAGES / "sglang_0.5.23.txt").read_text()
    alive, stuck = Liveness(), Liveness()
    for number in range(60):
        grown = page.replace("2048.0", f"{2048 + 40 * number}.0").encode()
        alive.look(pulse(known, grown, None), Instant(10.0 * number))
        stuck.look(pulse(known, page.encode(), None), Instant(10.0 * number))
    assert alive.stalled(300.0, from_loop=False) is None
    assert stuck.stalled(300.0, from_loop=False) is not None


def test_an_engine_that_counts_no_tokens_never_stalls() -> None:
    known = names("tei")
    assert known is not None
    alive = Liveness()
    for number in range(60):
        alive.look(pulse(known, b"te_queue_size 4\n", None), Instant(10.0 * number))
    assert alive.stalled(300.0, from_loop=known.from_loop) is None


OVERRIDES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("vllm", {"running": "a"}, {"running": "a", "waiting": "", "prompt_tokens": "", "generation_tokens": ""}),
    ("vllm", {"running": "a", "waiting": "b"}, {"running": "a", "waiting": "b", "generation_tokens": ""}),
    ("vllm", {"waiting": "b"}, {"running": "vllm:num_requests_running", "waiting": "b"}),
    ("llamacpp", {"running": "a"}, {"running": "a", "waiting": "", "path": "/metrics", "activity": "/slots"}),
    ("command", {"running": "a", "generation_tokens": "t"}, {"running": "a", "generation_tokens": "t"}),
    ("command", {"generation_tokens": "t"}, {"running": "", "generation_tokens": "t"}),
    ("vllm", {"kv_usage": "k"}, {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}),
]


@pytest.mark.parametrize(("engine", "said", "expected"), OVERRIDES)
def test_the_cluster_may_say_what_they_are_called(engine: str, said: dict[str, str], expected: dict[str, Any]) -> None:
    known = names(engine, **said)
    assert {name: getattr(known, name) for name in expected} == expected


def test_a_program_that_nothing_is_known_of_is_asked_for_no_figures() -> None:
    assert names("command") is None
    assert pulse(MetricNames("/metrics", "", "", "", ""), b"x 1\n", None) == Pulse(True)
