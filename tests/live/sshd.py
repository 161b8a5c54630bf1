"""A real sshd on loopback: its own host key, one user's key, no system configuration read."""

import getpass
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from tests.live.conftest import program
from tests.live.lab import Lab, free_port


class Sshd:
    """One running sshd. It ends with the lab that it belongs to."""

    def __init__(self, lab: Lab, name: str = "ssh", *, netns: str | None = None, address: str = "127.0.0.1") -> None:
        self.binary = program("sshd")
        self.netns = netns
        self.address = address
        self.root = lab.root / name
        self.root.mkdir(mode=0o700)
        self.port = free_port()
        self.user = getpass.getuser()
        self.identity = self.key("user")
        self.lab = lab
        self.authorized = self.root / "authorized"
        self.authorized.write_text(Path(f"{self.identity}.pub").read_text())
        self.process = self.start(self.key("host"))

    def key(self, name: str) -> Path:
        """Make a key pair and return the private one's path."""
        path = self.root / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path

    def public(self, key: Path) -> str:
        """Return `TYPE BASE64` of a key."""
        return " ".join(Path(f"{key}.pub").read_text().split()[:2])

    def start(self, host_key: Path) -> subprocess.Popen[bytes]:
        """Start with this host key, on the same port as ever."""
        self.host_key = host_key
        config = self.root / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress {self.address}\nHostKey {host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {self.authorized}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nAllowStreamLocalForwarding yes\nAllowTcpForwarding yes\nLogLevel VERBOSE\n"
        )
        Path("/run/sshd").mkdir(
            mode=0o755, exist_ok=True
        )  # its privilege separation directory, made by the init script
        inside = ["ip", "netns", "exec", self.netns] if self.netns else []
        with (self.lab.root / "sshd.log").open("ab") as log:
            process = subprocess.Popen([*inside, self.binary, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        self.lab.processes.append(process)
        self.lab.until(lambda: _listens(self.address, self.port), "sshd to listen", process)
        return process

    def stop(self) -> None:
        """End the listening sshd; sessions of it live on until their connection ends."""
        self.process.terminate()
        self.process.wait()

    def session_of(self, client: int) -> int:
        """Return the session process at the other end of a client's connection; it outlives the listening sshd."""
        ends = {
            one.laddr.port
            for one in psutil.Process(client).net_connections("tcp")
            if one.raddr and one.raddr.port == self.port
        }
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "sshd":
                with suppress(psutil.NoSuchProcess):  # another's session that ends while we look
                    for one in process.net_connections("tcp"):
                        if one.raddr and one.laddr.port == self.port and one.raddr.port in ends:
                            return int(process.pid)
        raise AssertionError(f"process {client} has no session here")

    def node_yaml(self, name: str, host_key: str, socket: Path, *, key: str | None = None, extra: str = "") -> str:
        """Return a node that is reached through this sshd; `key` is how the identity is named instead of the user's."""
        return f"""\
apiVersion: llmgw/v1
kind: Node
name: {name}
agent_socket: {socket}
ssh:
  host: {self.address}
  port: {self.port}
  user: {self.user}
  host_key: {host_key}
  {key or f"identity_file: {self.identity}"}
{extra}"""


def tunnels(lab: Lab) -> list[int]:
    """Return the OpenSSH clients that a lab's server runs, those of hops among them."""
    mark = str(lab.root)
    found = []
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        runs = process.info["name"] == "ssh" and process.info["status"] != psutil.STATUS_ZOMBIE
        if runs and any(mark in argument for argument in process.info["cmdline"] or []):
            found.append(process.pid)
    return sorted(found)


def _listens(address: str, port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
