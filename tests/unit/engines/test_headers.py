"""What the headers of files with weights say, of files as the formats' own libraries write them and of broken ones."""

import io
import json
import struct
from pathlib import Path

import gguf as library
import numpy as np
import pytest

from llmgw.engines.headers import QUANTS, gguf, safetensors_bytes
from llmgw.engines.shape import Layer, Unsized
from tests.fakes.gguf_file import CONTEXT, FEED_FORWARD, HEADS, WIDTH, write_tiny_gguf


def safetensors(header: object) -> bytes:
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data


def test_a_gguf_file_as_its_library_reads_it(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with path.open("rb") as file:
        shape = gguf(file)
    tensors = {each.name: int(each.n_bytes) for each in library.GGUFReader(path).tensors}
    assert shape.weights == sum(tensors.values())
    assert shape.on_host == tensors["token_embd.weight"]
    assert (shape.context, shape.width, shape.inner) == (CONTEXT, WIDTH, FEED_FORWARD)
    assert shape.layers == (Layer(HEADS, 2 * WIDTH // HEADS),)


def test_the_sizes_of_types_are_the_librarys() -> None:
    assert {int(kind): sizes for kind, sizes in library.GGML_QUANT_SIZES.items()} == QUANTS


def test_quantized_tensors_are_counted_by_blocks(tmp_path: Path) -> None:
    writer = library.GGUFWriter(str(tmp_path / "some.gguf"), "some")
    for name in ("block_count", "embedding_length", "attention.head_count"):
        writer.add_uint32(f"some.{name}", 1)
    for kind, size in ((library.GGMLQuantizationType.Q8_0, 34), (library.GGMLQuantizationType.Q4_K, 144)):
        writer.add_tensor(kind.name, np.zeros((3, size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with (tmp_path / "some.gguf").open("rb") as file:
        assert gguf(file).weights == 3 * (34 + 144)


def test_a_gguf_file_that_ends_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    data = write_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    with (tmp_path / "tiny.gguf").open("rb") as file:
        gguf(file)
        end = file.tell()
    for length in range(0, end, 37):
        with pytest.raises(Unsized):
            gguf(io.BytesIO(data[:length]))


@pytest.mark.parametrize(
    "data",
    [b"GGUF" + struct.pack("<IQQ", 1, 0, 0), b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), b"PK\3\4" + bytes(40)],
)
def test_what_is_no_gguf_file_is_refused(data: bytes) -> None:
    with pytest.raises(Unsized):
        gguf(io.BytesIO(data))


def write(path: Path, heads: list[int], **pairs: int | list[bool]) -> Path:
    writer = library.GGUFWriter(str(path), "some")
    for name, value in {"block_count": len(heads), "embedding_length": 64, "attention.head_count": 4}.items():
        writer.add_uint32(f"some.{name}", value)
    writer.add_array("some.attention.head_count_kv", heads)
    for name, value in pairs.items():
        if isinstance(value, list):
            writer.add_array(f"some.{name.replace('__', '.')}", value)
        else:
            writer.add_uint32(f"some.{name.replace('__', '.')}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("heads", "pairs", "layers"),
    [
        ([2, 0, 4], {}, (Layer(2, 32), Layer(4, 32))),
        ([2, 2], {"attention__key_length": 8, "attention__value_length": 4}, (Layer(2, 12),) * 2),
        (
            [2, 2],
            {"attention__sliding_window": 100, "attention__sliding_window_pattern": [True, False]},
            (Layer(2, 32, 100), Layer(2, 32)),
        ),
        ([2] * 4, {"full_attention_interval": 4}, (Layer(2, 32),)),
    ],
)
def test_what_each_layer_of_a_gguf_file_keeps(
    tmp_path: Path, heads: list[int], pairs: dict[str, int | list[bool]], layers: tuple[Layer, ...]
) -> None:
    with write(tmp_path / "some.gguf", heads, **pairs).open("rb") as file:
        assert gguf(file).layers == layers


def test_the_tensors_of_a_safetensors_file() -> None:
    one = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
    two = {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [8, 11]}
    assert safetensors_bytes(io.BytesIO(safetensors({"__metadata__": {"format": "pt"}, "a": one, "b": two}))) == 11


@pytest.mark.parametrize(
    "data", [b"", struct.pack("<Q", 1 << 50), safetensors([1]), safetensors({"a": {}}), safetensors({"a": 1})[:-3]]
)
def test_what_is_no_safetensors_file_is_refused(data: bytes) -> None:
    with pytest.raises(Unsized):
        safetensors_bytes(io.BytesIO(data))
