"""What an engine's program is on this node, and how it is started: a session of its own, in its cgroup from the start on."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from llmgw.agent import cgroup
from llmgw.engines.shard import PYTHON, WEIGHTS, ShardSpec
from llmgw.fleet.report import Reason


def argv_of(spec: ShardSpec, weights_dir: str | Path | None) -> list[str] | Reason:
    """Return the program and arguments to start, or what the node lacks for it."""
    program = next((found for names in spec.programs if (found := _resolve(names)) is not None), None)
    if program is None:
        names = " or ".join(names[0] for names in spec.programs)
        return Reason("program_missing", f"{names} is not installed on this node, or not in the agent's PATH")
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
    return [*program, *(str(weights) if arg == WEIGHTS else arg for arg in spec.args)]


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
