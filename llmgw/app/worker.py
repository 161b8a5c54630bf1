"""The gateway worker's process: `python -m llmgw.app.worker`, started by the server and of no use by hand.

It shares its port with its siblings by `SO_REUSEPORT`, ignores what a terminal sends (the server tells it to stop) and
outlives a killed server.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import sys
from pathlib import Path

import uvloop

from llmgw.app import tracing
from llmgw.app.logs import configure
from llmgw.gateway.access_log import AccessLog
from llmgw.gateway.tls import BadPair, ServerTls
from llmgw.gateway.worker import run_worker
from llmgw.runtime.clock import SystemClock


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, shared with others that bind it alike. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


async def serve(arguments: list[str], stop: asyncio.Event) -> None:
    """Serve until `stop` is set, in this process and loop, as a worker with these arguments does in its own."""
    options = _parsed(arguments)
    clock = SystemClock()
    access_log = AccessLog(options.access_log, clock) if options.access_log else None
    spans = tracing.spans_to(options.otel_endpoint)
    try:
        await run_worker(
            listen=listening_socket(options.host, options.port),
            control=Path(options.control),
            drain=options.drain,
            clock=clock,
            rng=random.Random(os.urandom(16)),
            stop=stop,
            tls=ServerTls(options.tls_cert, options.tls_key) if options.tls_cert else None,
            access_log=access_log,
            spans=spans,
        )
    finally:
        if spans is not None:
            spans.close()
        if access_log is not None:
            access_log.close()


async def _run() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(sys.argv[1:], stop)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmgw.app.worker")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--drain", type=float, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--access-log")
    parser.add_argument("--otel-endpoint")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    """Serve until SIGTERM."""
    options = _parsed(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure(f"worker[{os.getpid()}]", options.log_level)
    try:
        uvloop.run(_run())
    except OSError as error:
        sys.exit(f"cannot serve on {options.host}:{options.port}: {error.strerror or error}")
    except BadPair as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
