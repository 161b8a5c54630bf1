"""What a node lacks, in order, each with the command that mends it: a pure judgement of what was seen.

A check whose prerequisite is not met is "not looked at": an answer about a node that cannot be reached would be a guess.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw import __version__
from llmgw.adapters.node_plan import LEAST_SPACE, Found, Manager
from llmgw.adapters.node_probe import systemctl
from llmgw.adapters.node_shell import Answer
from llmgw.catalog.catalog import Catalog
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.profile import Profile


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    MISSING = "missing"
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome; `mend` is a command or what a person does, empty if all is well."""

    check: str
    state: State
    text: str
    mend: str = ""


class Stage(StrEnum):
    """How far a connection came; the one that failed."""

    REACHABLE = "reachable"
    HOST_KEY = "host key"
    LOGIN = "login"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a model which may be placed on the node needs there."""

    model: str
    kind: str
    """`engine` or `weights`."""
    path: str
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was seen of a node. A `None` was not looked at."""

    node: Node
    catalog: Catalog
    directory: str
    """The cluster directory, for the commands that mend."""
    release: str
    """The release that `llmgw node install` would bring."""
    socket: str
    manager: Manager = "none"
    failed: Stage | None = None
    trouble: str = ""
    found: Found | None = None
    answer: Answer | None = None
    silence: str = ""
    """Why the agent did not answer."""
    there: Mapping[Need, bool] = field(default_factory=dict)


def judge(seen: Seen) -> list[Finding]:
    """Return every check's outcome, in the order in which to mend them."""
    findings: dict[str, Finding] = {}
    for check, after, look in _CHECKS:
        if seen.node.local and check in _BY_SSH:
            continue
        if all(one not in findings or findings[one].state is State.OK for one in after):
            state, text, mend = look(seen)
            findings[check] = Finding(check, state, text, mend)
        else:
            findings[check] = Finding(check, State.NOT_LOOKED_AT, f"needs: {', '.join(after)}")
    return list(findings.values())


def possible(catalog: Catalog, node: Node) -> Iterator[tuple[Model, Profile]]:
    """Give the models and profiles that may be placed on the node, whether or not there is room."""
    for model in catalog.models.values():
        for profile in model.profiles:
            in_pool = profile.pool is None or profile.pool == node.pool
            if in_pool and all(node.labels.get(label) == value for label, value in profile.labels.items()):
                yield model, profile


def needs(catalog: Catalog, node: Node, weights_dir: str | None) -> tuple[Need, ...]:
    """Return the programs and files that must be on the node, in a stated order."""
    wanted: dict[Need, None] = {}
    for model, profile in possible(catalog, node):
        definition = catalog.engine(profile.engine)
        command = profile.command or (definition.command if definition else None)
        if profile.runtime != "process":
            program = str(profile.runtime)
        else:
            program = command[0] if command else _PROGRAMS.get(profile.engine, profile.engine)
        wanted[Need(model.name, "engine", program, "" if command else profile.engine)] = None
        path = model.weights.path
        if path is not None:
            whole = path if path.startswith("/") or weights_dir is None else f"{weights_dir}/{path}"
            wanted[Need(model.name, "weights", whole)] = None
    return tuple(wanted)


Outcome = tuple[State, str, str]


def _reachable(seen: Seen) -> Outcome:
    where = _where(seen)
    if seen.failed is Stage.REACHABLE:
        host = seen.node.ssh.host if seen.node.ssh else ""
        return State.MISSING, seen.trouble, f"see that sshd runs there and that the way is open: ssh-keyscan {host}"
    return State.OK, where, ""


def _host_key(seen: Seen) -> Outcome:
    if seen.failed is Stage.HOST_KEY:
        ssh = seen.node.ssh
        assert ssh is not None
        return (
            State.MISSING,
            seen.trouble,
            f"ssh-keyscan -p {ssh.port} {ssh.host}, and if its console shows the same: "
            f"llmgw set node/{seen.node.name} {_dir(seen)}ssh.host_key='TYPE BASE64'",
        )
    return State.OK, "is the pinned one", ""


def _login(seen: Seen) -> Outcome:
    if seen.failed is Stage.LOGIN:
        ssh = seen.node.ssh
        assert ssh is not None
        user = ssh.user or seen.catalog.cluster.ssh.user
        return State.MISSING, seen.trouble, f"ssh-copy-id -p {ssh.port} {user}@{ssh.host}"
    assert seen.found is not None
    return State.OK, f"as {seen.found.user}", ""


def _python(seen: Seen) -> Outcome:
    assert seen.found is not None
    if seen.found.python:
        return State.OK, f"{seen.found.python} is {seen.found.python_version}, with venv", ""
    return State.MISSING, seen.found.python_trouble, "apt-get install python3 python3-venv (there, as root)"


def _disk(seen: Seen) -> Outcome:
    assert seen.found is not None
    text = f"{seen.found.free >> 20} MiB free for the agent"
    if seen.found.free < LEAST_SPACE:
        return State.MISSING, f"{text}; it needs {LEAST_SPACE >> 20}", "free some space there: df -h"
    return State.OK, text, ""


def _agent(seen: Seen) -> Outcome:
    assert seen.found is not None
    install = f"llmgw node install {seen.node.name} {_dir(seen)}".rstrip()
    current = seen.found.current
    if current and current not in seen.found.whole:
        return State.MISSING, f"{current} is installed and does not run", install
    if current == seen.release:
        return State.OK, f"{current} is installed", ""
    if current:
        return State.MISSING, f"{current} is installed, ours is {seen.release}", install
    if seen.answer is not None and seen.answer.version == __version__:
        return State.OK, f"{seen.answer.version} runs, not installed by `llmgw node install`", ""
    return State.MISSING, "is not installed", install


def _unit(seen: Seen) -> Outcome:
    assert seen.found is not None
    found = seen.found
    if found.systemd is None:
        return State.OK, "no systemd runs there; the agent is started by hand", ""
    if found.active and found.enabled:
        return State.OK, "runs, and starts with the machine", ""
    control = systemctl(seen.manager)
    if found.unit_digest:
        text = "is there and does not run" if not found.active else "runs, and does not start with the machine"
        return State.MISSING, text, f"{control} enable --now llmgw-agent.service (there)"
    if seen.answer is not None and not found.current:
        return State.OK, "none; the agent is started by other means", ""
    return State.MISSING, "there is none", f"llmgw node install {seen.node.name} {_dir(seen)}".rstrip()


def _socket(seen: Seen) -> Outcome:
    if seen.answer is None:
        if seen.node.local:
            return State.MISSING, seen.silence, "llmgw agent (here)"
        control = systemctl(seen.manager)
        journal = "journalctl --user" if seen.manager == "user" else "journalctl"
        return (
            State.MISSING,
            seen.silence,
            f"{control} restart llmgw-agent.service (there); its log: {journal} -u llmgw-agent.service",
        )
    complaint = seen.answer.report.facts.complaint
    if complaint:
        return State.MISSING, f"the agent complains: {complaint}", "mend that on the node"
    return State.OK, f"version {seen.answer.version} answers on {seen.socket}", ""


def _gpus(seen: Seen) -> Outcome:
    assert seen.answer is not None
    report = seen.answer.report
    expected = seen.node.expect.gpus if seen.node.expect and seen.node.expect.gpus else 0
    users = [model.name for model, profile in possible(seen.catalog, seen.node) if profile.gpu is not None]
    mend = "nvidia-smi (there; for AMD: amd-smi list), and install the driver if it lists no cards"
    if report.facts.gpu_trouble:
        return State.MISSING, report.facts.gpu_trouble, mend
    ill = [f"{card.name} {card.uuid}: {card.unhealthy}" for card in report.gpus if card.unhealthy]
    if ill:
        return State.MISSING, "; ".join(ill), "nvidia-smi -q (there); reset or replace the card"
    if len(report.gpus) < expected:
        return State.MISSING, f"{len(report.gpus)} of {expected} expected cards are there", mend
    if not report.gpus and users and not _others_could(seen, users):
        return State.MISSING, f"no cards, and {', '.join(users)} can run nowhere else", mend
    if not report.gpus:
        return State.OK, "no cards", ""
    return State.OK, f"{len(report.gpus)} cards, driver {report.facts.driver or 'unknown'}", ""


def _others_could(seen: Seen, models: list[str]) -> bool:
    """Whether each model might run on another node, or here without a card."""
    return all(
        any(profile.gpu is None for model, profile in possible(seen.catalog, seen.node) if model.name == name)
        or any(
            model.name == name
            for other in seen.catalog.nodes.values()
            if other.name != seen.node.name
            for model, _ in possible(seen.catalog, other)
        )
        for name in models
    )


def _engines(seen: Seen) -> Outcome:
    assert seen.answer is not None
    known = {program.engine for program in seen.answer.report.facts.programs}
    lacking = [
        one for one, there in seen.there.items() if one.kind == "engine" and not there and one.engine not in known
    ]
    if lacking:
        text = "; ".join(f"{one.path}, which {one.model} needs, is not there" for one in lacking)
        return State.MISSING, text, f"install {lacking[0].path} there, or name it: `command` of the profile or engine"
    return State.OK, _counted(seen, "engine", "program"), ""


def _weights(seen: Seen) -> Outcome:
    lacking = [one for one, there in seen.there.items() if one.kind == "weights" and not there]
    relative = [one for one in lacking if not one.path.startswith("/")]
    if relative:
        text = f"{relative[0].path} of {relative[0].model} is relative, and the node has no weights directory"
        return State.MISSING, text, f"llmgw set node/{seen.node.name} {_dir(seen)}weights_dir=/DIRECTORY/ON/IT"
    if lacking:
        text = "; ".join(f"{one.path}, which {one.model} needs, is not there" for one in lacking)
        ssh = seen.node.ssh
        if ssh is None:
            return State.MISSING, text, f"cp FILE {shlex.quote(lacking[0].path)}"
        target = f"{ssh.user or seen.catalog.cluster.ssh.user}@{ssh.host}:{lacking[0].path}"
        return State.MISSING, text, f"scp -P {ssh.port} FILE {shlex.quote(target)}"
    return State.OK, _counted(seen, "weights", "file"), ""


def _counted(seen: Seen, kind: str, noun: str) -> str:
    paths = sorted({one.path for one in seen.there if one.kind == kind})
    return f"{', '.join(paths)}" if paths else f"no {noun} is needed"


def _where(seen: Seen) -> str:
    ssh = seen.node.ssh
    assert ssh is not None
    hops = f" through {len(ssh.proxy_jump)} hop(s)" if ssh.proxy_jump else ""
    return f"{ssh.host}:{ssh.port}{hops}"


def _dir(seen: Seen) -> str:
    return "" if seen.directory == "." else f"--dir {shlex.quote(seen.directory)} "


_PROGRAMS: Mapping[str, str] = {"llamacpp": "llama-server", "vllm": "vllm", "sglang": "python3"}
"""The program of an engine that the cluster does not define itself."""
_BY_SSH = ("reachable", "host key", "login", "python", "disk", "agent", "unit")
_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[Seen], Outcome]], ...] = (
    ("reachable", (), _reachable),
    ("host key", ("reachable",), _host_key),
    ("login", ("reachable", "host key"), _login),
    ("python", ("login",), _python),
    ("disk", ("login",), _disk),
    ("agent", ("login",), _agent),
    ("unit", ("login",), _unit),
    ("agent answers", ("login",), _socket),
    ("gpus", ("agent answers",), _gpus),
    ("engines", ("agent answers",), _engines),
    ("weights", ("agent answers",), _weights),
)
