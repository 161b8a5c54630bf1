"""How long a commit takes to be read and checked by a running server, beside a check of the same directory by command."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.live.lab import Lab, model_yaml

pytestmark = pytest.mark.bench

FILES = 1000
COMMITS = 7


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()


def _validated(lab: Lab) -> str | None:
    stage = lab.status()["revisions"]["validated"]
    return stage["revision"] if stage else None


def test_a_commit_is_validated_soon(lab: Lab) -> None:
    for number in range(FILES):
        lab.write(f"models/m{number}.yaml", model_yaml(f"m{number}", replicas=0))
    lab.commit()
    lab.start_server()
    lab.until(lambda: _validated(lab), "the first revision")
    seconds = []
    for number in range(COMMITS):
        lab.write(f"models/m{number}.yaml", model_yaml(f"m{number}", replicas=0, aliases=f"[a{number}]"))
        revision = lab.commit()
        start = time.perf_counter()
        lab.until(lambda revision=revision: _validated(lab) == revision, "the commit to be validated")
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "llmgw", "validate", str(lab.cluster)],
        check=True,
        capture_output=True,
        env={**lab.environment, "LLMGW_CACHE_DIR": str(lab.root / "no-cache")},
    )
    by_command = time.perf_counter() - start
    median, worst = statistics.median(seconds), max(seconds)
    print(
        f"\na commit in {FILES} files, until validated: median {median:.2f} s, worst {worst:.2f} s (goal 2 s); "
        f"`llmgw validate` of the same from nothing: {by_command:.2f} s, ratio {median / by_command:.2f}"
    )
    assert median < by_command, "a running server reads more than what changed"
