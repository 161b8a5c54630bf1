"""What an engine's program or container is on this node, and how it is started: in a session of its own, and in its cgroup."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent import cgroup, container, interfaces
from llmgw.agent.container import Devices, Wanted
from llmgw.agent.secrets import Secrets
from llmgw.engines.shard import PYTHON, WEIGHTS, ShardSpec
from llmgw.fleet.report import Reason

MARK_AGENT = "LLMGW_AGENT"
MARK_SHARD = "LLMGW_SHARD"
MARK_ATTEMPT = "LLMGW_ATTEMPT"
MARK_HASH = "LLMGW_HASH"
MARK_CAUSE = "LLMGW_CAUSE"

PASSED_ON = (
    "CUDA_HOME", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
)  # fmt: skip
"""What an engine inherits of the agent's environment. Everything else could change it unseen (LLAMA_ARG_*, PORT, …)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whose start of a shard it is, its number, and why it happens: what its processes are marked with."""

    agent: str
    number: int
    cause: str


def start_of(
    spec: ShardSpec,
    attempt: Attempt,
    secrets: Secrets,
    weights_dir: str | Path | None,
    *,
    extra: Mapping[str, str],
    devices: Devices,
    files: tuple[Path, Path],
) -> tuple[list[str], dict[str, str]] | Reason:
    """Return the arguments and the environment of what is started for an attempt, or what is missing for it.

    `extra`: variables that only the node can know; for a container, `devices` and the two `files` of `container_argv_of`.
    """
    values = _values(spec, secrets)
    if isinstance(values, Reason):
        return values
    who = {MARK_AGENT: attempt.agent, MARK_SHARD: spec.shard, MARK_ATTEMPT: str(attempt.number)}
    mark = {**who, MARK_HASH: spec.hash, MARK_CAUSE: attempt.cause}
    said = interfaces.filled(spec.env)
    if spec.runtime == "process":
        argv = argv_of(spec, weights_dir)
        environment = {**_passed(PASSED_ON), **said, **values, **extra, **mark}
    else:
        argv = container_argv_of(
            spec,
            weights_dir,
            name=container.name_of(attempt.agent, spec.shard, attempt.number),
            files=files,
            env={**said, **dict(devices.env), **who},
            labels={
                container.LABEL_AGENT: attempt.agent,
                container.LABEL_SHARD: spec.shard,
                container.LABEL_ATTEMPT: str(attempt.number),
            },
            devices=devices,
        )
        environment = {**_passed(container.CLIENT), **values, **mark}
    return argv if isinstance(argv, Reason) else (argv, environment)


def _values(spec: ShardSpec, secrets: Secrets) -> dict[str, str] | Reason:
    values: dict[str, str] = {}
    for variable, name in spec.secrets.items():
        value = secrets.get(name)
        if value is None:
            return Reason(
                "secret_missing",
                f"secret {name} is not known to the control plane; set LLMGW_SECRET_{name} there or put a file {name} "
                "into its --secrets-dir",
            )
        values[variable] = value
    return values


def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def argv_of(spec: ShardSpec, weights_dir: str | Path | None) -> list[str] | Reason:
    """Return the program and arguments to start, or what the node lacks for it."""
    program = next((found for names in spec.programs if (found := _resolve(names)) is not None), None)
    if program is None:
        names = " or ".join(names[0] for names in spec.programs)
        return _missing(names)
    weights = _weights(spec, weights_dir)
    if isinstance(weights, Reason):
        return weights
    return [*program, *(str(weights) if arg == WEIGHTS else arg for arg in spec.args)]


def container_argv_of(
    spec: ShardSpec,
    weights_dir: str | Path | None,
    *,
    name: str,
    files: tuple[Path, Path],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    devices: Devices,
) -> list[str] | Reason:
    """Return the program that stands for the shard's container, with all of that one's arguments; or what the node lacks.

    `files`: where the container's id goes, and the note of the process that stands for it.
    """
    program = shutil.which(spec.runtime)
    if program is None:
        return _missing(spec.runtime)
    weights = _weights(spec, weights_dir)
    if isinstance(weights, Reason):
        return weights
    id_file, note = files
    wanted = Wanted(
        name=name,
        program=program,
        id_file=id_file,
        weights=weights,
        mounts=container.mounts_for(weights, Path(weights_dir) if weights_dir else None),
        env=env,
        secrets=tuple(spec.secrets),
        labels=labels,
        devices=devices,
        shared_memory=container.shared_memory(),
    )
    run = container.arguments(spec, wanted)
    return [sys.executable, "-m", "llmgw.agent.tender", str(id_file), str(note), *run]


def _missing(program: str) -> Reason:
    return Reason("program_missing", f"{program} is not installed on this node, or not in the agent's PATH")


def _weights(spec: ShardSpec, weights_dir: str | Path | None) -> Path | Reason:
    weights = Path(spec.weights)
    if not weights.is_absolute():
        if weights_dir is None:
            return Reason(
                "weights_missing",
                f"weights path {spec.weights} is relative and the node has no weights directory; set the node's "
                "`weights_dir` or start the agent with --weights-dir",
            )
        weights = Path(weights_dir) / weights
    if not weights.exists():
        return Reason("weights_missing", f"weights {weights} do not exist on this node; put them there")
    return weights


def _resolve(names: tuple[str, ...]) -> list[str] | None:
    first = sys.executable if names[0] == PYTHON else shutil.which(names[0])
    return None if first is None else [first, *names[1:]]


def launch(argv: list[str], environment: Mapping[str, str], log: int, directory: Path | None) -> int:
    """Start a program with its output in `log` and, if given, in the cgroup of `directory`; return its pid. Raises OSError."""
    if not os.access(argv[0], os.X_OK):  # a shell would say so too, but only in the log
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if directory is not None:
        argv = ["/bin/sh", "-c", cgroup.ENTER, "sh", str(directory / "cgroup.procs"), *argv]
    return os.posix_spawn(
        argv[0],
        argv,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
    )
