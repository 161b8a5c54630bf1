"""AMD's cards, by the JSON of `amd-smi` (its `list`, `static`, `metric` and `process` commands).

The program rather than the `amdsmi` module, which must be of the same version as the installed ROCm and takes its
process along when the driver hangs. It is slow, a Python program that starts anew each time: so what cannot change is
asked for once, and the rest every half minute, or at once when somebody waits for it. Its JSON changed over the
versions: a plain list up to ROCm 6.3, `{"gpu_data": [...]}` since for most commands; sizes in "MB" are MiB.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmgw.agent import procfs
from llmgw.agent.asked import Errors, Silent, ask
from llmgw.agent.cards import CallError, Card, Maker, Reading

LIMIT = 10.0
"""Seconds for one run of the program."""

EVERY = 30.0
"""Seconds between two looks that nobody waits for."""

STATIC_EVERY = 600.0
"""Seconds between two looks at what hardly changes: names, sizes, addresses."""

_MIB = 1024 * 1024


def find_program() -> str | None:
    """Return the path of `amd-smi`, if it is here and the kernel drives AMD cards for computing."""
    if not Path("/dev/kfd").exists():
        return None
    return shutil.which("amd-smi") or shutil.which("/opt/rocm/bin/amd-smi")


class AmdSmi:
    """AMD's cards. `read` from one task only."""

    maker = Maker.AMD

    def __init__(self, find: Callable[[], str | None] = find_program, *, limit: float = LIMIT) -> None:
        self._find = find
        self._limit = limit
        self._last: Reading | None = None
        self._read_at = 0.0
        self._static_at = 0.0
        self._static: tuple[list[Any], list[Any]] | None = None
        self._stuck: int | None = None

    @property
    def there(self) -> bool:
        """Whether this maker's cards may be on this machine."""
        return self._find() is not None

    async def read(self, *, urgent: bool) -> Reading:
        """Return what the program says, or what it said within the last half minute unless it is urgent."""
        loop = asyncio.get_running_loop()
        if self._last is not None and not urgent and loop.time() - self._read_at < EVERY:
            return self._last
        program = self._find()
        if program is None:
            return Reading()
        if self._stuck is not None:
            stat = procfs.stat_of(self._stuck)
            if stat is not None and stat.state == "D" and self._last is not None:
                return self._last  # never a second one into a driver that hangs
            self._stuck = None
        self._last = await self._look(program, loop.time())
        self._read_at = loop.time()
        return self._last

    async def close(self) -> None:
        """Nothing is open between two reads."""

    async def _look(self, program: str, now: float) -> Reading:
        try:
            if self._static is None or now - self._static_at >= STATIC_EVERY:
                self._static = (await self._list(program), await self._ask(program, "static"))
                self._static_at = now
            metric = await self._ask(program, "metric")
            process = await self._ask(program, "process")
        except NoAnswer as why:
            self._static = None  # cards may be others when it answers again
            return Reading(cards=None, trouble=str(why))
        return cards_of(*self._static, metric, process)

    async def _list(self, program: str) -> list[Any]:
        try:
            return await self._ask(program, "list", "-e")
        except NoAnswer as why:
            if why.hung:
                raise
            return await self._ask(program, "list")  # before ROCm 6.4 it cannot enumerate

    async def _ask(self, program: str, *command: str) -> list[Any]:
        """Return the list of cards that a command prints. Raises NoAnswer."""
        shown = " ".join(("amd-smi", *command))
        output = await ask([program, *command, "--json"], self._limit, Errors.DROPPED)
        if isinstance(output, Silent):
            self._stuck = output.stuck
            hangs = f"the driver does not answer (`{shown}`, {self._limit:g} s)"
            raise NoAnswer(hangs if output.hung else output.text, hung=output.hung)
        try:
            answer = json.loads(output)
        except ValueError as error:
            first = output.decode(errors="replace").strip().partition("\n")[0][:200]
            raise NoAnswer(f"`{shown} --json` gave no JSON: {first or 'nothing'}") from error
        if isinstance(answer, dict):
            answer = answer.get("gpu_data")
        if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
            raise NoAnswer(f"`{shown} --json` gave no list of cards")
        return answer


class NoAnswer(Exception):
    """Why the program said nothing of use; `hung` if it ran and did not end in time."""

    def __init__(self, text: str, *, hung: bool = False) -> None:
        super().__init__(text)
        self.hung = hung


def cards_of(listed: Sequence[Any], static: Sequence[Any], metric: Sequence[Any], process: Sequence[Any]) -> Reading:
    """Return what the four answers say together. They are joined by the program's own number of the card, `gpu`."""
    by_number = [{one.get("gpu"): one for one in answer} for answer in (static, metric, process)]
    cards = []
    driver = ""
    for one in listed:
        number = one.get("gpu")
        fixed, now, users = (known.get(number, {}) for known in by_number)
        version = _at(fixed, "driver", "version")
        driver = driver or (str(version) if version is not None else "")
        cards.append(_card(one, fixed, now, users))
    return Reading(driver=driver, cards=tuple(cards))


def _card(listed: Mapping[str, Any], fixed: Any, now: Any, process: Any) -> Card:
    index = _number(listed.get("hip_id"))
    ecc = _number(_at(now, "ecc", "total_uncorrectable_count"))
    size = _number(_at(now, "mem_usage", "total_vram")) or _number(_at(fixed, "vram", "size"))
    used = _number(_at(now, "mem_usage", "used_vram"))
    numa = _number(_at(fixed, "numa", "node"))
    uuid = str(listed.get("uuid", ""))
    errors = () if now else (CallError(0, "amd-smi metric does not speak of it"),)
    return Card(
        maker=Maker.AMD,
        uuid=uuid,
        bus=str(listed.get("bdf", "")).lower(),
        name=str(_at(fixed, "asic", "market_name") or ""),
        memory=size * _MIB if size is not None else None,
        used=used * _MIB if used is not None else None,
        users=_users(process),
        index=index,
        numa=numa if numa is not None and numa >= 0 else None,
        errors=errors,
        ecc=ecc,
        partitioned=_at(fixed, "partition", "compute_partition") not in (None, "N/A", "SPX"),
    )


def _users(process: Any) -> tuple[tuple[int, int | None], ...]:
    found = []
    for entry in _at(process, "process_list") or ():
        info = entry.get("process_info") if isinstance(entry, dict) else None
        if not isinstance(info, dict):
            continue  # "No running processes detected", in words
        pid = _number(info.get("pid"))
        memory = _number(_at(info, "memory_usage", "vram_mem"))
        if memory is None:
            memory = _number(info.get("mem_usage"))
        # a process of another card is listed here as well, with no memory of this one
        if pid is not None and memory != 0:
            found.append((pid, memory))
    return tuple(found)


def _at(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _number(value: Any) -> int | None:
    """Return a whole number out of `5`, `"5"` or `{"value": 5, "unit": "B"}`; None for `"N/A"` and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
