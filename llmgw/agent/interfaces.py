"""Which network interface has an address: what the shards of one replica are told to talk over.

The control plane knows a node's address, and only the node knows what the interface is called. Asked of the kernel
directly (SIOCGIFCONF, and /proc for IPv6), because no module of the standard library tells it. An address that no interface
has (one behind translation) leaves the variable out, and the engine chooses for itself.
"""

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgw.engines.shard import INTERFACE

SIOCGIFCONF = 0x8912
ENTRY = 40
"""Bytes of a `struct ifreq` on 64-bit Linux: a name of 16, then an address."""
MOST = 512


def filled(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with every interface token replaced by a name, or left out if there is none."""
    found = dict(environment)
    for name, value in environment.items():
        before, token, address = value.partition(INTERFACE)
        if token:
            interface = interface_of(address)
            if interface is None:
                del found[name]
            else:
                found[name] = before + interface
    return found


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this address, or None."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    addresses = _version_4() if wanted.version == 4 else _version_6()
    return next((name for name, each in addresses if each == wanted), None)


def _version_4() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    buffer = array.array("B", bytes(ENTRY * MOST))
    start, size = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, SIOCGIFCONF, struct.pack("iL", size, start))
    (length, _) = struct.unpack("iL", answer)
    data = buffer.tobytes()
    for at in range(0, length, ENTRY):
        name = data[at : at + 16].partition(b"\0")[0].decode(errors="replace")
        yield name.partition(":")[0], ipaddress.IPv4Address(data[at + 20 : at + 24])  # a second address is `NAME:LABEL`


def _version_6() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        yield fields[-1], ipaddress.IPv6Address(bytes.fromhex(fields[0]))
