"""LoRA adapters of a running engine: what it has, what it lacks, and giving it that.

The engine is the only one who knows: what it has is asked of `/v1/models` and never remembered, so that an agent that was
restarted, and an engine that lost an adapter, need no rule of their own. There an adapter has a `parent`, and the path that it
was loaded from as its `root`, by which a changed one is told from its predecessor.

What an order leaves out is taken away a minute later: by then no gateway sends requests for it any more. A changed one is
loaded over the old one, where the engine can (`load_inplace`), so that there is no moment without any.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from llmgw.engines.shard import LoraAdapter, LoraPaths

UNLOAD_AFTER = 60.0
"""Seconds after which an adapter that is not wanted is taken away."""
LIMIT = 300.0
"""Seconds for one adapter: it comes from a disk."""
SHOWN = 300
"""Characters of an engine's complaint that are told."""


@dataclass(frozen=True, slots=True)
class AdapterLook:
    """What a look found, against what was wanted then."""

    wanted: tuple[LoraAdapter, ...]
    there: frozenset[str]
    """Names that the engine has, in this version or another."""
    lacking: tuple[LoraAdapter, ...]
    """Those that it has not, or in another version."""
    surplus: tuple[str, ...]


def compare(models: object, wanted: tuple[LoraAdapter, ...], directory: Path | None) -> AdapterLook:
    """Return what an answer of `/v1/models` says; `directory` is where relative paths begin."""
    has: dict[str, str] = {}
    listed = models.get("data") if isinstance(models, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and entry.get("parent") and isinstance(entry.get("id"), str):
            has[entry["id"]] = str(entry.get("root"))
    return AdapterLook(
        wanted=wanted,
        there=frozenset(has),
        lacking=tuple(one for one in wanted if has.get(one.name) != str(path_of(one, directory))),
        surplus=tuple(sorted(has.keys() - {one.name for one in wanted})),
    )


def path_of(adapter: LoraAdapter, directory: Path | None) -> Path:
    """Return where an adapter lies; a relative path begins at the weights directory, if there is one."""
    return directory / adapter.weights if directory is not None else Path(adapter.weights)


async def change(
    http: aiohttp.ClientSession,
    base: str,
    paths: LoraPaths,
    load: Sequence[tuple[LoraAdapter, Path]],
    unload: Sequence[str],
) -> Mapping[str, str]:
    """Take adapters away and give others; return why some of those were not taken, by name. Takes `LIMIT` each at most."""
    for name in unload:
        await _post(http, base + paths.unload, {"lora_name": name})  # if it is there still, the next look says so
    failed = {}
    for adapter, path in load:
        if not path.exists():
            failed[adapter.name] = f"{path} does not exist on this node; put it there"
            continue
        body = {"lora_name": adapter.name, "lora_path": str(path)}
        complaint = await _post(http, base + paths.load, {**body, "load_inplace": True})
        if complaint.startswith("400") and not await _post(http, base + paths.unload, {"lora_name": adapter.name}):
            complaint = await _post(http, base + paths.load, body)  # it had another version, and replaces none
        if complaint:
            failed[adapter.name] = f"the engine answers {complaint}"
    return failed


async def _post(http: aiohttp.ClientSession, url: str, body: Mapping[str, object]) -> str:
    """Return what an engine complains of; empty if it does as it is told."""
    try:
        async with asyncio.timeout(LIMIT), http.post(url, json=body) as answer:
            text = (await answer.content.read(4096)).decode(errors="replace")
            return "" if answer.status == 200 else f"{answer.status}: {' '.join(text.split())[:SHOWN]}"
    except TimeoutError:
        return f"nothing within {LIMIT:.0f} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"not at all ({type(error).__name__})"
