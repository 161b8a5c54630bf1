"""Whatever the bytes are, compiling answers with a catalog or with problems, and these can be written in every form.

`LLMGW_FUZZ=20` runs twenty times as many examples.
"""

import json
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.base.ids import Revision
from llmgw.catalog.compile import Accepted, Compiler, Rejected, compile_tree
from llmgw.catalog.render import render_github, render_json, render_sarif, render_text
from llmgw.catalog.source import SourceTree

SCALE = int(os.environ.get("LLMGW_FUZZ", "1"))
EFFORT = settings(
    max_examples=120 * SCALE,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=SCALE == 1,
)

CLUSTER = b"""\
apiVersion: llmgw/v1
kind: Cluster
name: home
control:
  interval: 5s
  ports: [20000, 20999]
  backoff: {base: 2s, max: 1m, give_up_after: 5}
engines:
  - name: llamacpp
    command: ["llama-server", '--verbose']
    env: {LLAMA_ARG: "1"}
"""
NODE = b"""\
# yaml-language-server: $schema=../schemas/node.schema.json
apiVersion: llmgw/v1
kind: Node
name: box
ssh:
  host: box.lan
  host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJk
labels: {zone: a, disk: nvme}
cordoned:
  reason: >-
    new fans
    on Monday
"""
MODEL = b"""\
apiVersion: llmgw/v1
kind: Model
name: qwen2.5-0.5b
aliases: [gpt-4o-mini, "Qwen/Qwen2.5"]
weights: {path: qwen.gguf}
replicas: 2
profiles:
  - &base
    name: small
    engine: llamacpp
    args: [--ctx-size, "4096"]
    memory: 1.5GiB
    env:
      PROMPT: |
        {{ messages }}
  - <<: *base
    name: "large\\u002d1"
    start_timeout: 20m
"""
DOCUMENTS = (CLUSTER, NODE, MODEL)

PIECES = (
    *(
        b"{{ x }}",
        b"{% x %}",
        b"*base",
        b"&base",
        b"<<: ",
        b"!!str ",
        b"---\n",
        b"...\n",
        b"%YAML 1.1\n",
        b"- ",
        b"? ",
        b": ",
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"'",
        b'"',
        b"|\n",
        b">\n",
        b"#",
        b",",
        b"\t",
        b"\n",
        b"\r",
        b"\r\n",
        b"  ",
        b"\\",
        b"\\U00110000",
    ),
    *(
        b"\x00",
        b"\x1b",
        b"\xff",
        b"\xe9",
        b"\xef\xbb\xbf",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
    ),
    *(
        b"~",
        b"null",
        b"yes",
        b"0644",
        b"1_000",
        b"1e3",
        b".inf",
        b"9" * 40,
        b"22:22",
        b"=======\n",
        b"[" * 70,
        b"k: 1\n",
        b"<<",
    ),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid document with a few cuts, doublings and insertions."""
    data = draw(st.sampled_from(DOCUMENTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((0, 0, 0, 1, 1, 2, 7, 30))))
        middle = draw(st.sampled_from((b"", data[start:end] * 2, *PIECES)) | st.binary(max_size=4))
        data = data[:start] + middle + data[end:]
    return data


def check(tree: SourceTree) -> Accepted | Rejected:
    outcome = compile_tree(tree)
    problems = outcome.problems if isinstance(outcome, Rejected) else outcome.warnings
    assert any(problem.severity == "error" for problem in problems) is isinstance(outcome, Rejected)
    assert list(problems) == sorted(problems)
    for problem in problems:
        assert 0 < len(problem.message) < 1000
        assert "\n" not in problem.message
        assert problem.path in ("", *tree.files, *tree.refused)
        assert problem.column >= 0
        assert problem.end_column == 0 or problem.end_column > problem.column
        if problem.snippet:
            assert problem.column <= len(problem.snippet) + 1
    assert render_text(problems).encode()[:1] or not problems
    assert len(json.loads(render_json(problems))["diagnostics"]) == len(problems)
    assert render_github(problems).count("\n") == len(problems)
    assert json.loads(render_sarif(problems, "1"))["runs"]
    return outcome


def around(data: bytes) -> SourceTree:
    return SourceTree(
        Revision("r"), {"cluster.yaml": b"apiVersion: llmgw/v1\nkind: Cluster\nname: c\n", "x.yaml": data}
    )


def test_the_documents_are_valid() -> None:
    outcome = check(SourceTree(Revision("r"), {f"{number}.yaml": each for number, each in enumerate(DOCUMENTS)}))
    assert isinstance(outcome, Accepted)
    assert outcome.warnings == ()


@EFFORT
@given(mutated())
def test_mutated_documents(data: bytes) -> None:
    check(around(data))


@EFFORT
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(around(data))


@EFFORT
@given(st.text(st.sampled_from("ab:-?[]{}#&*!|>'\"%@`,~<=. \t\n\\0x1_é\u2028\ud7ff"), max_size=60))
def test_any_text_of_yamls_own_characters(text: str) -> None:
    check(around(text.encode()))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = "name aliases weights path replicas profiles engine args env memory labels ssh host port control ports engines"
keys = st.sampled_from(KEYS.split())


@EFFORT
@given(st.sampled_from(("Cluster", "Node", "Model")), st.dictionaries(keys, values | st.dictionaries(keys, values)))
def test_any_values_under_known_keys(kind: str, body: dict[str, object]) -> None:
    document = {"apiVersion": "llmgw/v1", "kind": kind, **body}
    check(around(json.dumps(document).encode()))


@EFFORT
@given(st.lists(st.lists(mutated(), min_size=1, max_size=3), min_size=2, max_size=4))
def test_a_compiler_with_a_past_says_what_a_new_one_says(trees: list[list[bytes]]) -> None:
    compiler = Compiler()
    for files in trees:
        tree = SourceTree(Revision("r"), {f"{number}.yaml": data for number, data in enumerate(files)})
        assert compiler.compile(tree) == compile_tree(tree)
