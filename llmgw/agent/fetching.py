"""The agent's side of fetches: one program a shard (`llmgw.agent.fetch`, `fetch_hub`), its words turned into events.

Shards that wait for the same weights have a program each, of which one fetches and the others wait for its lock.

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
from llmgw.engines.weights import HubFetch, Source, UrlFetch, stored_name, told
from llmgw.fleet.report import Reason
from llmgw.runtime.supervisor import Owned, Supervisor

log = logging.getLogger(__name__)

HUB = ("HF_ENDPOINT", "HF_TOKEN")
"""Variables of an engine's environment that its fetch gets, too, over the agent's own."""

Word = FetchProgress | Fetched | NotFetched


class Fetches:
    """The fetches under way. Use from the event loop's thread; `tasks` owns what runs, so stopping it ends them all."""

    def __init__(self, tasks: Supervisor, secret: Callable[[str], str | None], tell: Callable[[Word], None]) -> None:
        """`secret` returns the value of a secret by its name, or None."""
        self._tasks = tasks
        self._secret = secret
        self._tell = tell
        self._running: dict[ShardId, Owned] = {}

    def begin(self, spec: ShardSpec, directory: Path | None) -> None:
        """Fetch a shard's weights into a directory; an earlier fetch of the shard is ended."""
        source = spec.fetch
        assert source is not None
        self.cancel(spec.shard)
        target = directory / stored_name(source) if directory is not None else None
        job = self._fetch(spec.shard, source, target, self._environment(spec))
        self._running[spec.shard] = self._tasks.job(f"fetch {spec.shard}", job)

    def cancel(self, shard: ShardId) -> None:
        """End a fetch, if there is one. What has come stays on the disk."""
        running = self._running.pop(shard, None)
        if running is not None:
            running.cancel()

    def _environment(self, spec: ShardSpec) -> dict[str, str]:
        """Return the engine's variables that say which hub is asked, and what it is shown."""
        given = {name: value for name, value in spec.env.items() if name in HUB}
        for name, secret in spec.secrets.items():
            value = self._secret(secret) if name in HUB else None
            if value is not None:
                given[name] = value
        return given

    async def _fetch(self, shard: ShardId, source: Source, target: Path | None, env: dict[str, str]) -> None:
        if target is None:
            text = "the node has no directory for weights; set the node's `weights_dir` or start the agent with --weights-dir"
            self._tell(NotFetched(shard, source, Reason("no_weights_dir", text)))
            return
        if target.exists():
            self._tell(Fetched(shard, source))
            return
        try:
            child = Child([sys.executable, "-m", *_program(source), "--target", str(target)], Errors.OURS, env=env)
        except OSError as error:
            self._tell(NotFetched(shard, source, Reason("fetch_broken", f"cannot run the fetch: {error.strerror}")))
            return
        log.info("fetching", extra={"shard": shard, "source": told(source), "target": target, "pid": child.pid})
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


def _program(source: Source) -> list[str]:
    """Return the program that fetches from a source, and its arguments but for the target."""
    match source:
        case UrlFetch(url, sha256):
            return ["llmgw.agent.fetch", "--url", url, "--sha256", sha256]
        case HubFetch(repo, commit, files):
            chosen = [argument for pattern in files for argument in ("--file", pattern)]
            return ["llmgw.agent.fetch_hub", "--repo", repo, "--commit", commit, *chosen]


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
