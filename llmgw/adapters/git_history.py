"""Whether a commit may follow the one in force: does it contain it, and who signed it. By the rules in force, not its own.

Git's own verdict is not enough. `git verify-commit` is content with any key of the keyring, so GPG keys count by their full
fingerprint only. SSH signatures are checked at the committer's date, which the signer chooses: a retired key would go on
signing into the past. So a signer whose `valid-before` has passed is left out altogether, and a commit dated before its
parents or ahead of our clock is refused. What the user's git configuration trusts does not matter.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llmgw.adapters.git_command import Git, GitFailed
from llmgw.base.ids import Revision, short
from llmgw.base.printable import printable
from llmgw.catalog.source import SourceFailed, Trouble
from llmgw.ports.trees import Passed
from llmgw.spec.cluster import SourceRules, Verify

SKEW = 600.0
"""Seconds by which clocks of people who commit may differ."""
MOST = 1000
"""Commits whose signatures are checked at once."""
LIMIT = 120.0
"""Seconds for that; each is a process of its own."""
_COMMIT = re.compile(r"^([0-9a-f]{40}|[0-9a-f]{64})$")
_BEFORE = re.compile(r'(?i)(?:^|[\s,])valid-before="?([0-9]*)(z?)"?')
_FIELDS = ("%H", "%G?", "%GS", "%GF", "%GP", "%ct", "%P")


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit's id, and not that of a work tree."""
    return _COMMIT.match(revision) is not None


async def vet(
    git: Git, revision: Revision, since: Revision | None, rules: SourceRules, now: float
) -> Passed | SourceFailed:
    """Say whether a commit may follow `since`."""
    base = since if since is not None and is_commit(since) else None
    try:
        contained = base is None or base == revision or await _contains(git, revision, base)
        if not contained and rules.rewrite == "hold":
            return SourceFailed(
                f"the branch's history was rewritten: {short(revision)} does not contain {short(base or revision)}, "
                f"which stays in force; push a branch that contains it, or take this one: "
                f"`llmgw accept {short(revision)}`",
                Trouble.REWRITTEN,
            )
        if rules.verify.mode == "off":
            return Passed(rewritten=not contained)
        if rules.verify.mode == "range" and base is not None and not await _has(git, base):
            return SourceFailed(
                f"{short(base)}, which is in force, is not in the repository any more, so which commits came after it "
                f"cannot be told, nor who signed them; take {short(revision)} by hand: `llmgw accept {short(revision)}`",
                Trouble.UNVERIFIED,
            )
        return await _verify(git, revision, base, rules.verify, now, rewritten=not contained)
    except GitFailed as error:
        return SourceFailed(str(error))


async def _contains(git: Git, revision: str, base: str) -> bool:
    """Whether a commit has another one among its ancestors; in a shallow repository, which cannot tell, it is assumed."""
    try:
        await git.run("merge-base", "--is-ancestor", base, revision)
    except GitFailed as error:
        if error.code not in (1, 128):
            raise
        return (await git.run("rev-parse", "--is-shallow-repository")).strip() == b"true"
    return True


async def _has(git: Git, commit: str) -> bool:
    try:
        await git.run("cat-file", "-e", f"{commit}^{{commit}}")
    except GitFailed as error:
        if error.code not in (1, 128):
            raise
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Commit:
    """What git says of a commit's signature."""

    id: str
    verdict: str
    signer: str
    fingerprint: str
    primary: str
    dated: float
    parents: tuple[str, ...]


class _Refused(Exception):
    """A commit is not trusted; the message says why."""


async def _verify(
    git: Git, revision: Revision, base: Revision | None, verify: Verify, now: float, *, rewritten: bool
) -> Passed | SourceFailed:
    wanted = ["--no-walk", revision]
    if verify.mode == "range" and base is not None and base != revision:
        wanted = [f"{base}..{revision}"]
    commits = await _signatures(git, wanted, verify, now)
    dates = await _dates(git, commits)
    by: dict[str, None] = {}
    try:
        _check_count(commits)
        for commit in commits:
            by[_signer(commit, verify)] = None
            _check_date(commit, dates, now)
    except _Refused as error:
        return SourceFailed(
            f"{error}; have the change signed anew, or take it once by hand: `llmgw accept {short(revision)}`",
            Trouble.UNVERIFIED,
        )
    return Passed(", ".join(by), rewritten)


async def _signatures(git: Git, wanted: list[str], verify: Verify, now: float) -> list[_Commit]:
    with tempfile.TemporaryDirectory(prefix="llmgw-signers-") as directory:
        signers = Path(directory, "signers")
        signers.write_text("".join(f"{line}\n" for line in verify.ssh_signers if not _expired(line, now)))
        config = [
            f"gpg.ssh.allowedSignersFile={signers}",
            "gpg.ssh.revocationFile=",
            f"gpg.ssh.program={'ssh-keygen' if verify.ssh_signers else 'false'}",
            f"gpg.program={'gpg' if verify.gpg_fingerprints else 'false'}",
            "gpg.x509.program=false",
            "gpg.minTrustLevel=undefined",
        ]
        form = f"--format={'%x00'.join(_FIELDS)}"
        arguments = ("log", "-z", "--no-show-signature", f"--max-count={MOST + 1}", form, *wanted, "--")
        output = await git.run(*arguments, limit=LIMIT, config=config)
    words = output.decode("utf-8", "replace").split("\0")
    rows = [words[at : at + len(_FIELDS)] for at in range(0, len(words) - 1, len(_FIELDS))]
    return [
        _Commit(row[0], row[1], printable(row[2]), row[3], row[4], float(row[5] or 0), tuple(row[6].split()))
        for row in rows
    ]


def _expired(line: str, now: float) -> bool:
    """Whether a line of allowed signers is past its end, or has one that cannot be read."""
    for text, utc in _BEFORE.findall(line):
        form = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(text))
        if form is None:
            return True
        try:
            end = datetime.strptime(text, form).replace(tzinfo=UTC if utc else None).astimezone(UTC)
        except (ValueError, OverflowError):
            return True
        if end.timestamp() <= now:
            return True
    return False


async def _dates(git: Git, commits: list[_Commit]) -> Mapping[str, float]:
    """Return the dates of the commits and of their parents."""
    dates = {commit.id: commit.dated for commit in commits}
    missing = sorted({parent for commit in commits for parent in commit.parents} - set(dates))
    if missing:
        output = await git.run("log", "-z", "--no-walk", "--no-show-signature", "--format=%H%x00%ct", *missing, "--")
        words = output.decode().split("\0")
        dates |= {words[at]: float(words[at + 1]) for at in range(0, len(words) - 1, 2)}
    return dates


def _signer(commit: _Commit, verify: Verify) -> str:
    """Return who signed a commit. Raises _Refused unless it is somebody who may."""
    name = short(Revision(commit.id))
    ssh = commit.fingerprint.startswith("SHA256:")
    match commit.verdict:
        case "G" if ssh and verify.ssh_signers:
            return f"{commit.signer} ({commit.fingerprint})"
        case "G" | "U" if not ssh:
            allowed = {"".join(one.split()).upper() for one in verify.gpg_fingerprints}
            keys = {key.upper() for key in (commit.fingerprint, commit.primary) if key}
            if keys & allowed:
                return f"{commit.signer} ({commit.primary or commit.fingerprint})"
            raise _Refused(f"commit {name} is signed by the GPG key {commit.fingerprint}, which is not listed")
        case "G" | "U":
            raise _Refused(
                f"commit {name} is signed by the SSH key {commit.fingerprint}, which is not listed or not valid any more"
            )
        case "N":
            raise _Refused(f"commit {name} is not signed")
        case "X" | "Y":
            raise _Refused(f"commit {name} is signed by {commit.fingerprint or 'a key'}, which has expired")
        case "R":
            raise _Refused(f"commit {name} is signed by {commit.fingerprint or 'a key'}, which was revoked")
        case "E":
            raise _Refused(f"the signature of commit {name} cannot be checked: its key is not known here")
        case _:
            raise _Refused(f"the signature of commit {name} is bad")


def _check_count(commits: list[_Commit]) -> None:
    if len(commits) > MOST:
        raise _Refused(f"more than {MOST} new commits are to be checked")


def _check_date(commit: _Commit, dates: Mapping[str, float], now: float) -> None:
    name = short(Revision(commit.id))
    if commit.dated > now + SKEW:
        raise _Refused(f"commit {name} is dated {commit.dated - now:.0f} s ahead of this machine's clock")
    newest = max((dates[parent] for parent in commit.parents if parent in dates), default=commit.dated)
    if commit.dated < newest - SKEW:
        raise _Refused(f"commit {name} is dated {newest - commit.dated:.0f} s before its parent")
