"""What an engine's adapter is, and the table of those there are. What an engine can do at all is in `facts`."""

from collections.abc import Mapping
from typing import Protocol

from llmgw.engines.command import Command
from llmgw.engines.llamacpp import LlamaCpp
from llmgw.engines.placed import Placed
from llmgw.engines.sglang import Sglang
from llmgw.engines.shard import ShardSpec
from llmgw.engines.tei import Tei
from llmgw.engines.vllm import Vllm


class Engine(Protocol):
    """One engine: pure functions over specs."""

    name: str
    ports: int
    """Consecutive TCP ports that a shard gets: the first for HTTP, the others for what the engine opens besides."""

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the replica's shards in order of rank; the first serves HTTP."""
        ...


ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (LlamaCpp(), Vllm(), Sglang(), Tei(), Command())}
"""Every engine by the name that profiles use."""
