"""`llmgw doctor`: what this machine lacks to run the control plane, each with the command that mends it.

Looks first (`look`), judges then (`judge`, pure). A running server is asked for its alarms and for the nodes it cannot
reach, since what is wrong is most often there.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from llmgw.adapters.node_check import Finding, State
from llmgw.agent.server import LONGEST_SOCKET_PATH
from llmgw.cli.client import ask, default_server
from llmgw.cli.nodes import catalog_of, report
from llmgw.cli.outcomes import FAILED, Failed
from llmgw.cli.running import address

LEAST_SPACE = 256 << 20
"""Bytes that state and logs of a control plane should have."""
LEAST_WATCHES = 8192
LEAST_INSTANCES = 64
LEAST_FILES = 4096
LONGEST_NAME = len("workers.sock")
"""Bytes of the longest name of a socket that must lie in the state directory; those of tunnels may lie elsewhere."""


@dataclass(frozen=True, slots=True)
class Here:
    """What this machine has."""

    directory: Path
    python: tuple[int, int]
    git: str
    """Its version; empty without it."""
    ssh: str
    """Path of OpenSSH's client; empty without it."""
    catalog: str
    """What the cluster directory is; empty if it is not valid."""
    catalog_trouble: str
    by_ssh: bool
    """Whether a node is reached by SSH."""
    state_dir: Path
    state_trouble: str
    free: int
    """Bytes free for the state directory."""
    listen: tuple[str, int]
    listen_trouble: str
    watches: int | None
    """The kernel's limit; None where it does not say."""
    instances: int | None
    files: int
    """Open files that a process may have."""
    server: str
    status: dict[str, Any] | None
    """What a running server says; None if none answers."""
    status_trouble: str


def examine(directory: Path, listen: str, state_dir: Path | None, server: str, *, as_json: bool) -> None:
    """Print what this machine lacks; end with 1 if it lacks something."""
    findings = judge(look(directory, address(listen, "--listen"), state_dir, server))
    well = all(one.state is not State.MISSING for one in findings)
    if as_json:
        print(json.dumps({"well": well, "checks": [asdict(one) for one in findings]}, indent=2))
    else:
        print(report(findings))
    if not well:
        raise typer.Exit(FAILED)


def judge(here: Here) -> list[Finding]:
    """Return every check's outcome, in the order in which to mend them."""
    return [
        _python(here),
        _git(here),
        _ssh(here),
        _directory(here),
        *_state(here),
        _sockets(here),
        _files(here),
        _inotify(here),
        *_server(here),
    ]


def look(directory: Path, listen: tuple[str, int], state_dir: Path | None, server: str) -> Here:
    """Return what this machine has."""
    from llmgw.app.places import default_state_dir

    place = (state_dir or default_state_dir()).absolute()
    catalog, catalog_trouble, by_ssh = "", "", False
    try:
        found = catalog_of(directory)
        catalog = f"cluster {found.cluster.name}, {len(found.nodes)} node(s), {len(found.models)} model(s)"
        by_ssh = any(node.ssh is not None for node in found.nodes.values())
    except Failed as error:
        catalog_trouble = str(error)
    where = server or (f"{state_dir}/admin.sock" if state_dir else default_server())
    status, status_trouble = None, ""
    try:
        status = ask(where, "GET", "/v1/status")
    except Failed as error:
        status_trouble = str(error)
    state_trouble, free = _place(place)
    return Here(
        directory=directory,
        python=sys.version_info[:2],
        git=_said("git", "--version"),
        ssh=shutil.which("ssh") or "",
        catalog=catalog,
        catalog_trouble=catalog_trouble,
        by_ssh=by_ssh,
        state_dir=place,
        state_trouble=state_trouble,
        free=free,
        listen=listen,
        listen_trouble=_taken(listen),
        watches=_limit("max_user_watches"),
        instances=_limit("max_user_instances"),
        files=_open_files(),
        server=where,
        status=status,
        status_trouble=status_trouble,
    )


def _python(here: Here) -> Finding:
    text = f"{here.python[0]}.{here.python[1]}"
    if not (3, 11) <= here.python < (3, 14):
        return Finding("python", State.MISSING, f"{text}; llmgw needs 3.11 to 3.13", "make PYTHON=python3.12")
    return Finding("python", State.OK, text)


def _git(here: Here) -> Finding:
    if not here.git:
        return Finding("git", State.MISSING, "is not there; the server reads commits with it", "apt-get install git")
    return Finding("git", State.OK, here.git)


def _ssh(here: Here) -> Finding:
    if here.ssh:
        return Finding("ssh", State.OK, here.ssh)
    if not here.by_ssh:
        return Finding("ssh", State.OK, "is not there, and no node needs it")
    text = "is not there; tunnels then go through this program, at several times the CPU for each event"
    return Finding("ssh", State.MISSING, text, "apt-get install openssh-client")


def _directory(here: Here) -> Finding:
    if here.catalog_trouble:
        return Finding("directory", State.MISSING, here.catalog_trouble, f"llmgw validate {here.directory}")
    return Finding("directory", State.OK, here.catalog)


def _state(here: Here) -> list[Finding]:
    if here.state_trouble:
        mend = (
            f"mkdir -p -m 700 {here.state_dir} && chown {os.geteuid()} {here.state_dir}, or name another: --state-dir"
        )
        return [Finding("state", State.MISSING, here.state_trouble, mend)]
    if here.free < LEAST_SPACE:
        text = f"{here.free >> 20} MiB free for {here.state_dir}; it should have {LEAST_SPACE >> 20}"
        return [Finding("state", State.MISSING, text, f"df -h {here.state_dir}, and free some")]
    return [Finding("state", State.OK, f"{here.state_dir}, {here.free >> 20} MiB free")]


def _sockets(here: Here) -> Finding:
    longest = len(str(here.state_dir).encode()) + 1 + LONGEST_NAME
    if longest > LONGEST_SOCKET_PATH:
        text = f"sockets below {here.state_dir} have up to {longest} bytes, the kernel takes {LONGEST_SOCKET_PATH}"
        return Finding("sockets", State.MISSING, text, "name a shorter place: --state-dir")
    return Finding("sockets", State.OK, f"paths of up to {longest} bytes")


def _files(here: Here) -> Finding:
    if here.files < LEAST_FILES:
        text = f"{here.files} for a process; a stream takes two"
        return Finding("open files", State.MISSING, text, "ulimit -n 65536, or LimitNOFILE=65536 in its unit")
    return Finding("open files", State.OK, str(here.files))


def _inotify(here: Here) -> Finding:
    if here.watches is None or here.instances is None:
        return Finding("inotify", State.NOT_LOOKED_AT, "the kernel does not say")
    low = []
    if here.watches < LEAST_WATCHES:
        low.append(f"fs.inotify.max_user_watches={LEAST_WATCHES}")
    if here.instances < LEAST_INSTANCES:
        low.append(f"fs.inotify.max_user_instances={LEAST_INSTANCES}")
    text = f"{here.watches} watches, {here.instances} instances"
    return Finding("inotify", State.MISSING if low else State.OK, text, f"sysctl -w {' '.join(low)}" if low else "")


def _server(here: Here) -> list[Finding]:
    host, port = here.listen
    where = f"{host}:{port}"
    ours = here.status is not None and urlsplit(str(here.status["control"]["listen"])).port == port
    if here.listen_trouble and not ours:
        mend = f"ss -ltnp 'sport = :{port}' shows who; or choose another: --listen"
        first = Finding("listen", State.MISSING, f"{where}: {here.listen_trouble}", mend)
    else:
        first = Finding("listen", State.OK, f"{where} {'is held by our server' if ours else 'is free'}")
    if here.status is None:
        text = here.status_trouble
        if "no llmgw server answers" in text:
            text = f"none answers at {here.server}"
        return [first, Finding("server", State.NOT_LOOKED_AT, text)]
    found = [
        first,
        Finding("server", State.OK, f"version {here.status['control']['version']} answers at {here.server}"),
    ]
    alarms = [str(one) for one in here.status["control"]["alarms"]]
    found += [Finding("alarm", State.MISSING, text, f"llmgw status --server {here.server}") for text in alarms]
    found += [
        Finding("node", State.MISSING, f"{node['name']} is {node['state']}: {node['why']}", _check(node["name"], here))
        for node in here.status["nodes"]
        if node["state"] != "reporting"
    ]
    return found


def _check(name: str, here: Here) -> str:
    return f"llmgw node check {name}" + ("" if str(here.directory) == "." else f" --dir {here.directory}")


def _said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _place(place: Path) -> tuple[str, int]:
    at = place
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir():
        return f"{at} is not a directory", 0
    if not os.access(at, os.W_OK | os.X_OK) or os.statvfs(at).f_flag & os.ST_RDONLY:
        return f"{at} cannot be written by this user", 0
    return "", shutil.disk_usage(at).free


def _taken(listen: tuple[str, int]) -> str:
    host, port = listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _limit(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return None


def _open_files() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
