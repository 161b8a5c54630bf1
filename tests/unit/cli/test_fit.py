"""What `llmgw fit` prints of a directory and of weights on this machine."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmgw.cli.directory import validate_directory
from llmgw.cli.fit import shape_of, show_fit
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.engines.shape import Unsized
from tests.fakes.gguf_file import write_tiny_gguf

CLUSTER = """\
apiVersion: llmgw/v1
kind: Cluster
name: c
gpu_classes:
  - {name: large, match: [H100*], memory: 80GiB}
  - {name: middle, match: [L40S*], memory: 48GiB}
  - {name: small, match: [T4*], memory: 16GiB}
  - {name: odd, match: [X*]}
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def directory(tmp_path: Path, profile: str, path: str = "m") -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "m.yaml").write_text(
        f"apiVersion: llmgw/v1\nkind: Model\nname: m\nweights: {{path: {path}}}\nprofiles:\n  - {profile}\n"
    )
    return tmp_path


def weights(tmp_path: Path, **change: Any) -> Path:
    found = tmp_path / "weights"
    found.mkdir()
    (found / "config.json").write_text(json.dumps({**CONFIG, **change}))
    return found


def ask(tmp_path: Path, profile: str, *, as_json: bool = False, context: int = 0, concurrency: int = 0) -> None:
    show_fit(directory(tmp_path, profile), "model/m", weights(tmp_path), None, (context, concurrency), as_json=as_json)


def test_the_sum_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(tmp_path, "{engine: vllm, gpu: {class: large, count: 2}, tensor_parallel: 2}", context=8192)
    assert capsys.readouterr().out.splitlines() == [
        "m, profile default: vllm, each large",
        "  weights            7.48 GiB  14.96 GiB by config.json, over 2 cards",
        "  KV cache           0.50 GiB  32 layers, 1 x 8192 tokens, 65536 bytes for each",
        "  overhead           3.00 GiB  activations and CUDA graphs, a rule of thumb",
        "  needed            10.98 GiB",
        "  fits in 72.00 GiB of 80.00 GiB; longest context 131072; smallest class that would do: small",
    ]


def test_a_card_that_is_too_small_is_said_and_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Failed, match="m fits by none of its profiles"):
        ask(tmp_path, "{engine: vllm, gpu: {class: small}}", context=8192)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "  does not fit in 14.40 GiB of 16.00 GiB; no context fits; smallest class that would do: middle"
    )


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(tmp_path, "{engine: vllm, gpu: {class: middle}}", context=1024, concurrency=3, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["profiles"]
    assert (row["fits"], row["smallest_class"], row["context"], row["concurrency"]) == (True, "middle", 1024, 3)
    assert row["needed"] == sum(line["size"] for line in row["lines"])


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("{engine: vllm, gpu: {class: odd}}", "the cluster's class odd has no `memory`"),
        ("{engine: llamacpp}", "the profile has no `memory`"),
        ("{engine: llamacpp, memory: 64GiB}", "fits in 64.00 GiB of 64.00 GiB; longest context"),
        ("{engine: tei}", "what tei needs cannot be told"),
    ],
)
def test_what_is_not_known_is_said_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: str, said: str
) -> None:
    ask(tmp_path, profile)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "address", "error", "advice"),
    [
        ("m", "model/m", Failed, "--weights-dir"),
        ("/none/m.gguf", "model/m", Failed, "name a copy of it by --weights"),
        ("m", "cluster", WrongUsage, "write model/NAME"),
        ("m", "model/n", Failed, "there is no model"),
    ],
)
def test_what_is_not_there_is_one_line_with_advice(
    tmp_path: Path, path: str, address: str, error: type[Failed], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        show_fit(directory(tmp_path, "{engine: vllm}", path), address, None, None, (0, 0), as_json=False)


def safetensors(path: Path, size: int) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_only_the_files_of_the_index_are_counted(tmp_path: Path) -> None:
    found = weights(tmp_path)
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        safetensors(found / name, 100)
    assert shape_of(found).weights == 300
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    (found / "model.safetensors.index.json").write_text(json.dumps(index))
    assert shape_of(found).weights == 200


def test_all_parts_of_a_split_gguf_file_are_counted(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(OSError, match="m-00002-of-00002"):
        shape_of(first)
    writer = gguf.GGUFWriter(str(tmp_path / "m-00002-of-00002.gguf"), "llama")
    writer.add_tensor("more", np.zeros(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    alone = shape_of(write_tiny_gguf(tmp_path / "m.gguf")).weights
    assert shape_of(first).weights == alone + 256


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(Unsized):
        shape_of(tmp_path)


def test_validate_warns_of_a_profile_that_cannot_run_where_the_weights_are_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = weights(tmp_path)
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    both = "{name: a, engine: vllm, gpu: {class: small}}\n  - {name: b, engine: vllm, gpu: {class: middle}}"
    directory(cluster, both, path=str(place))
    validate_directory(cluster, "text", index=False)
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == (
        "m.yaml:6:5 warning: a card of 16.0 GiB is too small: its weights take 15.0 GiB of the 14.7 GiB that the engine may "
        "have, and a request of full length 16.0 GiB (see `llmgw fit`)"
    )
    assert "m.yaml:7" not in said.out
    assert "valid: cluster c" in said.err
    directory(cluster, both, path="weights")
    validate_directory(cluster, "text", index=False)
    assert "too small" not in capsys.readouterr().out, "nobody knows where a relative path begins"
    node = f"apiVersion: llmgw/v1\nkind: Node\nname: n\nlocal: true\nweights_dir: {tmp_path}\n"
    (cluster / "n.yaml").write_text(node)
    validate_directory(cluster, "text", index=False)
    assert "too small" in capsys.readouterr().out
