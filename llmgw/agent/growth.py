"""Whether the log of a starting engine grows by its own doing: lines that our probes put there are no progress."""

import re

from llmgw.agent.disk import Disk
from llmgw.base.ids import ShardId
from llmgw.engines.shard import ShardSpec

AT_ONCE = 64 << 10
"""Bytes that are looked at in one look; of more, the end."""


class LogGrowth:
    """How far the logs have come, look by look. Blocks for one small read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[ShardId, tuple[int, int, int, str]] = {}

    def look(self, spec: ShardSpec, attempt: int) -> tuple[int, str]:
        """Return (bytes so far, last line) of an attempt's log, without our own lines."""
        known, offset, grown, last = self._known.get(spec.shard, (attempt, 0, 0, ""))
        if known != attempt:
            offset, grown, last = 0, 0, ""
        start, data, size = self._disk.read(spec.shard, attempt, offset, AT_ONCE)
        if size - start > AT_ONCE:
            grown += size - AT_ONCE - start
            start, data, _ = self._disk.read(spec.shard, attempt, size - AT_ONCE, AT_ONCE)
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        own = (spec.ready_path, spec.models_path, spec.metrics.path if spec.metrics else spec.ready_path)
        for line in re.split(r"[\r\n]+", data[:whole].decode(errors="replace")):
            # the first line of each log is the command line, by the agent
            if line.strip() and not line.startswith("# ") and not any(path and path in line for path in own):
                grown += len(line)
                last = line.strip()
        self._known[spec.shard] = (attempt, start + whole, grown, last)
        return grown + len(data) - whole, last

    def forget(self, shard: ShardId) -> None:
        """Drop what is known of a shard that is gone."""
        self._known.pop(shard, None)
