"""The program that asks NVIDIA's driver: `python -m llmgw.agent.nvml [FD]`, one JSON line in, one JSON line out.

A process of its own, because a call into a wedged driver never returns and takes its thread with it; the agent puts a
deadline on every answer and ends this process when it passes. Before each call its name is written to FD (a file in
memory that the agent shares), so that the agent can say which call hangs. It ends with its parent: at the end of its
input, and by the kernel's signal where it hangs.

It says what the driver says and judges nothing: `llmgw.agent.cards` does. It imports only what `pynvml` imports anyway,
no dataclasses and no pydantic, since it lives as long as the agent on every node that has cards.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

TOPOLOGY_EVERY = 12
"""Reads between two looks at the NVLinks: up to 36 calls a card, for what changes when somebody opens the machine."""

EVENTS_AT_MOST = 64
"""Events taken in one read; the rest waits for the next."""

_ABSENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NO_DATA,
)
"""Answers that mean "this card or this driver does not say", which is no fault of the card."""

_PR_SET_PDEATHSIG = 1

Answer = dict[str, Any]


class Session:
    """One initialized NVML. Not for concurrent use."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._open = False
        self._events: Any = None
        self._watched: dict[int, str] = {}
        self._topology: dict[str, list[str]] = {}
        self._reads = 0

    def read(self, *, fresh: bool) -> Answer:
        """Return all that the driver says now; with `fresh`, after opening it anew, so that a returned card is seen."""
        try:
            if fresh:
                self._close()
            if not self._open:
                # a machine whose cards are all gone still answers so, with a count of 0
                self._call("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS)
                self._open = True
            driver = self._call("nvmlSystemGetDriverVersion")
            count = self._call("nvmlDeviceGetCount")
        except pynvml.NVMLError as error:
            self._close()
            return {"failed": self._failure(error)}
        anew = self._reads % TOPOLOGY_EVERY == 0
        self._reads += 1
        cards: list[Answer] = []
        broken: list[Answer] = []
        handles: list[tuple[str, Any]] = []
        for place in range(count):
            card = self._card(place, handles, anew=anew)
            (cards if "uuid" in card else broken).append(card)
        events: Answer = {"xids": [], "trouble": ""}
        self._take_events(handles, events)
        return {"driver": driver, "cards": cards, "broken": broken, "events": events}

    def _card(self, place: int, handles: list[tuple[str, Any]], *, anew: bool) -> Answer:
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", place)
            uuid = self._call("nvmlDeviceGetUUID", handle)
        except pynvml.NVMLError as error:
            return {"place": place, "failed": self._failure(error)}
        handles.append((uuid, handle))
        card: Answer = {"uuid": uuid, "errors": []}
        errors: list[Answer] = card["errors"]
        bus = self._ask(errors, "nvmlDeviceGetPciInfo", handle)
        card["bus"] = _text(bus.busId).lower() if bus is not None else ""
        card["name"] = self._ask(errors, "nvmlDeviceGetName", handle) or ""
        card["numa"] = self._numa(errors, handle, card["bus"])
        self._memory(card, handle)
        card["users"] = self._users(errors, handle)
        card["ecc"] = self._ask(
            errors,
            "nvmlDeviceGetTotalEccErrors",
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        self._worn(card, handle)
        card["recovery"] = self._field(errors, handle, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        mig = self._ask(errors, "nvmlDeviceGetMigMode", handle)
        card["mig"] = bool(mig and mig[0])
        card["fabric"] = self._fabric(errors, handle)
        if anew or uuid not in self._topology:
            self._topology[uuid] = self._peers(errors, handle)
        card["peers"] = self._topology[uuid]
        return card

    def _memory(self, card: Answer, handle: Any) -> None:
        errors: list[Answer] = []
        memory = self._ask(errors, "nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
        if memory is None:
            errors.clear()
            memory = self._ask(errors, "nvmlDeviceGetMemoryInfo", handle)
        card["errors"].extend(errors)
        if memory is not None:
            card["memory"], card["used"] = memory.total, memory.used
        elif not errors:  # an integrated part: its memory is the machine's
            card["memory"], card["used"] = _system_memory()
        else:
            card["memory"], card["used"] = None, None

    def _users(self, errors: list[Answer], handle: Any) -> list[list[int | None]]:
        mine: list[Answer] = []
        found = self._ask(mine, "nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if found is None and not mine:
            found = self._ask(mine, "nvmlDeviceGetComputeRunningProcesses_v2", handle)
        errors.extend(mine)
        return [[one.pid, one.usedGpuMemory] for one in found or ()]

    def _worn(self, card: Answer, handle: Any) -> None:
        rows = self._ask(card["errors"], "nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            card["remap_pending"], card["remap_failed"] = bool(rows[2]), bool(rows[3])
            return
        pending = self._ask(card["errors"], "nvmlDeviceGetRetiredPagesPendingStatus", handle)  # Volta and older
        card["remap_pending"], card["remap_failed"] = bool(pending), False

    def _field(self, errors: list[Answer], handle: Any, field: int) -> int | None:
        values = self._ask(errors, "nvmlDeviceGetFieldValues", handle, [field])
        if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def _fabric(self, errors: list[Answer], handle: Any) -> Answer | None:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        if self._ask(errors, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
            return None
        shift, width = (
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
        )
        route = (info.healthMask >> shift) & width
        return {
            "state": info.state,
            "status": info.status,
            "route_broken": route == pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE,
        }

    def _peers(self, errors: list[Answer], handle: Any) -> list[str]:
        """Return the bus addresses at the far ends of its active links: cards, or the switches between them."""
        found = set()
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask(errors, "nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break  # no more links, or none at all
            if state:
                far = self._ask(errors, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                if far is not None:
                    found.add(_text(far.busId).lower())
        return sorted(found)

    def _numa(self, errors: list[Answer], handle: Any, bus: str) -> int | None:
        """Return the node that its slot hangs on. NVML's own answer names the node that the card *is*, on few machines."""
        try:
            node = int((Path("/sys/bus/pci/devices") / short_bus(bus) / "numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        if node >= 0:
            return node
        answer: int | None = self._ask(errors, "nvmlDeviceGetNumaNodeId", handle)
        return answer if answer is not None and answer >= 0 else None

    def _take_events(self, handles: list[tuple[str, Any]], events: Answer) -> None:
        try:
            self._watch(handles)
            for _ in range(EVENTS_AT_MOST if self._watched else 0):
                data = self._call("nvmlEventSetWait_v2", self._events, 1)  # 0 would wait for ever
                key = ctypes.cast(data.device, ctypes.c_void_p).value or 0
                events["xids"].append([self._watched.get(key, ""), data.eventData])
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return  # no more of them
            failure = self._failure(error)
            self._drop_events()
            if error.value not in (*_ABSENT, pynvml.NVML_ERROR_GPU_IS_LOST):
                events["trouble"] = failure["text"]

    def _drop_events(self) -> None:
        events, self._events, self._watched = self._events, None, {}
        if events is not None:
            self._ask([], "nvmlEventSetFree", events)

    def _watch(self, handles: list[tuple[str, Any]]) -> None:
        if self._events is None:
            self._events = self._call("nvmlEventSetCreate")
            self._watched = {}
        for uuid, handle in handles:
            key = ctypes.cast(handle, ctypes.c_void_p).value or 0
            if key not in self._watched:
                errors: list[Answer] = []
                done = self._ask(
                    errors, "nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
                self._watched[key] = uuid if done is not None else ""

    def _ask(self, errors: list[Answer], name: str, *arguments: Any) -> Any:
        """Return the answer; None if there is none, and then an error in `errors` unless it is merely not supported."""
        try:
            answer = self._call(name, *arguments)
        except pynvml.NVMLLibraryMismatchError:
            return None  # a call that this driver does not have
        except pynvml.NVMLError as error:
            if error.value not in _ABSENT:
                errors.append(self._failure(error))
            return None
        return True if answer is None else answer

    def _call(self, name: str, *arguments: Any) -> Any:
        self._note(name)
        self._last = name
        return getattr(pynvml, name)(*arguments)

    def _failure(self, error: Any) -> Answer:
        return {"call": self._last, "code": error.value, "text": f"{self._last}: {error}"}

    def _close(self) -> None:
        self._topology, self._reads = {}, 0
        if self._open:
            self._open = False
            self._drop_events()
            try:
                self._call("nvmlShutdown")
            except pynvml.NVMLError:
                return  # it was not open any more


def short_bus(bus: str) -> str:
    """Return a PCI address as the kernel writes it, with a domain of four digits; NVML writes eight."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _system_memory() -> tuple[int, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"]


def _noting(descriptor: int | None) -> Callable[[str], None]:
    if descriptor is None:
        return lambda _: None
    return lambda name: (os.pwrite(descriptor, name.encode().ljust(64), 0), None)[1]


def main(argv: list[str]) -> int:
    """Answer until the input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the agent's terminal is the agent's to handle
    session = Session(_noting(int(argv[0]) if argv else None))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        answer = session.read(fresh=asked["fresh"])
        answer["id"] = asked["id"]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
