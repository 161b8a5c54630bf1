"""Docker and podman on this node: whether they can be used, and the removal of our containers.

What is removed is found by our label, never by name or id alone: a name may be anybody's. A container of which nothing runs is
only an entry in a list, but one whose start was under way when its client was killed may begin to run after all; so the end
of an attempt waits until docker itself says that there is none.
"""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from llmgw.agent.asked import Errors, Silent, ask
from llmgw.agent.container import LABEL_AGENT, LABEL_ATTEMPT, LABEL_SHARD
from llmgw.base.ids import ShardId
from llmgw.fleet.report import Containers

log = logging.getLogger(__name__)

PROGRAMS = ("docker", "podman")
LIMIT = 15.0
"""Seconds for an answer; a daemon that stops many containers is slow."""
REMOVAL = 60.0
"""Seconds for a removal, which waits for the container's end."""
SWEEP_AGAIN = 30.0
"""Seconds until a program is asked again that did not answer."""

_LOOK = {
    "docker": ("info", "--format", "{{.ServerVersion}} {{.SecurityOptions}}"),
    "podman": ("info", "--format", "{{.Version.Version}} rootless={{.Host.Security.Rootless}}"),
}
_DONE = "llmgw-done"
_WITH_STATUS = f'"$@" && echo {_DONE}'
"""Shell script: run the arguments, and say so if they ended well; what is asked gives output and no status."""


async def all_there() -> tuple[Containers, ...]:
    """Return what runs containers here, in a stated order."""
    found = await asyncio.gather(*(look(name) for name in PROGRAMS))
    return tuple(one for one in found if one is not None)


async def look(name: str) -> Containers | None:
    """Return docker or podman as it answers now; None if it is not installed."""
    path = shutil.which(name)
    if path is None:
        return None
    well, lines = await _run(LIMIT, path, *_LOOK[name])
    said = lines[-1].split() if lines else []
    if not well or not said or not said[0][:1].isdigit():
        return Containers(name, "", lines[-1][:300] if lines else "it says nothing")
    trouble = ""
    if name == "docker" and os.geteuid() != 0 and "rootless" not in lines[-1]:
        trouble = (
            f"its containers run as root, and this agent, which runs as user {os.geteuid()}, cannot see what is in them; "
            "run the agent as root, or use rootless docker or podman"
        )
    return Containers(name, said[0], trouble)


async def remove(name: str, agent_id: str, shard: ShardId) -> bool:
    """Remove every container of a shard of this agent, none of which may be wanted; whether it is certain that none is left."""
    path = shutil.which(name)
    if path is None:
        return False
    filters = ("--filter", f"label={LABEL_SHARD}={shard}")
    ids = await _ids(path, agent_id, *filters)
    if not ids:
        return ids is not None
    await _run(REMOVAL, path, "rm", "--force", "--volumes", *ids)
    return await _ids(path, agent_id, *filters) == []


async def sweep(agent_id: str, wanted: Callable[[], Iterable[tuple[ShardId, int]]]) -> None:
    """Remove what an earlier agent left: containers of attempts that are not among the wanted. Returns when all is swept.

    `wanted` is asked after the containers were listed: what is started later is not among those.
    """
    left = [name for name in PROGRAMS if shutil.which(name)]
    while left:
        left = [name for name in left if not await _swept(name, agent_id, wanted)]
        if left:
            await asyncio.sleep(SWEEP_AGAIN)


async def _swept(name: str, agent_id: str, wanted: Callable[[], Iterable[tuple[ShardId, int]]]) -> bool:
    path = shutil.which(name)
    if path is None:
        return True
    shown = f'{{{{.ID}}}} {{{{.Label "{LABEL_SHARD}"}}}} {{{{.Label "{LABEL_ATTEMPT}"}}}}'
    well, lines = await _run(
        LIMIT, path, "ps", "--all", "--no-trunc", "--filter", f"label={LABEL_AGENT}={agent_id}", "--format", shown
    )
    if not well:
        return False
    kept = {f"{shard} {attempt}" for shard, attempt in wanted()}
    ids = [line.split()[0] for line in lines if _is_id(line.split()[0]) and line.partition(" ")[2].strip() not in kept]
    if not ids:
        return True
    log.warning("removing containers that nothing wants", extra={"program": name, "count": len(ids)})
    well, _ = await _run(REMOVAL, path, "rm", "--force", "--volumes", *ids)
    return well


async def _ids(path: str, agent_id: str, *filters: str) -> list[str] | None:
    """Return the ids of this agent's containers, running or not; None if nobody says."""
    own = ("--filter", f"label={LABEL_AGENT}={agent_id}")
    well, lines = await _run(LIMIT, path, "ps", "--all", "--no-trunc", *own, *filters, "--format", "{{.ID}}")
    return [line for line in lines if _is_id(line)] if well else None


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


async def _run(limit: float, *argv: str) -> tuple[bool, list[str]]:
    """Return whether a command ended well, and the lines it wrote, those of its complaints among them."""
    output = await ask(["/bin/sh", "-c", _WITH_STATUS, "sh", *argv], limit, Errors.WITH_OUTPUT)
    if isinstance(output, Silent):
        shown = f"`{Path(argv[0]).name} {argv[1]}`"
        return False, [f"{shown} does not answer within {limit:g} s" if output.hung else output.text]
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    well = bool(lines) and lines[-1] == _DONE
    return well, lines[:-1] if well else lines
