"""What the command line says of the repository that is followed, and `llmgw accept`."""

from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.adapters.git_remote import BadRemote, Remote
from llmgw.cli.client import ask
from llmgw.cli.outcomes import WrongUsage

if TYPE_CHECKING:
    from llmgw.adapters.forge_status import ForgeSettings


def remote_of(
    url: str | None,
    branch: str,
    path: str,
    secret: str | None,
    user: str,
    known_hosts: Path | None,
    authorities: Path | None,
    *,
    allow_file: bool,
) -> Remote | None:
    """Return the repository to mirror, if one is named. Raises WrongUsage."""
    if url is None:
        return None
    hosts = known_hosts.absolute() if known_hosts is not None else None
    certificates = authorities.absolute() if authorities is not None else None
    remote = Remote(url, branch, path, secret, user, hosts, certificates, allow_file)
    try:
        remote.check()
    except BadRemote as error:
        raise WrongUsage(str(error)) from error
    return remote


def forge_of(kind: str | None, api: str, repository: str, secret: str) -> "ForgeSettings | None":
    """Return where commit statuses are shown, if a forge is named. Raises WrongUsage."""
    if kind is None:
        return None
    from llmgw.adapters.forge_status import ForgeSettings

    settings = ForgeSettings(kind, api, repository, secret)
    try:
        settings.check()
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    return settings


def accept_revision(revision: str, server: str) -> None:
    """Let the server take a revision that it holds."""
    ask(server, "POST", "/v1/source/accept", {"revision": revision})
    print(f"revision {revision} is taken at the next look, within a second")
