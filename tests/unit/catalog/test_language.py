"""The rules of the whole language between objects: engines, GPUs, references, secrets, and what nothing acts on yet."""

import pytest

from llmgw.base.ids import Revision
from llmgw.catalog.compile import Accepted, Rejected, compile_tree
from llmgw.catalog.source import SourceTree

CLUSTER = """\
apiVersion: llmgw/v1
kind: Cluster
name: home
gpu_classes:
- {name: h100, match: ["NVIDIA H100*"]}
router:
  policies:
  - {name: sticky, picker: session}
"""
NODE = """\
apiVersion: llmgw/v1
kind: Node
name: {name}
local: true
fabric: rail
"""
MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: m
weights: {path: /m}
"""
GPU = "gpu: {class: h100, count: 4}"
COMMIT = "c0ffee" * 6 + "beef"


def told(model: str = "", cluster: str = CLUSTER, warnings: bool = True, **others: str) -> list[str]:
    """Return what is said of a directory, but for the warnings that nothing acts on something."""
    files = {"cluster": cluster, "n1": NODE.replace("{name}", "n1"), "n2": NODE.replace("{name}", "n2"), **others}
    if model:
        files["m"] = model
    tree = SourceTree(Revision("r"), {f"{name}.yaml": text.encode() for name, text in files.items()})
    outcome = compile_tree(tree)
    problems = outcome.problems if isinstance(outcome, Rejected) else outcome.warnings
    return [
        f"{'' if one.severity == 'error' else 'warning '}{one} [{one.code}]"
        for one in problems
        if one.code != "not-acted-on" and (warnings or one.severity == "error")
    ]


def profile(*fields: str, engine: str = "vllm") -> str:
    return "".join([MODEL, "profiles:\n", f"- engine: {engine}\n", *(f"  {field}\n" for field in fields)])


PROFILES: dict[str, tuple[str, list[str]]] = {
    "vLLM on four cards": (profile(GPU, "tensor_parallel: 4"), []),
    "two nodes": (profile(GPU, "nodes: 2", "tensor_parallel: 4", "pipeline_parallel: 2"), []),
    "data parallel": (profile(GPU, "data_parallel: 4"), []),
    "vLLM without a card": (
        profile(),
        [
            "m.yaml:6:11 vLLM cannot serve without a GPU; add `gpu: {class: …, count: …}`, or name its build for CPUs as "
            "`command` (otherwise a slip would place a replica on a machine with no hardware for it) [needs-gpu]"
        ],
    ),
    "vLLM built for CPUs": (profile("command: [/opt/vllm-cpu/bin/vllm, serve]"), []),
    "vLLM built for CPUs, in several parts": (
        profile("command: [/opt/vllm-cpu/bin/vllm, serve]", "nodes: 2", "tensor_parallel: 2"),
        [
            "m.yaml:6:11 vLLM cannot serve without a GPU; add `gpu: {class: …, count: …}`, or name its build for CPUs as "
            "`command` (otherwise a slip would place a replica on a machine with no hardware for it) [needs-gpu]"
        ],
    ),
    "SGLang without a card": (
        profile(engine="sglang"),
        [
            "m.yaml:6:11 SGLang cannot serve without a GPU; add `gpu: {class: …, count: …}`, or name its build for CPUs as "
            "`command` (otherwise a slip would place a replica on a machine with no hardware for it) [needs-gpu]"
        ],
    ),
    "cards and parallelism": (
        profile(GPU, "tensor_parallel: 2"),
        [
            "m.yaml:8:20 tensor_parallel 2 x pipeline_parallel 1 = 2, but gpu.count 4 x nodes 1 = 4; make the two equal "
            "[gpus-and-parallelism]"
        ],
    ),
    "cards without parallelism": (
        profile(GPU),
        [
            "m.yaml:7:8 tensor_parallel 1 x pipeline_parallel 1 = 1, but gpu.count 4 x nodes 1 = 4; make the two equal "
            "[gpus-and-parallelism]"
        ],
    ),
    "an undeclared class": (
        profile("gpu: {class: h10}"),
        ["m.yaml:7:16 GPU class 'h10' is not declared, did you mean 'h100'? [unknown-gpu-class]"],
    ),
    "llama.cpp over two nodes": (
        profile("gpu: {class: h100}", "nodes: 2", engine="llamacpp"),
        [
            "m.yaml:8:10 llama.cpp cannot do nodes above 1, because its RPC mode ends the whole replica when one worker "
            "goes, and calls itself a proof of concept [engine-cannot]"
        ],
    ),
    "llama.cpp with tensor parallel": (
        profile(GPU, "tensor_parallel: 4", engine="llamacpp"),
        [
            "m.yaml:8:20 llama.cpp cannot do tensor_parallel above 1, because it splits a model over the cards of one node "
            "by itself; use `--split-mode` in `args` [engine-cannot]"
        ],
    ),
    "llama.cpp on several cards": (profile(GPU, engine="llamacpp"), []),
    "pipeline parallel without a card": (
        profile("pipeline_parallel: 2", engine="tei"),
        [
            "m.yaml:7:22 Text Embeddings Inference cannot do pipeline_parallel above 1, because one process serves one "
            "card; raise `replicas` [engine-cannot]"
        ],
    ),
    "a command without one": (
        profile(engine="command"),
        ["m.yaml:6:11 engine 'command' has no program of its own; add `command` [no-command]"],
    ),
    "a command": (profile('command: [serve, "--port={port}"]', engine="command"), []),
    "a command that learns its port from its environment": (
        profile("command: [serve]", 'env: {PORT: "{port}"}', engine="command"),
        [],
    ),
    "a command that is not told its port": (
        profile("command: [serve]", engine="command"),
        [
            "m.yaml:7:12 nothing tells the program its port, which llmgw chooses; put `{port}` into `command`, `args` or "
            "`env` [no-port]"
        ],
    ),
    "a command over two nodes": (
        profile('command: [serve, "--port={port}"]', "gpu: {class: h100}", "nodes: 2", engine="command"),
        [
            "m.yaml:9:10 the command cannot do nodes above 1, because llmgw does not know how its shards would find each "
            "other [engine-cannot]"
        ],
    ),
    "vLLM on Ray": (
        profile(GPU, "tensor_parallel: 4", "nodes: 1", "distributed: ray"),
        [
            "m.yaml:10:16 vLLM cannot be run with Ray here, because it needs a Ray cluster that the operator has started on "
            "the nodes, of which llmgw knows nothing; the native way needs vLLM 0.16 or newer and nothing else; remove it "
            "[engine-cannot]"
        ],
    ),
    "three copies on two nodes": (
        profile("gpu: {class: h100, count: 3}", "nodes: 2", "tensor_parallel: 2", "data_parallel: 3"),
        [
            "m.yaml:10:18 vLLM cannot do data_parallel above 1 with nodes above 1, because every node must hold as many "
            "whole copies, and 3 copies over 2 nodes leaves some in pieces [engine-cannot]"
        ],
    ),
    "copies of SGLang on two nodes": (
        profile(GPU, "nodes: 2", "tensor_parallel: 4", "data_parallel: 2", engine="sglang"),
        [
            "m.yaml:10:18 SGLang cannot do data_parallel above 1 with nodes above 1, because it refuses copies over several "
            "nodes; raise `replicas`, or use the data parallelism of attention in `args` [engine-cannot]"
        ],
    ),
    "llama.cpp with pipeline parallel": (
        profile("gpu: {class: h100, count: 2}", "pipeline_parallel: 2", engine="llamacpp"),
        [
            "m.yaml:8:22 llama.cpp cannot do pipeline_parallel above 1, because it splits a model over the cards of one node "
            "by itself; use `--split-mode` in `args` [engine-cannot]"
        ],
    ),
    "a flag of ours in another spelling": (
        profile(GPU, "tensor_parallel: 4", "args: [--tensor_parallel_size=2, --max-model-len=8k, -tp, '2']"),
        [
            "m.yaml:9:10 '--tensor_parallel_size' is set by llmgw, which has to know it; remove it [own-flag]",
            "m.yaml:9:56 '-tp' is set by llmgw, which has to know it; remove it [own-flag]",
        ],
    ),
    "one file for an engine that loads a directory": (
        profile(GPU, "tensor_parallel: 4").replace("{path: /m}", "{url: 'https://h/f', sha256: " + "a" * 64 + "}"),
        [
            "m.yaml:4:16 vLLM cannot serve one file, because it loads a directory with the model's configuration and "
            "tokenizer beside the weights; give a `path` [engine-cannot]"
        ],
    ),
    "adapters of an engine that serves none by name": (
        profile(engine="llamacpp") + "adapters: [{name: sql, weights: {path: a}}]\n",
        [
            "m.yaml:7:11 llama.cpp serves no LoRA adapters by name, because its requests name them by number and not as a "
            "model; serve each as a model of its own, with `--lora` in `args` [engine-cannot]"
        ],
    ),
    "an adapter that is one file": (
        profile(GPU, "tensor_parallel: 4")
        + f"adapters: [{{name: sql, weights: {{url: 'https://h/f', sha256: {'a' * 64}}}}}]\n",
        [
            "m.yaml:9:39 an adapter is a directory, and a URL names one file; give a `path` [engine-cannot]",
        ],
    ),
    "an unknown engine": (
        profile(engine="vlm"),
        ["m.yaml:6:11 unknown engine 'vlm', did you mean 'vllm'? [unknown-engine]"],
    ),
    "an engine like none": (
        profile(engine="ollama"),
        ["m.yaml:6:11 unknown engine 'ollama', did you mean 'llamacpp'? [unknown-engine]"],
    ),
    "a secret in words": (
        profile("env: {TOKEN: {secrt: X}}", "cpus: 1", engine="llamacpp"),
        [
            "m.yaml:7:17 missing key 'secret' [missing-key]",
            "m.yaml:7:17 unknown key 'secrt', did you mean 'secret'? [unknown-key]",
        ],
    ),
    "a secret by reference": (profile("env: {TOKEN: {secret: HF_TOKEN}}", engine="llamacpp"), []),
    "a container without an image": (
        profile("runtime: docker", engine="llamacpp"),
        ["m.yaml:6:3 `image` goes with `runtime: docker` or `podman`, and those need it [image]"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), PROFILES.values(), ids=PROFILES.keys())
def test_profiles(text: str, expected: list[str]) -> None:
    found = told(text)
    if expected and "unknown-key" in expected[-1]:
        assert sorted(line.split("[")[-1] for line in found) == ["missing-key]", "unknown-key]"]
        assert any("did you mean 'secret'?" in line for line in found)
    else:
        assert found == expected


CPU = profile(engine="llamacpp")

MODELS: dict[str, tuple[str, list[str]]] = {
    "replicas and scale": (
        CPU + "replicas: 2\nscale: {max: 3}\n",
        ["m.yaml:8:1 a model has `replicas` or `scale`, not both; remove one of them [scale]"],
    ),
    "a policy that is not there": (
        CPU + "routing: {policy: stiky}\n",
        ["m.yaml:7:19 there is no policy 'stiky', did you mean 'sticky'? [unknown-policy]"],
    ),
    "the policy that is always there": (CPU + "routing: {policy: least-load}\n", []),
    "a mirror of itself": (
        CPU + "routing: {mirror: m}\n",
        ["m.yaml:7:19 a model cannot refer to itself; name another one [refers-to-itself]"],
    ),
    "a split to nowhere": (
        CPU + "routing: {split: [{model: n, share: 5%}]}\n",
        ["m.yaml:7:27 there is no model 'n'; add it, or remove this [unknown-model]"],
    ),
    "two kinds of weights": (
        CPU.replace("{path: /m}", "{path: /m, hf: a/b}"),
        ["m.yaml:4:1 weights have one of `hf`, `path` and `url` [weights]"],
    ),
    "a repository at a commit": (CPU.replace("{path: /m}", f"{{hf: a/b, revision: {COMMIT}, files: [m.gguf]}}"), []),
    "a repository at a branch": (
        CPU.replace("{path: /m}", "{hf: a/b, files: [m.gguf]}"),
        [
            "warning m.yaml:4:15 branch or tag main of a/b may become something else, and this version of llmgw looks up no "
            "commits; write the commit as `revision`, which `git ls-remote https://huggingface.co/a/b main` prints [unpinned]"
        ],
    ),
    "llama.cpp and a repository of which no file is named": (
        CPU.replace("{path: /m}", f"{{hf: a/b, revision: {COMMIT}, files: ['*.gguf']}}"),
        ["m.yaml:4:15 llama.cpp serves one GGUF file; name it in `files`, without `*` [engine-cannot]"],
    ),
    "a URL without a digest": (
        CPU.replace("{path: /m}", "{url: 'https://h/f.gguf'}"),
        ["m.yaml:4:1 weights from a `url` need their `sha256` [weights]"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), MODELS.values(), ids=MODELS.keys())
def test_models(text: str, expected: list[str]) -> None:
    found = told(text)
    assert [line.split(" ", 1)[1] for line in found] == [line.split(" ", 1)[1] for line in expected]
    assert [line.split(":")[1] for line in found] == [line.split(":")[1] for line in expected]


def test_a_replica_that_no_fabric_can_hold() -> None:
    assert told(profile(GPU, "nodes: 4", "tensor_parallel: 4", "pipeline_parallel: 4")) == [
        "warning m.yaml:8:10 needs 4 nodes on one fabric, but the largest fabric has 2; the profile cannot be placed "
        "[no-fabric]"
    ]


TENANT = "apiVersion: llmgw/v1\nkind: Tenant\nname: t\nmodels: [m, 'chat-*', mm]\n"


def test_globs_of_tenants_that_match_nothing() -> None:
    assert told(CPU, t=TENANT) == [
        "warning t.yaml:4:13 'chat-*' matches no model [matches-nothing]",
        "warning t.yaml:4:23 'mm' matches no model, did you mean 'm'? [matches-nothing]",
    ]
    endpoint = "apiVersion: llmgw/v1\nkind: Endpoint\nname: e\nurl: http://h:1\nmodels: [chat-a]\n"
    assert told(CPU, t=TENANT.replace(", mm", ""), e=endpoint) == []


def test_a_password_in_a_url_is_refused() -> None:
    endpoint = "apiVersion: llmgw/v1\nkind: Endpoint\nname: e\nurl: https://user:pw@h\nmodels: [x]\n"
    found = told(e=endpoint)
    assert len(found) == 1
    assert found[0].startswith("e.yaml:4:6 ")
    assert "pw" not in found[0]
    assert "a user or a password in it would be a secret in git" in found[0]


def test_an_api_key_must_be_a_reference() -> None:
    endpoint = "apiVersion: llmgw/v1\nkind: Endpoint\nname: e\nurl: https://h\nmodels: [x]\napi_key: sk-123\n"
    assert told(e=endpoint) == [
        "e.yaml:6:10 'api_key' expects a mapping, found the text 'sk-123' [wrong-type]",
    ]


def test_names_are_unique_within_the_clusters_lists() -> None:
    twice = CLUSTER.replace("router:", '- {name: h100, match: ["H100"]}\nrouter:')
    assert told(cluster=twice) == [
        "cluster.yaml:6:10 GPU class 'h100' is already given on line 5; rename or remove one of them [duplicate-name]"
    ]


def test_scale_counts_for_ports() -> None:
    cluster = CLUSTER + "control: {ports: [20000, 20003]}\n"
    assert told(CPU + "scale: {max: 8}\n", cluster) == []
    assert told(CPU + "scale: {max: 9}\n", cluster) == [
        "cluster.yaml:9:18 9 replicas in all, but `control.ports` 20000 to 20003 has only 4 ports on each of 2 nodes; "
        "widen the range [too-few-ports]"
    ]


def test_what_nothing_acts_on_is_a_warning_at_its_key() -> None:
    text = CPU + "routing: {session_header: x}\npriority: 1\n"
    tenant = TENANT.replace(", 'chat-*', mm", "") + "limits: {rpm: 1}\n"
    cluster = CLUSTER.split("gpu_classes", maxsplit=1)[0]
    files = {"c.yaml": cluster, "m.yaml": text, "t.yaml": tenant}
    outcome = compile_tree(SourceTree(Revision("r"), {path: text.encode() for path, text in files.items()}))
    assert isinstance(outcome, Accepted)
    assert [(str(one), one.severity) for one in outcome.warnings] == [
        ("m.yaml:7:11 'session_header' is checked and kept; nothing acts on it yet", "warning"),
        ("t.yaml:5:1 'limits' is checked and kept; nothing acts on it yet", "warning"),
    ]


def test_a_model_moves_from_a_name_that_is_free_and_only_one_does() -> None:
    assert told(CPU + "moved_from: m\n")[0].endswith(
        "model 'm' is still there; remove it, or this line if the models are different ones [moved-from-is-there]"
    )
