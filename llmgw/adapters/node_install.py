"""Installing the agent on a node over SSH: looks, decides (`node_plan`), and does the steps one by one.

Each step is one script that can be repeated. A script that outlives its connection (sshd ends none that has no terminal)
holds a lock, so the next run waits for it instead of working against it. If a new release does not start, the one
before is put back and the failure says so.
"""

import asyncio
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import assert_never

from llmgw.adapters import node_probe
from llmgw.adapters.node_plan import (
    UNIT,
    Build,
    Enable,
    Found,
    Linger,
    Manager,
    Restart,
    Step,
    Switch,
    Tidy,
    Upload,
    Wanted,
    WriteUnit,
    by_hand,
    line,
    refusal,
    steps,
    unit_text,
)
from llmgw.adapters.node_shell import Answer, Done, NodeShell
from llmgw.adapters.node_wheel import Wheel
from llmgw.ports.links import LinkBroken
from llmgw.spec.node import Node

BUILD_LIMIT = 600.0
ANSWER_LIMIT = 30.0
"""Seconds from the restart to the agent's answer."""
GIVE_UP_AFTER = 6
"""Looks, half a second apart, that find the unit not running: it ends as soon as it is started."""
PREFIXES: Mapping[Manager, str] = {
    "system": "/opt/llmgw",
    "user": "~/.local/share/llmgw",
    "none": "~/.local/share/llmgw",
}


class CannotInstall(Exception):
    """The node was not installed to; the message is one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asked for."""

    manager: Manager
    prefix: str = ""
    """Where the agent goes; empty for the manager's own place."""
    wheelhouse: Mapping[str, bytes] | None = None
    """File name -> contents of the wheels to install from; None to use the node's package index."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done."""

    node: str
    release: str
    manager: Manager
    prefix: str
    socket: str
    command: str
    """The command that runs the agent by hand."""
    done: tuple[str, ...] = ()
    """A line a step; empty if there was nothing to do."""
    agent: str = ""
    """The version that the running agent says it is; empty where nobody asked it."""


async def look(shell: NodeShell, prefix: str, manager: Manager) -> Found:
    """Return what the node has. Raises LinkBroken."""
    done = await shell.run(node_probe.script(prefix, unit_path(manager), manager))
    try:
        return node_probe.read(done.out, manager)
    except ValueError as error:
        raise LinkBroken(f"the node's shell did not run what it was given: {done.complaint}") from error


def unit_path(manager: Manager) -> str:
    """Return where the unit lies."""
    return f"/etc/systemd/system/{UNIT}" if manager == "system" else f"~/.config/systemd/user/{UNIT}"


def wanted_of(node: Node, found: Found, request: Request, release: str, default_socket: str) -> Wanted:
    """Return what the node should have. Raises CannotInstall where the control plane would not find the agent."""
    system = request.manager == "system"
    if node.agent_socket is None and found.uid != 0 and not system:
        raise CannotInstall(
            f"an agent of {found.user} cannot listen on {default_socket}, where the control plane looks for it; say where: "
            f"llmgw set node/{node.name} agent_socket={found.runtime_dir}/llmgw/agent.sock"
        )
    wanted = Wanted(
        node=node.name,
        release=release,
        manager=request.manager,
        prefix=_expanded(request.prefix or PREFIXES[request.manager], found),
        socket=node.agent_socket or default_socket,
        state_dir="/var/lib/llmgw/agent" if system else f"{found.home}/.local/state/llmgw/agent",
        unit_path=_expanded(unit_path(request.manager), found),
        offline=request.wheelhouse is not None,
    )
    return replace(wanted, unit=unit_text(wanted, found)) if request.manager != "none" else wanted


async def install(
    shell: NodeShell,
    node: Node,
    cluster: str,
    request: Request,
    wheel: Wheel,
    default_socket: str,
    say: Callable[[str], None],
) -> Outcome:
    """Bring the node to where it should be, saying each step before it is done. Raises CannotInstall, LinkBroken."""
    found = await look(shell, request.prefix or PREFIXES[request.manager], request.manager)
    wanted = wanted_of(node, found, request, wheel.release, default_socket)
    reason = refusal(found, wanted)
    if reason:
        raise CannotInstall(reason)
    work = _Work(shell, found, wanted, request, wheel, cluster)
    done: list[str] = []
    for step in steps(found, wanted):
        done.append(line(step, wanted))
        say(done[-1])
        await work.do(step)
    return Outcome(
        node.name,
        wheel.release,
        request.manager,
        wanted.prefix,
        wanted.socket,
        by_hand(wanted),
        tuple(done),
        work.version,
    )


@dataclass(slots=True)
class _Work:
    """One installation under way."""

    shell: NodeShell
    found: Found
    wanted: Wanted
    request: Request
    wheel: Wheel
    cluster: str
    version: str = field(default="", init=False)

    @property
    def incoming(self) -> str:
        # files come as the login user; without root that is where the agent goes, else the user's own place
        base = f"{self.found.home}/.cache/llmgw" if self._root else self.wanted.prefix
        return f"{base}/incoming"

    @property
    def _root(self) -> bool:
        return self.wanted.manager == "system" and self.found.uid != 0

    async def do(self, step: Step) -> None:
        match step:
            case Upload():
                await self._upload()
            case Build():
                await self._build()
            case Switch(release=release):
                await self._run(self._switch(release), "cannot switch to the new release")
            case WriteUnit():
                await self._run(self._write_unit(), f"cannot write {self.wanted.unit_path}")
            case Linger():
                next_step = f"run there as root: loginctl enable-linger {self.found.user}"
                await self._run(self._linger(), f"{self.found.user}'s services end with the login", next_step)
            case Enable():
                await self._run(f"{self._systemctl} enable --quiet {UNIT}", f"cannot enable {UNIT}")
            case Restart(back_to=back_to):
                await self._restart(back_to)
            case Tidy(releases=releases):
                paths = shlex.join(f"{self.wanted.prefix}/venvs/{one}" for one in releases)
                await self._run(f"rm -rf {paths}", "cannot remove old releases")
            case _ as never:
                assert_never(never)

    async def _run(self, script: str, what: str, next_step: str = "", limit: float = 60.0) -> Done:
        done = await self.shell.run(f"export LC_ALL=C\n{node_probe.USER_BUS}\n{script}\n", limit, root=self._root)
        if done.status != 0:
            after = next_step or "mend that, and run this again"
            raise CannotInstall(f"node {self.wanted.node}: {what}: {done.complaint}; {after}")
        return done

    async def _upload(self) -> None:
        made = await self.shell.run(f"mkdir -p {shlex.quote(self.incoming)}")
        if made.status != 0:
            raise CannotInstall(
                f"node {self.wanted.node}: {made.complaint}; choose a place that {self.found.user} may write with --prefix"
            )
        await self.shell.upload(
            self.incoming, {**(self.request.wheelhouse or {}), self.wheel.filename: self.wheel.data}
        )

    async def _build(self) -> None:
        prefix, incoming = shlex.quote(self.wanted.prefix), shlex.quote(self.incoming)
        venv = shlex.quote(f"{self.wanted.prefix}/venvs/{self.wanted.release}")
        index = f"--no-index --find-links {incoming}" if self.wanted.offline else "--retries 2"
        script = f"""\
mkdir -p {prefix}/venvs || exit 1
exec 9>{prefix}/lock || exit 1
if command -v flock >/dev/null && ! flock -w 120 9; then echo "another installation runs there" >&2; exit 1; fi
if [ ! -e {venv}/whole ] || ! {venv}/bin/python -c 'import llmgw.agent.main' 2>/dev/null; then
  rm -rf {venv} || exit 1
  {shlex.quote(self.found.python)} -m venv {venv} >&2 || exit 1
  {venv}/bin/python -m pip install -q --disable-pip-version-check --no-input {index} \
{incoming}/{shlex.quote(self.wheel.filename)} >&2 || exit 1
  {venv}/bin/python -c 'import llmgw.agent.main' || exit 1
  : >{venv}/whole || exit 1
fi
rm -rf {incoming}
"""
        names = " ".join(shlex.quote(one) for one in self.wheel.requirements)
        if self.wanted.offline:
            next_step = (
                "fill the wheelhouse for that machine: pip download --only-binary=:all: "
                f"--python-version {self.found.python_version} -d DIR {names}"
            )
        else:
            next_step = (
                "if it reaches no package index, use --offline --wheelhouse DIR; else mend that, and run this again"
            )
        what = f"cannot install for Python {self.found.python_version} on {self.found.machine}"
        await self._run(script, what, next_step, BUILD_LIMIT)

    def _switch(self, release: str) -> str:
        prefix = shlex.quote(self.wanted.prefix)
        target = shlex.quote(f"venvs/{release}")
        return f"ln -sfn {target} {prefix}/current.new && mv -fT {prefix}/current.new {prefix}/current"

    def _write_unit(self) -> str:
        path = shlex.quote(self.wanted.unit_path)
        folder = shlex.quote(self.wanted.unit_path.rpartition("/")[0])
        return (
            f"mkdir -p {folder} && printf %s {shlex.quote(self.wanted.unit)} >{path}.new && mv -f {path}.new {path} && "
            f"{self._systemctl} daemon-reload"
        )

    def _linger(self) -> str:
        return f"""\
loginctl enable-linger {shlex.quote(self.found.user)} || exit 1
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  case $({self._systemctl} is-system-running 2>/dev/null) in ''|offline|unknown) sleep 0.5;; *) exit 0;; esac
done
echo "the user's systemd did not start within 10 s" >&2; exit 1
"""

    async def _restart(self, back_to: str) -> None:
        start = f"{self._systemctl} daemon-reload && {self._systemctl} restart {UNIT}"
        trouble = ""
        try:
            await self._run(start, "the agent cannot be started")
            self.version = await self._answered()
        except CannotInstall as error:
            trouble = str(error)
        if trouble:
            if not back_to:
                raise CannotInstall(trouble)
            await self._run(f"{self._switch(back_to)} && {start}", f"{trouble}; and {back_to} cannot be started again")
            raise CannotInstall(f"{trouble}; {back_to} was put back and runs")
        applied, prefix = shlex.quote(self.wanted.applied), shlex.quote(self.wanted.prefix)
        await self._run(
            f"printf '%s\\n' {applied} >{prefix}/applied.new && mv -f {prefix}/applied.new {prefix}/applied",
            "cannot note what was done",
        )

    async def _answered(self) -> str:
        """Return the new agent's version. Raises CannotInstall, also if it is another agent that answers."""
        answer = await self._answer()
        shown = await self.shell.run(
            f"{node_probe.USER_BUS}\n{self._systemctl} show --property=MainPID --value {UNIT}", root=self._root
        )
        pid = answer.report.facts.agent_pid
        if shown.out.strip() != str(pid):
            raise CannotInstall(
                f"node {self.wanted.node}: another agent (pid {pid}) listens on {self.wanted.socket}; stop it there with "
                f"`kill {pid}`, and run this again"
            )
        return answer.version

    async def _answer(self) -> Answer:
        """Wait for the new agent's first report. Raises CannotInstall with the end of its log."""
        why, idle = "", 0
        look_again = (
            f"{node_probe.USER_BUS}\n{self._systemctl} is-active --quiet {UNIT}; state=$?\nsleep 0.5\nexit $state"
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT):
                while idle < GIVE_UP_AFTER:
                    try:
                        return await self.shell.greet(self.wanted.socket, self.wanted.node, self.cluster)
                    except LinkBroken as error:
                        why = str(error)
                    idle += (await self.shell.run(look_again)).status != 0  # a broken connection ends it here
        journal = "journalctl --user" if self.wanted.manager == "user" else "journalctl"
        log = await self.shell.run(f"{journal} -u {UNIT} -n 1 -o cat 2>/dev/null", root=self._root)
        said = f" (its last line: {log.out.strip()})" if log.out.strip() else ""
        raise CannotInstall(
            f"node {self.wanted.node}: the agent was started and does not answer: {why}{said}; look at "
            f"`{journal} -u {UNIT}` there"
        )

    @property
    def _systemctl(self) -> str:
        return node_probe.systemctl(self.wanted.manager)


def _expanded(path: str, found: Found) -> str:
    return f"{found.home}/{path[2:]}" if path.startswith("~/") else path
