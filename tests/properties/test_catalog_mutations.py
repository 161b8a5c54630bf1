"""Twenty thousand spoiled example files: compiling answers with problems, never raises, and does not grow.

Seeded, so that every run is the same; `LLMGW_FUZZ=20` takes twenty times as many and other ones.
"""

import os
import random
from pathlib import Path

import psutil

from llmgw.base.ids import Revision
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.source import SourceTree

EXAMPLES = Path(__file__).parents[2] / "examples"
SCALE = int(os.environ.get("LLMGW_FUZZ", "1"))
INPUTS = 20_000 * SCALE
MOST_GROWTH = 64 << 20

PIECES = [
    b"", b"\n", b"\t", b"  ", b"- ", b": ", b"'", b'"', b"#", b"&a ", b"*a", b"<<: ", b"!!str ",
    b"{", b"}", b"[", b"]", b"|", b">-",
    b"%YAML 1.1\n", b"---\n", b"...\n", b"\xff", b"\xef\xbb\xbf", b"\x00", b"\x85", b"\r", b"null",
    b"~", b"yes", b"0644", b"22:22",
    b"1_000", b"1e3", b".inf", b"{{ x }}", b"<<<<<<< ours\n",
    b"version https://git-lfs.github.com/spec/v1\n", b"? ", b"\\u0000",
    b"\xc3", b"9" * 400, b"- " * 80, b"[" * 80, b"a: &x [*x]\n", "é😀".encode(), "\u202e".encode(),
]  # fmt: skip


def _mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data = data[:at] + chance.choice(PIECES) + data[at:]
            case 1:
                data = data[:at] + data[at + chance.randrange(1, 30) :]
            case 2:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 3:
                lines = data.split(b"\n")
                first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
                lines[first], lines[second] = lines[second], lines[first]
                data = b"\n".join(lines)
            case 4:
                data = data[:at] + data[at : at + 60] * chance.randint(1, 3) + data[at:]
            case _:
                data = data.replace(b" ", b"", 1) if chance.random() < 0.5 else data.replace(b"  ", b" ", 1)
    return data


def test_no_input_raises_and_memory_stays() -> None:
    originals = [path.read_bytes() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    assert len(originals) > 10
    chance = random.Random(SCALE)
    process = psutil.Process()
    for data in originals * 3:
        compile_tree(SourceTree(Revision("warm"), {"x.yaml": data}))
    start = most = process.memory_info().rss
    verdicts = {Accepted: 0, Rejected: 0}
    told = 0
    for number in range(INPUTS):
        data = _mutated(chance.choice(originals), chance)
        outcome = compile_tree(SourceTree(Revision(str(number)), {"x.yaml": data}))
        verdicts[type(outcome)] += 1
        if isinstance(outcome, Rejected):
            told += len(outcome.problems)
            assert all(problem.message and problem.code for problem in outcome.problems), data
        if number % 250 == 0:
            most = max(most, process.memory_info().rss)
    print(f"{INPUTS} inputs, {told} problems, {(most - start) >> 20} MiB more at the most")
    assert sum(verdicts.values()) == INPUTS
    assert most - start < MOST_GROWTH
