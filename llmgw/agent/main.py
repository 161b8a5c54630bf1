"""The agent's composition root: builds its objects and runs until it is told to stop.

By default engines outlive the agent: SIGTERM ends it and leaves them running, to be adopted by the next one.
`ephemeral` is for demonstrations and tests: the agent ends its engines with itself, and itself with its parent.
"""

import asyncio
import logging
import os
import random
import signal
from pathlib import Path

from llmgw.agent import cgroup, secrets
from llmgw.agent.disk import Disk, StateLocked
from llmgw.agent.gpus import Gpus, sources
from llmgw.agent.lineage import become_subreaper, end_with_parent
from llmgw.agent.probe import Prober
from llmgw.agent.process import Processes
from llmgw.agent.runner import Runner
from llmgw.agent.secrets import Secrets
from llmgw.agent.server import AgentServer, SocketTaken
from llmgw.agent.state import AgentState
from llmgw.base.ids import BootId
from llmgw.runtime.clock import RandomIds, SystemClock
from llmgw.runtime.supervisor import Supervisor, first_of

log = logging.getLogger(__name__)

SWEEP_EVERY = 15.0
"""Seconds between two looks at the sizes of logs."""


class CannotStart(Exception):
    """The agent cannot run here; the message says why and what to do."""


def default_socket() -> Path:
    """Return where an agent of this user listens, and where a control plane of this user looks for it."""
    given = os.environ.get("LLMGW_AGENT_SOCKET")
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/llmgw/agent.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "llmgw/agent.sock" if runtime else Path(f"/tmp/llmgw-{os.geteuid()}/agent.sock")  # noqa: S108 - 0700 below


def default_state_dir() -> Path:
    """Return where an agent of this user keeps its state."""
    if os.geteuid() == 0:
        return Path("/var/lib/llmgw/agent")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "llmgw/agent"


def run_agent(socket: Path, state_dir: Path, weights_dir: Path | None, *, ephemeral: bool) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotStart."""
    asyncio.run(_run(socket, state_dir, weights_dir, ephemeral=ephemeral))


async def _run(socket: Path, state_dir: Path, weights_dir: Path | None, *, ephemeral: bool) -> None:
    become_subreaper()
    if ephemeral:
        end_with_parent()
    disk = Disk(state_dir)
    ids = RandomIds()
    try:
        disk.open()
        agent_id = disk.agent_id(ids)
        processes = Processes(
            agent_id, disk, weights_dir, cgroup.find(agent_id), Secrets(secrets.place(socket, agent_id))
        )
    except StateLocked as error:
        raise CannotStart(f"{error}; stop it, or give this one another --state-dir") from error
    except OSError as error:
        raise CannotStart(
            f"cannot write {state_dir}: {error.strerror}; choose another place with --state-dir"
        ) from error
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    runner = Runner(
        AgentState(BootId(ids.new())), disk, processes, Prober(processes.shard_of), SystemClock(), weights_dir
    )
    server = AgentServer(socket, runner, disk)
    tasks = Supervisor("main")
    runner.use_gpus(Gpus(sources(random.Random()), processes.shard_of))
    try:
        await runner.adopt()
        await server.start()
        log.info("listening", extra={"socket": socket, "state": state_dir, "weights": weights_dir or "none"})
        tasks.loop("time", runner.run())
        tasks.loop("logs", _sweep_logs(disk))
        await first_of(stopping.wait(), runner.failure(), tasks.failure())
    except SocketTaken as error:
        raise CannotStart(str(error)) from error
    finally:
        log.info("stopping", extra={"engines": "ended with the agent" if ephemeral else "run on"})
        await server.stop()
        await tasks.stop()
        await runner.stop(engines=ephemeral)
        disk.close()


async def _sweep_logs(disk: Disk) -> None:
    while True:
        try:
            await asyncio.to_thread(disk.sweep)
        except OSError as error:
            log.warning("logs could not be swept", extra={"error": error.strerror})
        await asyncio.sleep(SWEEP_EVERY)
