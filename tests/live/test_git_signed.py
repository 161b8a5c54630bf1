"""Signed commits, by the real ssh-keygen and the real gpg: who may sign, and the ways around it that git leaves open."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmgw.adapters.git_source import GitSource
from llmgw.base.ids import Revision
from llmgw.catalog.source import SourceFailed, Trouble
from llmgw.ports.trees import Passed
from llmgw.runtime.clock import SystemClock
from llmgw.spec.cluster import SourceRules
from tests.live.conftest import program
from tests.live.test_git_source import Repository

NOW = SystemClock()


class SshKeys:
    """Keys by name."""

    def __init__(self, root: Path) -> None:
        program("ssh-keygen")
        self._root = root

    def file(self, name: str) -> Path:
        path = self._root / f"key-{name}"
        if not path.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
        return path

    def line(self, name: str, options: str = "") -> str:
        kind, key, _ = self.file(name).with_suffix(".pub").read_text().split()
        return " ".join(filter(None, (f"{name}@example.org", options, kind, key)))


class Signed(Repository):
    """A repository whose commits are signed."""

    def sign(self, text: str, key: Path | str | None, *, at: float | None = None, form: str = "ssh") -> Revision:
        (self.root / "a.yaml").write_text(f"a: {text}\n")
        self.git("add", "-A")
        signing = ["-c", f"gpg.format={form}", "-c", f"user.signingkey={key}"] if key else []
        date = {"GIT_COMMITTER_DATE": f"@{at:.0f} +0000"} if at is not None else {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | date
        subprocess.run(
            ["git", "-C", str(self.root), "-c", "user.name=t", "-c", "user.email=t@localhost", *signing,
             "commit", "-q", "-m", text, *(["-S"] if key else [])],
            env=environment, check=True, capture_output=True,
        )  # fmt: skip
        return Revision(self.git("rev-parse", "HEAD"))

    def put(self, kind: str, text: str) -> str:
        command = ["git", "-C", str(self.root), "hash-object", "-t", kind, "-w", "--stdin"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.strip()

    async def vet(self, revision: Revision, since: Revision | None, **verify: object) -> Passed | SourceFailed:
        rules = SourceRules.model_validate({"verify": {"mode": "head", **verify}})
        return await GitSource(self.root, NOW).vet(revision, since, rules)


@pytest.fixture
def keys(tmp_path: Path) -> SshKeys:
    return SshKeys(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Signed:
    return Signed(tmp_path / "repository")


def _refused(verdict: Passed | SourceFailed, why: str) -> None:
    assert isinstance(verdict, SourceFailed), verdict
    assert verdict.trouble is Trouble.UNVERIFIED
    assert why in verdict.reason, verdict.reason
    assert "llmgw accept" in verdict.reason


async def test_a_listed_ssh_key_is_named_and_another_one_refused(repository: Signed, keys: SshKeys) -> None:
    signers = [keys.line("alice")]
    good = repository.sign("1", keys.file("alice"))
    verdict = await repository.vet(good, None, ssh_signers=signers)
    assert isinstance(verdict, Passed)
    assert verdict.verified_by.startswith("alice@example.org (SHA256:")
    _refused(await repository.vet(repository.sign("2", keys.file("mallory")), good, ssh_signers=signers), "not listed")
    _refused(await repository.vet(repository.sign("3", None), good, ssh_signers=signers), "is not signed")


async def test_what_the_user_trusts_does_not_count(
    repository: Signed, keys: SshKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted"
    trusted.write_text(keys.line("mallory") + "\n")
    repository.git("config", "gpg.ssh.allowedSignersFile", str(trusted))
    repository.git("config", "gpg.ssh.program", "true")
    _refused(await repository.vet(repository.sign("1", None), None, ssh_signers=[keys.line("alice")]), "is not signed")
    repository.git("config", "gpg.ssh.program", "ssh-keygen")
    bad = repository.sign("2", keys.file("mallory"))
    _refused(await repository.vet(bad, None, ssh_signers=[keys.line("alice")]), "not listed")


async def test_a_changed_commit_and_a_signature_for_something_else_are_bad(repository: Signed, keys: SshKeys) -> None:
    good = repository.sign("1", keys.file("alice"))
    text = repository.git("cat-file", "commit", good).replace("\n\n1", "\n\n2")
    forged = repository.put("commit", text + "\n")
    _refused(await repository.vet(Revision(forged), None, ssh_signers=[keys.line("alice")]), "bad")
    other = [keys.line("alice", 'namespaces="file"')]
    verdict = await repository.vet(good, None, ssh_signers=other)
    assert isinstance(verdict, SourceFailed)


async def test_a_retired_key_does_not_sign_into_the_past(repository: Signed, keys: SshKeys) -> None:
    now = NOW.now()
    ended = datetime.fromtimestamp(now - 86400, UTC).strftime("%Y%m%d%H%M%SZ")
    signers = [keys.line("alice"), keys.line("bob", f'valid-before="{ended}"')]
    first = repository.sign("1", keys.file("alice"), at=now - 10 * 86400)
    back_dated = repository.sign("2", keys.file("bob"), at=now - 2 * 86400)
    _refused(await repository.vet(back_dated, first, ssh_signers=signers), "not listed or not valid any more")
    still = datetime.fromtimestamp(now + 86400, UTC).strftime("%Y%m%d%H%M%SZ")
    signers[1] = keys.line("bob", f'valid-before="{still}"')
    assert isinstance(await repository.vet(back_dated, first, ssh_signers=signers), Passed)
    signers[1] = keys.line("bob", 'valid-before="20261"')
    _refused(await repository.vet(back_dated, first, ssh_signers=signers), "not listed or not valid any more")


async def test_dates_before_the_parent_or_ahead_of_the_clock_are_refused(repository: Signed, keys: SshKeys) -> None:
    now, signers = NOW.now(), [keys.line("alice")]
    first = repository.sign("1", keys.file("alice"), at=now - 60)
    before = repository.sign("2", keys.file("alice"), at=now - 86400)
    _refused(await repository.vet(before, first, ssh_signers=signers), "before its parent")
    ahead = repository.sign("3", keys.file("alice"), at=now + 86400)
    _refused(await repository.vet(ahead, first, ssh_signers=signers), "ahead of this machine's clock")


async def test_head_looks_at_the_newest_and_range_at_every_new_commit(repository: Signed, keys: SshKeys) -> None:
    signers = [keys.line("alice"), keys.line("bob")]
    first = repository.sign("1", None)
    repository.sign("2", keys.file("bob"))
    third = repository.sign("3", keys.file("alice"))
    verdict = await repository.vet(third, first, mode="range", ssh_signers=signers)
    assert isinstance(verdict, Passed)
    assert {"alice@example.org", "bob@example.org"} <= set(verdict.verified_by.replace("(", " ").split())
    repository.sign("4", None)
    fifth = repository.sign("5", keys.file("alice"))
    assert isinstance(await repository.vet(fifth, third, mode="head", ssh_signers=signers), Passed)
    _refused(await repository.vet(fifth, third, mode="range", ssh_signers=signers), "is not signed")
    assert isinstance(await repository.vet(fifth, None, mode="range", ssh_signers=signers), Passed), "the very first"
    gone = Revision("1" * 40)
    assert isinstance(await repository.vet(fifth, gone, mode="range", ssh_signers=signers), SourceFailed)


async def test_a_merged_branch_is_in_the_range(repository: Signed, keys: SshKeys) -> None:
    signers = [keys.line("alice")]
    first = repository.sign("1", keys.file("alice"))
    repository.git("checkout", "-q", "-b", "side")
    (repository.root / "b.yaml").write_text("b: 1\n")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "unsigned")
    repository.git("checkout", "-q", "main")
    key = keys.file("alice")
    repository.git(
        "-c", "gpg.format=ssh", "-c", f"user.signingkey={key}", "merge", "-q", "--no-ff", "-S", "-m", "m", "side"
    )
    merge = Revision(repository.git("rev-parse", "HEAD"))
    _refused(await repository.vet(merge, first, mode="range", ssh_signers=signers), "is not signed")


class Gpg:
    """A keyring of its own."""

    def __init__(self) -> None:
        program("gpg")
        self.home = Path(tempfile.mkdtemp(prefix="gpg-", dir="/tmp"))  # short: the path of its agent's socket
        self.home.chmod(0o700)

    def key(self, name: str, expires: str = "0", *extra: str) -> str:
        self._run(
            *extra,
            "--passphrase",
            "",
            "--quick-generate-key",
            f"{name} <{name}@example.org>",
            "ed25519",
            "sign",
            expires,
        )
        listing = self._run("--with-colons", "--list-keys", f"{name}@example.org")
        return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))

    def forget(self, fingerprint: str) -> None:
        self._run("--yes", "--delete-secret-and-public-key", fingerprint)

    def _run(self, *arguments: str) -> str:
        command = ["gpg", "--batch", "--quiet", *arguments]
        environment = {**os.environ, "GNUPGHOME": str(self.home)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, "GNUPGHOME": str(self.home)}, check=False)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def gpg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpg]:
    gpg = Gpg()
    monkeypatch.setenv("GNUPGHOME", str(gpg.home))
    yield gpg
    gpg.close()


async def test_a_gpg_key_counts_by_its_fingerprint_and_not_for_being_in_the_keyring(
    repository: Signed, gpg: Gpg
) -> None:
    alice, mallory = gpg.key("alice"), gpg.key("mallory")
    good = repository.sign("1", alice, form="openpgp")
    bad = repository.sign("2", mallory, form="openpgp")
    assert repository.git("verify-commit", bad) == "", "git itself is content"
    verdict = await repository.vet(good, None, gpg_fingerprints=[alice.lower()])
    assert isinstance(verdict, Passed)
    assert "alice@example.org" in verdict.verified_by
    assert alice in verdict.verified_by
    _refused(await repository.vet(bad, good, gpg_fingerprints=[alice]), "which is not listed")


async def test_an_expired_gpg_key_and_one_that_is_not_known_are_refused(repository: Signed, gpg: Gpg) -> None:
    old = gpg.key("old", "seconds=2", "--faked-system-time", "20200101T000000")
    alice = gpg.key("alice")
    wrapper = gpg.home / "gpg-then"
    wrapper.write_text('#!/bin/sh\nexec gpg --faked-system-time 20200101T000001 "$@"\n')
    wrapper.chmod(0o755)
    repository.git("config", "gpg.program", str(wrapper))
    expired = repository.sign("1", old, form="openpgp")
    _refused(await repository.vet(expired, None, gpg_fingerprints=[old]), "has expired")
    repository.git("config", "--unset", "gpg.program")
    good = repository.sign("2", alice, form="openpgp")
    gpg.forget(alice)
    _refused(await repository.vet(good, None, gpg_fingerprints=[alice]), "its key is not known here")


async def test_ssh_does_not_stand_in_for_gpg_nor_gpg_for_ssh(repository: Signed, keys: SshKeys, gpg: Gpg) -> None:
    alice = gpg.key("alice")
    by_ssh = repository.sign("1", keys.file("alice"))
    by_gpg = repository.sign("2", alice, form="openpgp")
    assert isinstance(await repository.vet(by_ssh, None, gpg_fingerprints=[alice]), SourceFailed)
    assert isinstance(await repository.vet(by_gpg, None, ssh_signers=[keys.line("alice")]), SourceFailed)
    both = {"ssh_signers": [keys.line("alice")], "gpg_fingerprints": [alice]}
    assert isinstance(await repository.vet(by_ssh, None, **both), Passed)
    assert isinstance(await repository.vet(by_gpg, None, **both), Passed)


async def test_a_base_that_was_collected_is_a_held_revision_and_not_a_failure_of_git(
    repository: Signed, keys: SshKeys
) -> None:
    signers = [keys.line("alice")]
    repository.sign("1", keys.file("alice"))
    base = repository.sign("2", keys.file("alice"))
    repository.git("reset", "-q", "--hard", "HEAD~1")
    newer = repository.sign("3", keys.file("alice"))
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "-q", "--prune=now")
    verdict = await repository.vet(newer, base, mode="range", ssh_signers=signers)
    _refused(verdict, "is not in the repository any more")
    held = SourceRules.model_validate({"rewrite": "hold", "verify": {"mode": "range", "ssh_signers": signers}})
    found = await GitSource(repository.root, NOW).vet(newer, base, held)
    assert isinstance(found, SourceFailed)
    assert found.trouble is Trouble.REWRITTEN
    assert isinstance(await repository.vet(newer, base, mode="head", ssh_signers=signers), Passed)
