"""What /proc says: who belongs to a session, who owns a port, whether a process is the one we started.

A pid alone proves nothing, since the kernel hands it out again: identity is the pid, the start time in clock ticks since
boot, and our marker in the environment. Membership goes by **session**: engines are started as session leaders, and
some of their children leave the process group (vLLM's do) but none leaves the session; a marker in the environment
catches those that would.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTEN = "0A"
TIME_WAIT = "06"

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that tell of the one who looks, and nothing of what is looked at."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    state: str
    session: int
    start_ticks: int


def absent(error: OSError) -> None:
    """Take an error for absence, or raise it: an agent without a file descriptor left sees nothing, and nothing is gone."""
    if error.errno in EXHAUSTED:
        raise error


def stat_of(pid: int) -> ProcessStat | None:
    """Return the stat of a process, or None if there is none. Raises OSError if nobody can tell now."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError as error:
        absent(error)
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks and parentheses
    return ProcessStat(pid, fields[0], int(fields[3]), int(fields[19]))


def processes() -> Iterator[ProcessStat]:
    """Yield every process that is there now."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = stat_of(int(entry.name))
            if stat is not None:
                yield stat


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it may not be read or is gone."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError as error:
        absent(error)
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def arguments_of(pid: int) -> list[str]:
    """Return the arguments a process was started with; none if they may not be read or it is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0")[:-1]


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is the one by which Python's multiprocessing frees shared memory that the killed have left.

    It ends by itself once all that share it are gone. Killed before, it leaves their segments in /dev/shm, 0.4 GB a vLLM.
    """
    return any(one.startswith("from multiprocessing.resource_tracker import") for one in arguments_of(pid)[1:])


def boot_id() -> str:
    """Return the kernel's id of this boot, without which start ticks of an earlier boot could match."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def members(session: int) -> list[int]:
    """Return the living processes of a session, zombies left out."""
    return sorted(stat.pid for stat in processes() if stat.session == session and stat.state not in ("Z", "X"))


def command_of(pid: int) -> str:
    """Return a process's short name, `?` if it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


@dataclass(frozen=True, slots=True)
class _Socket:
    port: int
    state: str
    inode: str


def _sockets() -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError as error:
            absent(error)
            continue
        for line in lines:
            fields = line.split()
            yield _Socket(int(fields[1].rpartition(":")[2], 16), fields[3], fields[9])


def listening_ports() -> set[int]:
    """Return the TCP ports that anything listens on."""
    return {socket.port for socket in _sockets() if socket.state == LISTEN}


def in_time_wait(port: int) -> bool:
    """Whether closed connections of a port are still remembered, which makes a plain bind fail for a minute."""
    return any(socket.port == port and socket.state == TIME_WAIT for socket in _sockets())


def listens_alone(pid: int, port: int) -> bool:
    """Whether this very process holds every listening socket of a port; cheap, since only its own files are looked at."""
    inodes = {f"socket:[{socket.inode}]" for socket in _sockets() if socket.port == port and socket.state == LISTEN}
    return bool(inodes) and inodes <= set(_links_of(pid))


def listeners(port: int) -> list[int]:
    """Return the processes that hold a listening socket of this port; others' may be invisible without root."""
    return _owners(
        {f"socket:[{socket.inode}]" for socket in _sockets() if socket.port == port and socket.state == LISTEN}
    )


def holders(port: int) -> list[int]:
    """Return the processes that hold any socket of this port, such as a connection that got it for its own end."""
    return _owners({f"socket:[{socket.inode}]" for socket in _sockets() if socket.port == port and socket.inode != "0"})


def _owners(links: set[str]) -> list[int]:
    return sorted(stat.pid for stat in processes() if _holds(stat.pid, links)) if links else []


def _holds(pid: int, links: set[str]) -> bool:
    return any(link in links for link in _links_of(pid))


def _links_of(pid: int) -> Iterator[str]:
    """Yield what a process's descriptors are. One that is closed while we look is left out, not the rest with it."""
    try:
        entries = list((PROC / str(pid) / "fd").iterdir())
    except OSError as error:
        absent(error)
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:
            continue
