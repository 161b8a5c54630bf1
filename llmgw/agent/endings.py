"""How a process ended, with the evidence: what the kernel told its parent, counted in its cgroup, and wrote in its log.

A SIGKILL alone does not say who sent it. It was ours if this agent sent it; it was for memory if the cgroup counted a kill
or the kernel's log names the pid; else somebody on the host did it. Patterns in the engine's own log come on top of this,
and are not looked at here.
"""

import os
import re
import signal
from dataclasses import dataclass

from llmgw.agent.cgroup import Evidence

KERNEL_LOG = "/dev/kmsg"
RECORDS = 10_000
"""Records of the kernel's log that are read at the most."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: a code for programs, a sentence for people."""

    code: str
    text: str


UNKNOWN = Ending("exited", "it ended; how is not known, since it was started by an earlier agent")


def classify(status: int | None, evidence: Evidence | None, *, by_us: bool, kernel: str = "") -> Ending:
    """Tell how a process ended. `status` is wait's, None if it was not our child; `kernel` its line in the kernel's log."""
    said = UNKNOWN if status is None else _of_status(status)
    if evidence is not None and evidence.oom_kills:
        return Ending("out_of_host_memory", f"{_memory(evidence)}; {said.text}")
    if kernel:
        return Ending("out_of_host_memory", f"the node ran out of memory ({kernel}); {said.text}")
    if status is not None and os.WIFSIGNALED(status):
        if by_us:
            return Ending("killed_by_us", f"{said.text}, as this agent decided")
        if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            return Ending("killed", f"{said.text}, which this agent did not send")
    return said


def _of_status(status: int) -> Ending:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in {one.value for one in signal.Signals} else f"signal {number}"
        return Ending("killed", f"killed by {name}")
    code = os.WEXITSTATUS(status)
    if code == 0:
        return Ending("exited", "exited with status 0 without being asked to")
    return Ending("exited", f"exited with status {code}")


def _memory(evidence: Evidence) -> str:
    killed = f"the kernel killed {evidence.oom_kills} of its processes for memory"
    peak = f", its peak was {_mib(evidence.peak)}" if evidence.peak is not None else ""
    if evidence.limit is None:
        return f"{killed}; the node ran out of memory{peak}"
    near = evidence.peak is None or evidence.peak >= evidence.limit * 0.95
    why = (
        f"its limit is {_mib(evidence.limit)}"
        if near
        else f"the node ran out, its limit {_mib(evidence.limit)} did not"
    )
    return f"{killed}: {why}{peak}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def killed_for_memory(pid: int, since: float, path: str = KERNEL_LOG) -> str:
    """Return the kernel's line about killing a process for memory; empty if there is none, or it may not be read.

    `since` is in seconds since boot: lines about an earlier process of that number do not count. The kernel's clock for
    its log stands still while the machine sleeps, so a line may seem older than it is; then nothing is claimed.
    """
    wanted = re.compile(rf"Killed process {pid} \(")
    found = ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for _ in range(RECORDS):
            try:
                record = os.read(descriptor, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue  # records were overwritten while we read; go on with the oldest that is left
            if not record:
                break
            head, _, text = record.partition(";")
            fields = head.split(",")
            if wanted.search(text) and len(fields) > 2 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since:
                found = text.splitlines()[0]
    except OSError:  # EAGAIN: that was the newest
        pass
    finally:
        os.close(descriptor)
    return found
