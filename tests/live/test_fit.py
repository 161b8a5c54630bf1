"""`llmgw fit` against what real llama.cpp says it has taken for the same file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gguf_file import TINY, Build, write_tiny_gguf

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: c\n"
LOAD = """
import os, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.n_ubatch = sys.argv[1], *map(int, sys.argv[2:5])
params.kv_unified, params.port, params.verbosity, params.warmup = True, 0, 4, False
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + sys.argv[5].upper())
server = xllamacpp.Server(params)
os._exit(0)
"""
WIDE = Build(width=512, inner=1408, heads=8, kept=2, layers=6)
LINES = {"weights": "model", "KV cache": "KV", "compute buffer": "compute"}


def llamacpp_takes(path: Path, context: int, slots: int, batch: int, cache: str) -> dict[str, float]:
    """Return MiB by what they are for, by the engine's own log."""
    words = [sys.executable, "-c", LOAD, str(path), str(context), str(slots), str(batch), cache]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    log = done.stdout + done.stderr
    return {line: float(re.findall(rf" {name} buffer size = +([\d.]+) MiB", log)[-1]) for line, name in LINES.items()}


def fit_says(directory: Path, path: Path, args: list[str]) -> dict[str, float]:
    """Return MiB by line of the command's sum."""
    (directory / "cluster.yaml").write_text(CLUSTER)
    (directory / "m.yaml").write_text(
        f"apiVersion: llmgw/v1\nkind: Model\nname: m\nweights: {{path: {path}}}\n"
        f"profiles: [{{engine: llamacpp, args: {json.dumps(args)}}}]\n"
    )
    words = [sys.executable, "-m", "llmgw", "fit", "model/m", "--dir", str(directory), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    (row,) = json.loads(done.stdout)["profiles"]
    return {line["what"]: line["size"] / 2**20 for line in row["lines"]}


@pytest.mark.parametrize(
    ("build", "context", "slots", "batch", "cache"),
    [(WIDE, 8192, 2, 512, "f16"), (WIDE, 4096, 1, 256, "q8_0"), (TINY, 4096, 2, 512, "f16")],
    ids=["wide", "quantized cache", "tiny"],
)
def test_the_sum_is_within_three_percent_of_what_llamacpp_takes(
    tmp_path: Path, build: Build, context: int, slots: int, batch: int, cache: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", build=build)
    flags = {"--ctx-size": context, "--parallel": slots, "--ubatch-size": batch}
    flags |= {"--cache-type-k": cache, "--cache-type-v": cache}
    says = fit_says(tmp_path, path, [str(word) for pair in flags.items() for word in pair])
    takes = llamacpp_takes(path, context, slots, batch, cache)
    print(says, takes)
    for line in ("weights", "KV cache"):
        assert says[line] == pytest.approx(takes[line], rel=0.03, abs=0.01)
    if build != TINY:  # with a single layer llama.cpp computes the feed-forward part for the last token only
        assert sum(says.values()) == pytest.approx(sum(takes.values()), rel=0.03)
