"""Reads how large a model is from files on this machine: headers only, whatever the files weigh.

A GGUF file (all parts of a split one), or a directory with `config.json` and safetensors files.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmgw.engines.headers import gguf, gguf_bytes, safetensors_bytes
from llmgw.engines.shape import Shape, Unsized, of_config, packed

INDEX = "model.safetensors.index.json"
AT_MOST = 200
"""Weights whose shape a node tells; the first by path."""
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")


class Shapes:
    """The shapes of what lies on a node; each is read once, and again when its size has changed. For one caller at a time."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, Shape | None]] = {}

    def of(self, root: Path, weights: Mapping[str, int]) -> Mapping[str, Shape]:
        """Return path below `root` -> shape, of those weights that say it. Blocks, for as long as the disk takes."""
        before, self._read = self._read, {}
        found: dict[str, Shape] = {}
        for name in list(weights)[:AT_MOST]:
            path, size = root / name, weights[name]
            known = before.get(path)
            shape = known[1] if known is not None and known[0] == size else _shape_or_none(path)
            self._read[path] = (size, shape)
            if shape is not None:
                found[name] = shape
        return found


def _shape_or_none(path: Path) -> Shape | None:
    try:
        return packed(shape_of(path))
    except (Unsized, OSError, OverflowError, RecursionError):
        return None


def shape_of(path: Path) -> Shape:
    """Return the shape of the weights at a path: a GGUF file, a directory with `config.json`, or such a file.

    Raises Unsized and OSError.
    """
    if path.is_dir():
        return _of_directory(path)
    if path.suffix != ".gguf":
        return of_config(_json(path))
    match = _PART.search(path.name)
    parts = int(match[1]) if match else 1
    names = [
        path.name[: -len("00001-of-00001.gguf")] + f"{part:05d}-of-{parts:05d}.gguf" for part in range(2, parts + 1)
    ]
    with path.open("rb") as file:
        shape = gguf(file)
    for name in names:
        with path.with_name(name).open("rb") as file:
            shape = replace(shape, weights=shape.weights + gguf_bytes(file))
    return shape


def _of_directory(path: Path) -> Shape:
    config = _json(path / "config.json")
    index = path / INDEX
    if index.is_file():
        placed = _json(index).get("weight_map")
        files = sorted({str(name) for name in placed.values()}) if isinstance(placed, dict) else []
    else:
        files = sorted(each.name for each in path.glob("*.safetensors"))
    if not files:
        return of_config(config)
    total = 0
    for name in files:
        with (path / name).open("rb") as file:
            total += safetensors_bytes(file)
    return of_config(config, total)


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_bytes())
    except ValueError as error:
        raise Unsized(f"{path.name} is no JSON; fetch it again") from error
    if not isinstance(read, dict):
        raise Unsized(f"{path.name} is not what it should be; fetch it again")
    return read
