"""Questions for logs: the end, what follows an offset, and an answer that waits for more without holding anything up."""

import asyncio
from pathlib import Path

import pytest

from llmgw.agent import log_reader
from llmgw.agent.disk import Disk
from llmgw.agent.log_reader import CHUNK, LogReader
from llmgw.base.ids import ShardId
from llmgw.sim.loop import simulate
from llmgw.wire.messages import LogReply, LogRequest

SHARD = ShardId("m-1-0.s0")


class Logs:
    """A shard's logs, and whether its newest attempt runs."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk(root)
        self.disk.open()
        self.running = {1}
        self.reader = LogReader(self.disk, lambda shard, attempt: shard == SHARD and attempt in self.running)

    def write(self, text: str, attempt: int = 1) -> None:
        with self.disk.log_path(SHARD, attempt).open("ab") as file:
            file.write(text.encode())

    async def ask(
        self, *, attempt: int = 0, lines: int = 100, offset: int | None = None, wait: float = 0.0
    ) -> LogReply:
        return await self.reader.answer(LogRequest(7, SHARD, attempt, lines, offset, wait))


@pytest.fixture
def logs(tmp_path: Path):
    made = Logs(tmp_path)
    yield made
    made.disk.close()


async def test_the_end_of_a_log_says_where_to_go_on(logs: Logs) -> None:
    logs.write("a\nb\nc\n")
    reply = await logs.ask(lines=2)
    assert (reply.id, reply.lines, reply.next, reply.ended) == (7, ("b", "c"), 6, False)
    logs.write("d\n")
    more = await logs.ask(offset=reply.next)
    assert (more.lines, more.start, more.next) == (("d",), 6, 8)


async def test_a_name_that_leads_out_of_the_logs_has_none(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/1.log").write_text("not a log\n")
    for name in ("../secrets", "../logs/../secrets", str(tmp_path / "secrets")):
        reply = await logs.reader.answer(LogRequest(7, ShardId(name), 0, 10))
        assert (reply.lines, reply.attempts) == ((), ()), name
        assert reply.error is not None


async def test_a_line_that_is_not_whole_yet_waits_for_its_end_unless_its_attempt_has_ended(logs: Logs) -> None:
    logs.write("whole\nhal")
    assert (await logs.ask(offset=0)).lines == ("whole",)
    logs.running.clear()
    reply = await logs.ask(offset=6)
    assert (reply.lines, reply.ended) == (("hal",), True)


async def test_a_large_log_comes_in_pieces_that_end_with_a_line(logs: Logs) -> None:
    logs.write("".join(f"line {n}\n" for n in range(20_000)))
    offset, lines = 0, []
    while True:
        reply = await logs.ask(offset=offset)
        if not reply.lines:
            break
        assert reply.next - reply.start <= CHUNK
        lines += reply.lines
        offset = reply.next
    assert lines == [f"line {n}" for n in range(20_000)]


async def test_a_line_without_an_end_does_not_stop_a_follower(logs: Logs) -> None:
    logs.write("x" * (CHUNK + 10))
    reply = await logs.ask(offset=0)
    assert reply.next == CHUNK


def test_an_answer_waits_for_more_and_no_longer_than_it_was_asked_to(logs: Logs) -> None:
    async def follow() -> None:
        loop = asyncio.get_running_loop()
        logs.write("a\n")
        begun = loop.time()
        assert (await logs.ask(offset=2, wait=20)).lines == ()
        assert loop.time() - begun == pytest.approx(20, abs=log_reader.LOOK_EVERY)
        loop.call_later(3.0, logs.write, "b\n")
        begun = loop.time()
        assert (await logs.ask(offset=2, wait=20)).lines == ("b",)
        assert loop.time() - begun <= 3.0 + log_reader.LOOK_EVERY
        begun = loop.time()
        await logs.ask(offset=4, wait=9e9)
        assert loop.time() - begun <= log_reader.LONGEST_WAIT + log_reader.LOOK_EVERY

    simulate(follow)


async def test_what_is_not_there_is_said_with_what_is(logs: Logs) -> None:
    assert (await logs.ask()).error == "there is no log of attempt 0 of m-1-0.s0 on this node; kept: none"
    logs.write("a\n")
    logs.write("b\n", attempt=2)
    assert (await logs.ask(attempt=9)).error == "there is no log of attempt 9 of m-1-0.s0 on this node; kept: 1, 2"
    reply = await logs.ask(attempt=1, offset=0)
    assert (reply.lines, reply.attempts) == (("a",), (1, 2)), "a follower sees that there is a newer attempt"
