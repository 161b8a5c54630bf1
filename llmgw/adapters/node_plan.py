"""What an installation does to a node: a pure decision over what was found there.

`refusal` says why it cannot be done, before anything is touched; `steps` says what is to do, in order, and is empty where
all is as it should be. Each step can be repeated, and the version in use changes in one rename (`Switch`), so that a
connection which breaks anywhere leaves either version whole and the next run carries on from what it finds.
"""

import hashlib
import shlex
from dataclasses import dataclass
from typing import Literal

UNIT = "llmgw-agent.service"
LEAST_PYTHON = (3, 11)
LEAST_SPACE = 400 << 20
"""Bytes that a virtual environment of the agent and the one before it take, and as much again."""

Manager = Literal["system", "user", "none"]
"""Who runs the agent: the machine's systemd, the login user's own, or a person by hand."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a node has. Only a look; nothing was changed to learn it."""

    home: str
    user: str
    uid: int
    python: str = ""
    """A Python that will do; empty if none will."""
    python_trouble: str = "python3 is not there"
    """Why none will do; of no meaning where one does."""
    python_version: str = ""
    machine: str = ""
    systemd: int | None = None
    """Version of the systemd that runs; None where none does."""
    free: int = 0
    """Bytes free where the agent goes."""
    current: str = ""
    """The release in use; empty before the first."""
    whole: tuple[str, ...] = ()
    """Releases whose installation was finished, and whose Python still runs."""
    others: tuple[str, ...] = ()
    """Directories of releases that are not whole."""
    unit_digest: str = ""
    enabled: bool = False
    active: bool = False
    lingers: bool = False
    """Whether the user's systemd runs without a login."""
    applied: str = ""
    """Release and unit that the agent was last started with, as `Wanted.applied` names them."""
    sudo: bool = False
    """Whether the user may become root without a password."""
    runtime_dir: str = ""
    """The user's own directory on tmpfs."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node should have."""

    node: str
    release: str
    manager: Manager
    prefix: str
    socket: str
    state_dir: str
    unit_path: str = ""
    unit: str = ""
    offline: bool = False

    @property
    def unit_digest(self) -> str:
        """Return the digest of the unit's text."""
        return hashlib.sha256(self.unit.encode()).hexdigest()

    @property
    def applied(self) -> str:
        """Return what is noted once the agent was started with all of this."""
        return f"{self.release} {self.unit_digest[:16]}"


@dataclass(frozen=True, slots=True)
class Upload:
    """Bring the wheels to the node."""


@dataclass(frozen=True, slots=True)
class Build:
    """Make the release's virtual environment."""

    again: bool
    """Whether a half-made one is in the way."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Make a release the one in use."""

    release: str


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Write the systemd unit and have it read."""


@dataclass(frozen=True, slots=True)
class Linger:
    """Have the user's systemd run without a login."""


@dataclass(frozen=True, slots=True)
class Enable:
    """Have the agent started with the machine."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the agent afresh and note with what; its engines run on."""

    back_to: str
    """The release to go back to if it does not start; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Tidy:
    """Remove what is no longer needed."""

    releases: tuple[str, ...]


Step = Upload | Build | Switch | WriteUnit | Linger | Enable | Restart | Tidy


def refusal(found: Found, wanted: Wanted) -> str:
    """Say why the node cannot be installed to, and what to do first; empty if it can."""
    name = wanted.node
    if not found.python:
        return f"node {name}: {found.python_trouble}; on Debian and Ubuntu: apt-get install python3 python3-venv"
    if wanted.manager != "none" and found.systemd is None:
        return (
            f"node {name} runs no systemd{' for ' + found.user if wanted.manager == 'user' else ''}; install with --no-unit, "
            f"and run the agent there by hand: {by_hand(wanted)}"
        )
    if wanted.manager == "system" and found.uid != 0 and not found.sudo:
        return (
            f"node {name}: {found.user} may not become root without a password, which --system needs; use --user-unit, "
            f"or let {found.user} do so: echo '{found.user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/llmgw"
        )
    if wanted.release not in found.whole and found.free < LEAST_SPACE:
        return (
            f"node {name} has {found.free >> 20} MiB free for {wanted.prefix}, the agent needs {LEAST_SPACE >> 20}; "
            "free some, or choose another place with --prefix"
        )
    return ""


def steps(found: Found, wanted: Wanted) -> tuple[Step, ...]:
    """Return what is to do, in order; empty if nothing is."""
    todo: list[Step] = []
    if wanted.release not in found.whole:
        todo += [Upload(), Build(wanted.release in found.others)]
    if found.current != wanted.release:
        todo.append(Switch(wanted.release))
    if wanted.manager != "none":
        if wanted.manager == "user" and not found.lingers:
            todo.append(Linger())
        if found.unit_digest != wanted.unit_digest:
            todo.append(WriteUnit())
        if not found.enabled:
            todo.append(Enable())
        if not found.active or found.applied != wanted.applied:
            before = found.current if found.current != wanted.release and found.current in found.whole else ""
            todo.append(Restart(before))
    keep = {wanted.release, found.current}
    old = tuple(one for one in (*found.whole, *found.others) if one not in keep)
    if old and todo:
        todo.append(Tidy(old))
    return tuple(todo)


def line(step: Step, wanted: Wanted) -> str:
    """Say a step for people."""
    match step:
        case Upload():
            return f"uploading {wanted.release}{' and the wheelhouse' if wanted.offline else ''}"
        case Build(again=again):
            return f"installing into {wanted.prefix}/venvs/{wanted.release}{' (a half-made one is removed)' if again else ''}"
        case Switch(release=release):
            return f"switching to {release}"
        case WriteUnit():
            return f"writing {wanted.unit_path}"
        case Linger():
            return "letting the user's services run without a login"
        case Enable():
            return f"enabling {UNIT}"
        case Restart():
            return "restarting the agent; engines run on"
        case Tidy(releases=releases):
            return f"removing {', '.join(releases)}"


def by_hand(wanted: Wanted) -> str:
    """Return the command that runs the agent without a service manager."""
    return shlex.join(_command(wanted))


def unit_text(wanted: Wanted, found: Found) -> str:
    """Return the systemd unit of the agent.

    Engines are the agent's children and outlive it: `KillMode=process` leaves them alone, `OOMPolicy=continue` keeps systemd
    from stopping all because the kernel ended one, and the agent's directory on tmpfs, which holds their secrets,
    stays while the agent is restarted. `OOMScoreAdjust=` is left alone: engines inherit it, and a protected engine would have
    the kernel end everything else first; the agent is small, so the kernel does not choose it.
    """
    system = wanted.manager == "system"
    lines = [
        "[Unit]",
        "Description=llmgw agent: runs the engines of this node",
        *(["Wants=network-online.target", "After=network-online.target nvidia-persistenced.service"] if system else []),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_unit_word(word) for word in _command(wanted))}",
        *([f"User={found.user}"] if system and found.uid != 0 else []),
        f"EnvironmentFile=-{'/etc/llmgw' if system else found.home + '/.config/llmgw'}/agent.env",
        "KillMode=process",
        "Restart=always",
        "RestartSec=2",
        "TimeoutStopSec=30",
        "RuntimeDirectory=llmgw",
        "RuntimeDirectoryMode=0700",
        "RuntimeDirectoryPreserve=yes",
        *(["StateDirectory=llmgw", "StateDirectoryMode=0700"] if system else []),
        "Delegate=yes",
        "OOMPolicy=continue",
        *(["LimitMEMLOCK=infinity", "LimitNOFILE=1048576"] if system else []),
        "TasksMax=infinity",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
        "",
    ]
    return "\n".join(lines)


def _command(wanted: Wanted) -> list[str]:
    python = f"{wanted.prefix}/current/bin/python"
    return [python, "-m", "llmgw.app.node", "--socket", wanted.socket, "--state-dir", wanted.state_dir]


def _unit_word(word: str) -> str:
    """Return a word of a unit's command line, with what systemd would expand or split kept as it is."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(character in word for character in " \t'\"\\;") else escaped
