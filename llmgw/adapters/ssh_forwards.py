"""Engine traffic through asyncssh, where OpenSSH's client is not installed: forwards on the connection that carries reports.

They live as long as that connection, which is kept when only the agent at its end went away. sshd sets TCP_NODELAY on a
connection only once a command is run over it, so one is run: `true` (see `ssh_client`).
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncssh

from llmgw.base.ids import ShardId
from llmgw.ports.links import LinkBroken, Target

log = logging.getLogger(__name__)

OPEN_LIMIT = 10.0
"""Seconds."""


class Forwards:
    """The forwards of one connection, the last of those that lead to a node. Not for concurrent use, but for `ways`."""

    def __init__(
        self, connections: list[asyncssh.SSHClientConnection], directory: Path, name: str, numbers: Iterator[int]
    ) -> None:
        self._connections = connections
        self._connection = connections[-1]
        self._directory = directory
        self._stem = hashlib.sha256(name.encode()).hexdigest()[:8]
        self._numbers = numbers
        self._open: dict[ShardId, tuple[Target, Path, asyncssh.SSHListener]] = {}
        self._prompt = False

    def ways(self) -> dict[ShardId, Path]:
        """Return those that are there now."""
        return {} if self._connection.is_closed() else {shard: path for shard, (_, path, _) in self._open.items()}

    async def have(self, targets: Mapping[ShardId, Target]) -> None:
        """Have exactly these. Raises LinkBroken."""
        for shard in [shard for shard, (target, _, _) in self._open.items() if targets.get(shard) != target]:
            self._shut(shard)
        for shard, target in targets.items():
            if shard not in self._open:
                await self._be_prompt()
                path = self._directory / f"{self._stem}.{next(self._numbers)}.s"
                path.unlink(missing_ok=True)
                try:
                    async with asyncio.timeout(OPEN_LIMIT):
                        listener = await self._connection.forward_local_path_to_port(
                            str(path), target.host, target.port
                        )
                except (asyncssh.Error, OSError, TimeoutError) as error:
                    raise LinkBroken(f"cannot make a tunnel to port {target.port}: {error}") from error
                path.chmod(0o600)
                self._open[shard] = (target, path, listener)

    def close(self) -> None:
        """Remove all."""
        for shard in list(self._open):
            self._shut(shard)

    async def _be_prompt(self) -> None:
        """Have sshd send small packets at once. One that runs nothing for us still forwards."""
        if self._prompt:
            return
        self._prompt = True
        for connection in self._connections:  # a hop has a connection of its own
            with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
                async with asyncio.timeout(OPEN_LIMIT):
                    await connection.run("true", check=False)

    def _shut(self, shard: ShardId) -> None:
        _, path, listener = self._open.pop(shard)
        listener.close()
        path.unlink(missing_ok=True)
