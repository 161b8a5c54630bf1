"""Where a repository is on the network, and with which credentials git gets there. Values never stand in a URL or an argument.

For https git asks a program for user and password; that program is a script in the state directory which repeats what is in
its environment, and only for the one host. For ssh the key is a file of this user's alone, and only the given known hosts
count: nobody is there to say yes to a new one. Nothing of the user's own configuration is read, so that the server does
on each machine, and under each service manager, what it did in the test.
"""

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from llmgw.adapters.git_command import GitFailed
from llmgw.base.redact import redact

SecretOf = Callable[[str], str | None]
"""Returns the present value of a secret, or None if there is none."""

PASSED_ON = ("PATH", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "TMPDIR")
"""What git gets of our own environment: where programs are, and the way out."""
ASKPASS = """\
#!/bin/sh
# Answers git's question for a user or a password, for one host only.
case "$1" in
*"://$LLMGW_GIT_HOST'"* | *"@$LLMGW_GIT_HOST'"*) ;;
*) exit 1 ;;
esac
case "$1" in
Username*) printf '%s\\n' "$LLMGW_GIT_USER" ;;
Password*) printf '%s\\n' "$LLMGW_GIT_PASSWORD" ;;
*) exit 1 ;;
esac
"""
CONFIG = (
    "credential.helper=",
    "core.askPass=",
    "http.followRedirects=false",
    "protocol.version=2",
    "core.hooksPath=/dev/null",
)
_SCP = re.compile(r"^(?:[A-Za-z0-9_.-]+@)?(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(?!//)[^\s]+$")
_BAD_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|^[-./]|[./]$|\.lock(/|$)")


class BadRemote(ValueError):
    """What was said of the remote will not do; the message holds no credentials."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One branch of one repository, and how to get there."""

    url: str
    branch: str
    path: str = ""
    """Of the cluster directory in the repository."""
    secret: str | None = None
    """Name of the secret: a password or token for https, a private key for ssh."""
    user: str = "git"
    """For https."""
    known_hosts: Path | None = None
    """For ssh; the default is a file in the mirror's directory."""
    authorities: Path | None = None
    """Certificates that https trusts, in place of the system's."""
    allow_file: bool = False

    def check(self) -> None:
        """Raise BadRemote if git must not get this."""
        shown = redact(self.url)
        if _BAD_BRANCH.search(self.branch) or not self.branch or self.branch == "@":
            raise BadRemote(f"--branch {self.branch!r} is not the name of a branch")
        if self.path.startswith(("/", ":")) or ".." in self.path.split("/") or "\0" in self.path:
            raise BadRemote(
                f"--path {self.path} is not a directory inside the repository; write it as in deploy/cluster"
            )
        if self.scheme == "scp":
            return
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise BadRemote(f"--git {shown} is not a URL") from error
        if parts.scheme == "file":
            if not self.allow_file:
                raise BadRemote(f"--git {shown}: local repositories are followed only with --git-allow-file")
            return
        if parts.scheme not in ("https", "ssh"):
            raise BadRemote(f"--git {shown}: only https and ssh are followed, as in https://HOST/REPOSITORY.git")
        if not host or host.startswith("-") or (parts.username or "").startswith("-"):
            raise BadRemote(f"--git {shown} names no host")
        if parts.password is not None or parts.query or parts.fragment or (parts.scheme == "https" and parts.username):
            raise BadRemote(
                f"--git {shown} holds credentials, which others see in the list of processes; take them out and name "
                "the secret with --git-secret (its user with --git-user), and change them: they were seen"
            )

    @property
    def scheme(self) -> str:
        """`https`, `ssh`, `file`, or `scp` for the form `HOST:PATH`, which is ssh as well."""
        if "://" not in self.url and _SCP.match(self.url):
            return "scp"
        return urlsplit(self.url).scheme

    @property
    def shown(self) -> str:
        """The URL as people may see it."""
        return redact(self.url)

    @property
    def host(self) -> str:
        """The host, with its port if it has one, as git names it in a question."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def environment_for(remote: Remote, directory: Path, secret_of: SecretOf) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment for git, and the values that no message may hold. Raises GitFailed.

    `directory` is ours alone; the files that git needs are written there.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HOME": str(directory),
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "https:ssh:file" if remote.allow_file else "https:ssh",
        "GIT_ASKPASS": "/bin/false",
        "SSH_ASKPASS": "/bin/false",
        "SSH_ASKPASS_REQUIRE": "never",
    }
    if remote.authorities is not None:
        environment["GIT_SSL_CAINFO"] = str(remote.authorities)
    value: str | None = None
    if remote.secret is not None:
        value = secret_of(remote.secret)
        if value is None:
            raise GitFailed(
                f"the secret {remote.secret} of {remote.shown} is not there; set LLMGW_SECRET_{remote.secret}, "
                "or put it into the secrets directory"
            )
    match remote.scheme:
        case "https":
            if value is not None:
                script = directory / "askpass"
                _write(script, ASKPASS, 0o700)
                environment |= {
                    "GIT_ASKPASS": str(script),
                    "LLMGW_GIT_HOST": remote.host,
                    "LLMGW_GIT_USER": remote.user,
                    "LLMGW_GIT_PASSWORD": value,
                }
        case "ssh" | "scp":
            environment["GIT_SSH_COMMAND"] = _ssh(remote, directory, value)
            environment["GIT_SSH_VARIANT"] = "ssh"
        case _:
            pass
    return environment, (value,) if value else ()


def _ssh(remote: Remote, directory: Path, key: str | None) -> str:
    hosts = remote.known_hosts or directory / "known_hosts"
    options = [
        "BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3",
        "StrictHostKeyChecking=yes", f"UserKnownHostsFile={hosts}", "GlobalKnownHostsFile=/dev/null",
        "ForwardAgent=no", "ClearAllForwardings=yes", "PermitLocalCommand=no",
    ]  # fmt: skip
    if key is not None:
        file = directory / "identity"
        _write(file, key.rstrip("\n") + "\n", 0o600)
        options += [f"IdentityFile={file}", "IdentitiesOnly=yes", "IdentityAgent=none"]
    return shlex.join(["ssh", "-F", "none", *(word for option in options for word in ("-o", option))])


def _write(file: Path, text: str, mode: int) -> None:
    """Have a file with this text, readable by this user alone. Raises GitFailed."""
    try:
        if file.is_file() and file.read_text() == text and file.stat().st_mode & 0o777 == mode:
            return
        fresh = file.with_name(f"{file.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as output:
            output.write(text)
        fresh.replace(file)
    except OSError as error:
        raise GitFailed(f"cannot write {file}: {error.strerror}") from error


def explained(error: GitFailed, remote: Remote, directory: Path) -> str:
    """Return why a remote could not be reached, and what to do."""
    said = error.said
    where = f"cannot fetch {remote.shown}"
    if "Host key verification failed" in said or "No ED25519 host key is known" in said:
        hosts = remote.known_hosts or directory / "known_hosts"
        return (
            f"{where}: the host's key is not known, or another one than is known; put the line of `ssh-keyscan HOST` into "
            f"{hosts} once you have compared it with what the host's console shows"
        )
    if "Permission denied (" in said or "Authentication failed" in said or "could not read" in said:
        named = f"the secret {remote.secret} is not accepted" if remote.secret else "it asks for credentials"
        return f"{where}: {named}; name the right secret with --git-secret"
    if error.code is None:
        return f"{where}: {error}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{where}: {'; '.join(lines)[:300] or 'git said nothing'}"
