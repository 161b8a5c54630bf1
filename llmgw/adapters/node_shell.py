"""One SSH connection for installing and checking: scripts, files, and the agent's socket, all with time limits.

Scripts go to `sh` on standard input, so that a login shell of another kind (fish, csh) does not read them. asyncssh's own
time limits were seen not to hold on a frozen peer; every await here has an outer one.
"""

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass

import asyncssh

from llmgw import __version__
from llmgw.adapters.ssh_login import abandon, log_in, login_of
from llmgw.base.ids import NodeName
from llmgw.fleet.report import Report
from llmgw.ports.links import LinkBroken, SecretSource
from llmgw.spec.cluster import Cluster
from llmgw.spec.node import Node
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, Said, Welcome, encode
from llmgw.wire.session import Session

SCRIPT_LIMIT = 60.0
CHUNK = 256 << 10
CHUNK_LIMIT = 60.0
"""Seconds for `CHUNK` bytes of an upload; a slower way than 4 KiB/s is taken for a broken one."""
GREETING_LIMIT = 15.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a script ended."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Return the line that says most of what went wrong: pip's last ERROR, else the last line of all."""
        lines = [one.strip() for one in (self.err or self.out).splitlines() if one.strip()]
        errors = [one for one in lines if one.startswith("ERROR")]
        return (errors or lines or [f"it ended with status {self.status}"])[-1]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent says of itself when it is asked."""

    version: str
    report: Report


class NodeShell:
    """A connection to a node. For one caller at a time; `close` it."""

    def __init__(self, name: str, connections: list[asyncssh.SSHClientConnection]) -> None:
        self._name = name
        self._connections = connections

    @classmethod
    async def connect(cls, node: Node, cluster: Cluster, secrets: SecretSource) -> "NodeShell":
        """Log in. Raises LinkBroken, chained to what asyncssh or the system said."""
        login = login_of(node, cluster.ssh)
        return cls(node.name, await log_in(node.name, login, secrets, asyncio.Semaphore(1)))

    async def run(self, script: str, limit: float = SCRIPT_LIMIT, *, root: bool = False) -> Done:
        """Run a script of `sh` and return how it ended. Raises LinkBroken."""
        try:
            async with asyncio.timeout(limit):
                # asyncssh sends no end of file after an empty input, and `sh` would wait for ever
                ended = await self._connections[-1].run(
                    "sudo -n sh -s" if root else "sh -s", input=f"{script}\n", encoding="utf-8", errors="replace"
                )
        except TimeoutError as error:
            raise LinkBroken(f"node {self._name} took more than {limit:.0f} s for one step; try again") from error
        except (asyncssh.Error, OSError) as error:
            raise LinkBroken(f"the connection to node {self._name} broke: {error}; run this again") from error
        status = ended.returncode
        if status is None or (status < 0 and ended.exit_signal is None):
            raise LinkBroken(f"the connection to node {self._name} broke in the middle of a step; run this again")
        return Done(status, str(ended.stdout or ""), str(ended.stderr or ""))

    async def upload(self, directory: str, files: dict[str, bytes]) -> None:
        """Put files into a directory that is there; those that are there at full size are kept. Raises LinkBroken."""
        try:
            async with asyncio.timeout(CHUNK_LIMIT):
                sftp = await self._connections[-1].start_sftp_client()
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(
                f"node {self._name} takes no files ({str(error) or 'no answer'}); its sshd_config needs "
                "`Subsystem sftp internal-sftp`"
            ) from error
        try:
            for name, data in files.items():
                await self._put(sftp, f"{directory}/{name}", data)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(
                f"uploading to {directory} of node {self._name} failed: {str(error) or 'no answer'}; run this again"
            ) from error
        finally:
            sftp.exit()

    async def _put(self, sftp: asyncssh.SFTPClient, path: str, data: bytes) -> None:
        async with asyncio.timeout(CHUNK_LIMIT):
            with suppress(asyncssh.SFTPNoSuchFile):
                if (await sftp.stat(path)).size == len(data):
                    return
            file = await sftp.open(f"{path}.part", "wb")
        try:
            for start in range(0, len(data), CHUNK):
                async with asyncio.timeout(CHUNK_LIMIT):
                    await file.write(data[start : start + CHUNK])
        finally:
            async with asyncio.timeout(CHUNK_LIMIT):
                await file.close()
        async with asyncio.timeout(CHUNK_LIMIT):
            await sftp.posix_rename(f"{path}.part", path)

    async def greet(self, socket: str, node: str, cluster: str) -> Answer:
        """Greet the agent as the control plane does, and return its first report. Raises LinkBroken."""
        try:
            async with asyncio.timeout(GREETING_LIMIT):
                reader, writer = await self._connections[-1].open_unix_connection(socket, encoding=None)
        except asyncssh.ChannelOpenError as error:
            raise LinkBroken(f"no agent listens on {socket} of node {node} ({error.reason})") from error
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise LinkBroken(f"cannot open {socket} of node {node}: {str(error) or 'no answer'}") from error
        try:
            return await converse(reader, writer, node, cluster)
        except (asyncssh.Error, OSError) as error:
            raise LinkBroken(f"the agent's connection broke: {error}") from error
        finally:
            writer.close()

    def close(self) -> None:
        """End the connection at once."""
        abandon(self._connections)


async def converse(
    reader: "asyncssh.SSHReader[bytes] | asyncio.StreamReader",
    writer: "asyncssh.SSHWriter[bytes] | asyncio.StreamWriter",
    node: str,
    cluster: str,
) -> Answer:
    """Say hello over an open connection and return the welcome and the first report. Raises LinkBroken, OSError."""
    session = Session("control_of_agent")
    version = ""
    try:
        async with asyncio.timeout(GREETING_LIMIT):
            writer.write(frame(encode(Hello(PROTOCOL, __version__, cluster, NodeName(node)))))
            while data := await reader.read(1 << 16):
                for message in session.feed(data):
                    if isinstance(message, Welcome):
                        version = message.version
                    elif isinstance(message, Said):
                        return Answer(version, message.report)
    except TimeoutError as error:
        raise LinkBroken(f"the agent of node {node} did not answer within {GREETING_LIMIT:.0f} s") from error
    except ProtocolError as error:
        raise LinkBroken(str(error)) from error
    raise LinkBroken(f"the agent of node {node} closed the connection without an answer")


def quoted(*words: str) -> str:
    """Return words as `sh` reads them back."""
    return shlex.join(words)
