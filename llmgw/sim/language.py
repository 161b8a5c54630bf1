"""The words of a simulation script that write a cluster directory down: what `node`, `model` and `cluster` make of a line."""

import shlex
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmgw.fleet.report import Gpu
from llmgw.sim.directory import Object, cluster, model, node
from llmgw.spec.common import Duration, Size

GIB = 1 << 30
_SECONDS: TypeAdapter[float] = TypeAdapter(Duration)
_BYTES: TypeAdapter[int] = TypeAdapter(Size)
CARDS = {"h100": ("NVIDIA H100 80GB HBM3", 80 * GIB), "l40s": ("NVIDIA L40S", 48 * GIB), "t4": ("Tesla T4", 16 * GIB)}
"""Class -> (name that the driver gives a card of it, bytes)."""
CLASSES = [{"name": name, "match": [card]} for name, (card, _) in CARDS.items()]


class ScriptError(Exception):
    """A line of a script is not understood, or cannot be done; the message says what to write."""


def words_of(line: str) -> list[str]:
    """Return the words of a line without its comment. Raises ScriptError."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ScriptError(f"cannot be read: {error}") from error


def seconds(text: str) -> float:
    """Return the seconds of `5s` or `2m`. Raises ScriptError."""
    try:
        return _SECONDS.validate_python(text)
    except ValidationError:
        raise ScriptError(f"{text!r} is no duration; write 5s, 2m or 1h") from None


def size(text: str) -> int:
    """Return the bytes of `20GiB`. Raises ScriptError."""
    try:
        return _BYTES.validate_python(text)
    except ValidationError:
        raise ScriptError(f"{text!r} is no size; write 20GiB or 512MiB") from None


def number(text: str) -> int:
    """Return a whole number. Raises ScriptError."""
    if not text.isdecimal():
        raise ScriptError(f"{text!r} is no whole number")
    return int(text)


def cluster_of(words: list[str]) -> Object:
    """Return the `Cluster` with some of its settings."""
    given = pairs(words)
    control: dict[str, Any] = {
        "interval": given.pop("interval", "5s"),
        "unreachable_after": given.pop("unreachable_after", "10s"),
        "lost_after": given.pop("lost_after", "5m"),
        "backoff": {"base": "2s", "max": "1m", "give_up_after": number(given.pop("give_up_after", "3"))},
        "brake": {"share": given.pop("brake_share", "50%"), "min_nodes": number(given.pop("brake_nodes", "2"))},
    }
    if "ports" in given:
        first, _, last = given.pop("ports").partition("-")
        control["ports"] = [number(first), number(last)]
    drain = given.pop("drain", "1m")
    _nothing_left("cluster", given)
    return cluster(gpu_classes=CLASSES, control=control, router={"timeouts": {"drain": drain}})


def node_of(name: str, words: list[str]) -> tuple[Object, dict[str, Any]]:
    """Return (the `Node`, what its machine has)."""
    local = "local" in words
    given = pairs([word for word in words if word != "local"])
    gpu_class = given.pop("class", "h100")
    if gpu_class not in CARDS:
        raise ScriptError(f"there is no class {gpu_class!r}; there are {', '.join(CARDS)}")
    card, memory = CARDS[gpu_class]
    has = number(given.pop("gpus", "0"))
    cards = [Gpu(f"GPU-{name}-{index}", index, card, memory, 0, numa=index // 4) for index in range(has)]
    machine: dict[str, Any] = {"cpus": number(given.pop("cpus", "8")), "local": local, "cards": cards}
    if "memory" in given:
        machine["memory"] = size(given.pop("memory"))
    fields: dict[str, Any] = {key: given.pop(key) for key in ("pool", "fabric") if key in given}
    if "reserved" in given:
        fields["reserved"] = {"gpus": number(given.pop("reserved"))}
    if "expect" in given:
        fields["expect"] = {"gpus": number(given.pop("expect")), "gpu_class": gpu_class}
    if "label" in given:
        key, _, value = given.pop("label").partition("=")
        fields["labels"] = {key: value}
    _nothing_left("node", given)
    return node(name, **fields, **({"local": True} if local else {})), machine


def model_of(name: str, words: list[str]) -> Object:
    """Return the `Model`."""
    args: list[str] = []
    if "args" in words:
        args = words[words.index("args") + 1 :]
        words = words[: words.index("args")]
    flags = {flag for flag in ("preempt", "auto_revert") if flag in words}
    given = pairs([word for word in words if word not in flags])
    profile: dict[str, Any] = {key: given.pop(key) for key in ("memory", "pool", "start_timeout") if key in given}
    if "cpus" in given:
        profile["cpus"] = number(given.pop("cpus"))
    if "label" in given:
        key, _, value = given.pop("label").partition("=")
        profile["labels"] = {key: value}
    if "gpus" in given:
        profile |= _on_cards(given)
    rollout = {key: given.pop(key) for key in ("strategy", "min_ready", "deadline") if key in given}
    rollout |= {key: number(given.pop(key)) for key in ("max_surge", "max_unavailable") if key in given}  # type: ignore[misc]
    fields: dict[str, Any] = {"aliases": [given.pop("alias")]} if "alias" in given else {}
    fields |= {key: given.pop(key) for key in ("placement", "min_life") if key in given}
    fields |= {"preempt": True} if "preempt" in flags else {}
    fields["rollout"] = {**rollout, **({"auto_revert": True} if "auto_revert" in flags else {})}
    fields["priority"] = number(given.pop("priority", "0"))
    replicas = number(given.pop("replicas", "1"))
    _nothing_left("model", given)
    return model(name, replicas, *args, profile=profile, **fields)


def _on_cards(given: dict[str, str]) -> dict[str, Any]:
    """Return a profile's fields for cards; several nodes need an engine that spans them, which takes each card for a rank."""
    count, nodes = number(given.pop("gpus")), number(given.pop("nodes", "1"))
    fields: dict[str, Any] = {"gpu": {"class": given.pop("class", "h100"), "count": count}}
    engine = given.pop("engine", "vllm" if nodes > 1 else "llamacpp")
    if engine != "llamacpp":
        across = {"pipeline_parallel": nodes} if nodes > 1 else {}
        parallel = number(given.pop("tp", str(count)))
        fields |= {"engine": engine, "nodes": nodes, "tensor_parallel": parallel, **across}
    return fields


def pairs(words: list[str]) -> dict[str, str]:
    """Return the words as key and value, in turn. Raises ScriptError."""
    if len(words) % 2:
        raise ScriptError(f"{words[-1]!r} has no value after it")
    return dict(zip(words[::2], words[1::2], strict=True))


def _nothing_left(what: str, given: dict[str, str]) -> None:
    if given:
        raise ScriptError(f"a {what} has no {', '.join(map(repr, given))}; `llmgw sim --words` lists what it has")
