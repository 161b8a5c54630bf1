"""A real sshd on loopback: its own host key, one user's key, no system configuration read."""

import getpass
import subprocess
from pathlib import Path

from tests.live.conftest import program
from tests.live.lab import Lab, free_port


class Sshd:
    """One running sshd. It ends with the lab that it belongs to."""

    def __init__(self, lab: Lab) -> None:
        self.binary = program("sshd")
        self.root = lab.root / "ssh"
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
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {self.authorized}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nAllowStreamLocalForwarding yes\nAllowTcpForwarding yes\nLogLevel VERBOSE\n"
        )
        Path("/run/sshd").mkdir(
            mode=0o755, exist_ok=True
        )  # its privilege separation directory, made by the init script
        with (self.lab.root / "sshd.log").open("ab") as log:
            process = subprocess.Popen([self.binary, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        self.lab.processes.append(process)
        self.lab.until(lambda: _listens(self.port), "sshd to listen", process)
        return process

    def stop(self) -> None:
        """End the listening sshd; sessions of it live on until their connection ends."""
        self.process.terminate()
        self.process.wait()

    def node_yaml(self, name: str, host_key: str, socket: Path) -> str:
        """Return a node that is reached through this sshd."""
        return f"""\
apiVersion: llmgw/v1
kind: Node
name: {name}
agent_socket: {socket}
ssh:
  host: 127.0.0.1
  port: {self.port}
  user: {self.user}
  host_key: {host_key}
  identity_file: {self.identity}
"""


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
