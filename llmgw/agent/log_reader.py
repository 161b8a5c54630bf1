"""Answers questions for an engine's log: the end of it, or what was added from an offset on.

A follower asks again and again for what comes after the offset it has, and an answer waits a while for something to be
there. So a reader that is slow, or gone, holds nothing up and nothing is kept for it: one bounded answer a question, on the
same connection as the reports. Rejected: a stream that the agent pushes, which needs credit to be as safe.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from llmgw.agent.disk import Disk
from llmgw.base.ids import ShardId
from llmgw.wire.messages import LogReply, LogRequest

LARGEST_ANSWER = 6 << 20
"""Bytes of log that one reply carries at the most, as JSON; below the limit of a frame."""
CHUNK = 64 << 10
"""Bytes of log that a follower gets at once."""
LONGEST_WAIT = 30.0
LOOK_EVERY = 0.25
"""Seconds."""


class LogReader:
    """Reads the logs of one agent. `running` says whether an attempt of a shard may still write."""

    def __init__(self, disk: Disk, running: Callable[[ShardId, int], bool]) -> None:
        self._disk = disk
        self._running = running

    async def answer(self, request: LogRequest) -> LogReply:
        """Return what was asked for, or why there is none. Takes up to `request.wait` seconds when following."""
        attempts = self._disk.attempts(request.shard)
        attempt = request.attempt or (attempts[-1] if attempts else 0)
        reply = LogReply(request.id, attempt, tuple(attempts), ())
        if attempt not in attempts:
            kept = ", ".join(str(one) for one in attempts) or "none"
            return replace(
                reply, error=f"there is no log of attempt {attempt} of {request.shard} on this node; kept: {kept}"
            )
        if request.offset is None:
            return self._end(request, reply)
        return await self._from(request, reply, request.offset)

    def _end(self, request: LogRequest, reply: LogReply) -> LogReply:
        ended = not self._running(request.shard, reply.attempt)
        _, _, size = self._disk.read(request.shard, reply.attempt, 0, 0)
        lines = self._disk.tail(request.shard, reply.attempt, min(request.lines, 10_000))
        fitting, taken = 0, 0
        for line in reversed(lines):  # control characters take six bytes each in JSON
            taken += 6 * len(line.encode()) + 4
            if taken > LARGEST_ANSWER:
                break
            fitting += 1
        return replace(reply, lines=lines[len(lines) - fitting :], start=size, next=size, ended=ended)

    async def _from(self, request: LogRequest, reply: LogReply, offset: int) -> LogReply:
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(0.0, request.wait), LONGEST_WAIT)
        while True:
            # asked before the file is read: what it wrote before it ended is then read for certain
            ended = not self._running(request.shard, reply.attempt)
            start, data, _ = self._disk.read(request.shard, reply.attempt, offset, CHUNK)
            whole = data if ended or len(data) == CHUNK else data[: data.rfind(b"\n") + 1]
            if len(data) == CHUNK and b"\n" in data:
                whole = data[: data.rfind(b"\n") + 1]
            if whole or ended or loop.time() >= until:
                lines = tuple(whole.decode(errors="replace").splitlines())
                attempts = tuple(self._disk.attempts(request.shard))
                return replace(reply, attempts=attempts, lines=lines, start=start, next=start + len(whole), ended=ended)
            await asyncio.sleep(LOOK_EVERY)
