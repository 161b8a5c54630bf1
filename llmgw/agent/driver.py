"""The agent's side of `llmgw.agent.nvml`: one process that asks the driver, and a deadline on each of its answers.

A call into a wedged driver hangs for ever, and a process that hangs in the kernel does not even die of SIGKILL. So a
late process is killed, and the next is started only when it is gone: there is never more than one, and after a
failure the next comes later each time. Meanwhile every reading says which call hangs.
"""

import asyncio
import ctypes
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from llmgw.agent.asked import PATIENCE_AFTER_KILL, Child, Errors
from llmgw.agent.cards import CallError, Card, Fabric, Maker, Reading
from llmgw.runtime.backoff import Backoff

LIMIT = 10.0
"""Seconds for one answer. Reading eight well cards takes some tens of milliseconds; opening the driver, seconds."""

FRESH_AFTER = 60.0
"""Seconds between two tries to see a card again that was lost, which needs the driver opened anew."""

PROGRAM = (sys.executable, "-m", "llmgw.agent.nvml", "3")

_LIBRARY_NOT_FOUND = 12


def library_present() -> bool:
    """Whether NVIDIA's library can be loaded here; without it no process is started, so that a CPU node pays nothing."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class NvmlDriver:
    """NVIDIA's cards. `read` from one task only; `close` it."""

    maker = Maker.NVIDIA

    def __init__(
        self,
        rng: random.Random,
        *,
        program: Sequence[str] = PROGRAM,
        present: Callable[[], bool] = library_present,
        child: type[Child] = Child,
        limit: float = LIMIT,
        fresh_after: float = FRESH_AFTER,
    ) -> None:
        self._program = program
        self._present = present
        self._make_child = child
        self._limit = limit
        self._fresh_after = fresh_after
        self._backoff = Backoff(2.0, 300.0, rng)
        self._child: Child | None = None
        self._stuck: Child | None = None
        self._note = -1
        self._asked = 0
        self._not_before = 0.0
        self._opened = 0.0
        self._known: set[str] = set()
        self._missing: frozenset[str] = frozenset()
        self._trouble = ""

    @property
    def there(self) -> bool:
        """Whether this maker's cards may be on this machine."""
        return self._present()

    async def read(self, *, urgent: bool) -> Reading:  # noqa: ARG002 - every read is as new as can be
        """Return what the driver says now. Takes `limit` seconds at most, and 2 more where it hangs."""
        if self._child is None and not self._present():
            return Reading() if not self._known else Reading(cards=None, trouble="the driver's library is gone")
        if self._child is None:
            await self._start()
        child = self._child
        if child is None:
            return Reading(cards=None, trouble=self._trouble)
        loop = asyncio.get_running_loop()
        fresh = bool(self._missing) and loop.time() - self._opened >= self._fresh_after
        if fresh:
            self._opened = loop.time()
        try:
            async with asyncio.timeout(self._limit):
                answer = await self._exchange(child, fresh=fresh)
        except TimeoutError:
            return await self._failed(child, f"the driver does not answer ({self._hanging()}, {self._limit:g} s)")
        if answer is None:
            return await self._failed(child, f"the process that asks the driver ended ({self._hanging()})")
        self._backoff.reset()
        return self._understood(answer)

    async def close(self) -> None:
        """End the process."""
        for child in (self._child, self._stuck):
            if child is not None:
                child.end_of_input()
                child.kill()
                await child.gone(PATIENCE_AFTER_KILL)
                child.close()
        self._child = self._stuck = None
        if self._note >= 0:
            os.close(self._note)
            self._note = -1

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._stuck is not None:
            if not await self._stuck.gone(0.0):
                return
            self._stuck.close()
            self._stuck = None
        if loop.time() < self._not_before:
            return
        if self._note < 0:
            self._note = os.memfd_create("nvml-call")
        os.pwrite(self._note, b" " * 64, 0)
        try:
            self._child = self._make_child(self._program, Errors.OURS, shared=self._note)
        except OSError as error:
            self._trouble = f"cannot start the process that asks the driver: {error.strerror}"
            self._not_before = loop.time() + self._backoff.next()
            return
        self._opened = loop.time()

    async def _exchange(self, child: Child, *, fresh: bool) -> dict[str, Any] | None:
        self._asked += 1
        request = json.dumps({"id": self._asked, "fresh": fresh}) + "\n"
        try:
            child.write(request.encode())
        except OSError:
            return None
        while True:
            line = await child.line()
            if line is None:
                return None
            if not line.startswith(b"{"):
                continue  # the driver's library may print what it likes
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == self._asked:
                return answer

    async def _failed(self, child: Child, why: str) -> Reading:
        self._child = None
        child.kill()
        self._trouble = why
        if await child.gone(PATIENCE_AFTER_KILL):
            child.close()
        else:
            self._stuck = child
            self._trouble = f"{why}; its process (pid {child.pid}) hangs in the kernel and cannot be ended"
        self._not_before = asyncio.get_running_loop().time() + self._backoff.next()
        return Reading(cards=None, trouble=self._trouble)

    def _hanging(self) -> str:
        return os.pread(self._note, 64, 0).decode(errors="replace").strip() or "before its first call"

    def _understood(self, answer: dict[str, Any]) -> Reading:
        if "failed" in answer:
            failed = answer["failed"]
            if failed["code"] == _LIBRARY_NOT_FOUND and not self._known:
                return Reading()
            return Reading(cards=None, trouble=f"the driver cannot be asked: {failed['text']}")
        cards = tuple(_card(one) for one in answer["cards"])
        here = {card.uuid for card in cards}
        self._missing = frozenset(self._known - here) | {card.uuid for card in cards if card.errors}
        unknown = len(answer["broken"]) - len(self._known - here)
        self._known |= here
        troubles = [one["failed"]["text"] for one in answer["broken"]] if unknown > 0 else []
        trouble = f"{len(troubles)} card(s) cannot be read: {troubles[0]}" if troubles else ""
        if answer["events"]["trouble"] and not trouble:
            trouble = f"errors of cards cannot be heard: {answer['events']['trouble']}"
        xids = tuple((uuid, xid) for uuid, xid in answer["events"]["xids"])
        return Reading(driver=answer["driver"], cards=cards, trouble=trouble, xids=xids)


def _card(one: dict[str, Any]) -> Card:
    fabric = one["fabric"]
    return Card(
        maker=Maker.NVIDIA,
        uuid=one["uuid"],
        bus=one["bus"],
        name=one["name"],
        memory=one["memory"],
        used=one["used"],
        users=tuple((pid, memory) for pid, memory in one["users"]),
        numa=one["numa"],
        peers=tuple(one["peers"]),
        errors=tuple(CallError(error["code"], error["text"]) for error in one["errors"]),
        ecc=one["ecc"],
        remap_pending=one["remap_pending"],
        remap_failed=one["remap_failed"],
        recovery=one["recovery"],
        partitioned=one["mig"],
        fabric=Fabric(**fabric) if fabric is not None else None,
    )
