"""Whether the ports of a shard are free on this node, and who holds them if not."""

import errno
import socket

from llmgw.agent import procfs
from llmgw.fleet.report import Reason


def port_taken(port: int, host: str = "127.0.0.1", ports: int = 1) -> Reason | None:
    """Return who holds a port of a block, or None if all are free.

    The bind is plain, without SO_REUSEADDR: only that fails against an engine that has bound and does not listen yet. It
    also fails on connections in TIME_WAIT, which harm nothing, so those are told apart.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, port + ports):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, number))
            except OSError as error:
                reason = _why_not(number, host, error)
                if reason is not None:
                    return reason
    return None


def _why_not(port: int, host: str, error: OSError) -> Reason | None:
    if error.errno != errno.EADDRINUSE:
        return Reason("address_unusable", f"cannot listen on {host}:{port} on this node: {error.strerror}")
    pids = procfs.listeners(port) or procfs.holders(port)
    if not pids and port not in procfs.listening_ports() and procfs.in_time_wait(port):
        return None
    holder = ", ".join(f"pid {pid} ({procfs.command_of(pid)})" for pid in pids) or "a process that is not visible"
    return Reason("port_taken", f"port {port} is taken by {holder}")
