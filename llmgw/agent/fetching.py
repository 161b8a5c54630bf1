"""The agent's side of fetches: one program a shard (`llmgw.agent.fetch`), its words turned into events.

The agent holds no state of its own about a fetch: what is on the disk is the state, and a fetch that is ended at any moment
goes on from there.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from llmgw.agent.asked import Child, Errors
from llmgw.agent.events import Fetched, FetchProgress, NotFetched
from llmgw.base.ids import ShardId
from llmgw.engines.shard import ShardSpec
from llmgw.engines.weights import HubFetch, Source
from llmgw.fleet.report import Reason
from llmgw.runtime.supervisor import Owned, Supervisor

log = logging.getLogger(__name__)

Word = FetchProgress | Fetched | NotFetched


class Fetches:
    """The fetches under way. Use from the event loop's thread; `tasks` owns what runs, so stopping it ends them all."""

    def __init__(self, tasks: Supervisor, tell: Callable[[Word], None]) -> None:
        self._tasks = tasks
        self._tell = tell
        self._running: dict[ShardId, Owned] = {}

    def begin(self, spec: ShardSpec, directory: Path | None) -> None:
        """Fetch a shard's weights into a directory; an earlier fetch of the shard is ended."""
        source = spec.fetch
        assert source is not None
        self.cancel(spec.shard)
        job = self._fetch(spec.shard, source, directory / spec.weights if directory is not None else None)
        self._running[spec.shard] = self._tasks.job(f"fetch {spec.shard}", job)

    def cancel(self, shard: ShardId) -> None:
        """End a fetch, if there is one. What has come stays on the disk."""
        running = self._running.pop(shard, None)
        if running is not None:
            running.cancel()

    async def _fetch(self, shard: ShardId, source: Source, target: Path | None) -> None:
        if target is None:
            text = "the node has no directory for weights; set the node's `weights_dir` or start the agent with --weights-dir"
            self._tell(NotFetched(shard, source, Reason("no_weights_dir", text)))
            return
        if target.exists():
            self._tell(Fetched(shard, source))
            return
        if isinstance(source, HubFetch):
            text = "this version of the agent fetches nothing from a hub; update llmgw on the node"
            self._tell(NotFetched(shard, source, Reason("fetch_broken", text)))
            return
        argv = [sys.executable, "-m", "llmgw.agent.fetch", "--url", source.url, "--sha256", source.sha256]
        try:
            child = Child([*argv, "--target", str(target)], Errors.OURS)
        except OSError as error:
            self._tell(NotFetched(shard, source, Reason("fetch_broken", f"cannot run the fetch: {error.strerror}")))
            return
        log.info("fetching", extra={"shard": shard, "url": source.url, "target": target, "pid": child.pid})
        try:
            while (line := await child.line()) is not None:
                word = _word(shard, source, line)
                match word:
                    case FetchProgress():
                        self._tell(word)
                    case Fetched() | NotFetched():
                        log.info("fetch ended", extra={"shard": shard, "outcome": line.decode(errors="replace")})
                        self._tell(word)
                        return
                    case None:
                        continue
                    case _:
                        assert_never(word)
            self._tell(
                NotFetched(shard, source, Reason("fetch_broken", "the fetch ended without a word; see the agent's log"))
            )
        finally:
            child.kill()  # reaped with everything else that ends
            child.close()


def _word(shard: ShardId, source: Source, line: bytes) -> Word | None:
    try:
        said = json.loads(line)
        if "error" in said:
            return NotFetched(shard, source, Reason(str(said["error"]), str(said["text"])))
        if "fetched" in said:
            return Fetched(shard, source)
        return FetchProgress(shard, source, int(said["done"]), said["total"])
    except (ValueError, KeyError, TypeError):
        return None
