"""Many nodes in one process: an SSH server each of whose logins leads to a fake agent that greets and reports every 10 seconds.

Run as `python -m tests.bench.fleet HOST_KEY AUTHORIZED_KEYS`; prints its port.
"""

import asyncio
import contextlib
import sys
from typing import Any

import asyncssh

from llmgw.agent.server import REPORT_EVERY
from llmgw.wire.frames import frame
from llmgw.wire.messages import PROTOCOL, Hello, Said, Welcome, encode
from llmgw.wire.session import Session
from tests.builders import report


class _Server(asyncssh.SSHServer):
    def unix_connection_requested(self, dest_path: str) -> Any:
        return _agent if dest_path == "/agent" else False


async def _agent(reader: Any, writer: Any) -> None:
    session = Session("agent")
    name, sequence = "", 0
    while True:
        try:
            async with asyncio.timeout(REPORT_EVERY):
                data = await reader.read(1 << 16)
        except TimeoutError:
            data = None
        except asyncssh.Error:
            return
        if data == b"":
            return
        for message in session.feed(data or b""):
            if isinstance(message, Hello):
                name = message.node
                writer.write(frame(encode(Welcome(PROTOCOL, "bench"))))
        sequence += 1
        writer.write(frame(encode(Said(report(name, sequence=sequence)))))


async def _main(host_key: str, authorized: str) -> None:
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_Server,
        server_host_keys=[host_key],
        authorized_client_keys=authorized,
        encoding=None,
        backlog=1024,
    )
    print(server.get_port(), flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(*sys.argv[1:]))
