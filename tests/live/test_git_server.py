"""A real server over a mirror: every state of the source as people see it, and no credential in anything that they see."""

import asyncio
import base64
import json
import shutil
import sqlite3
import subprocess
import urllib.request

import pytest

from llmgw.app.logs import FieldFormatter
from llmgw.base.redact import redact
from tests.fakes.forge import TOKEN, StubForge
from tests.live.git_https import git_host
from tests.live.lab import Lab, fake_yaml, free_port
from tests.live.sshd import Sshd

REFUSED = "nonsense: true\n"


class Remote:
    """The lab's cluster directory, pushed to a bare repository that the server mirrors."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.bare = lab.root / "remote.git"
        lab.git("init", "-q", "--bare", "-b", "main", str(self.bare))
        lab.git(f"--git-dir={self.bare}", "config", "receive.denyDeleteCurrent", "ignore")
        self.url = f"file://{self.bare}"
        self.port = free_port()

    def push(self, message: str = "change", *options: str) -> str:
        head = self.lab.commit(message)
        self.lab.git("push", "-q", *options, str(self.bare), "HEAD:main")
        return head

    def serve(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.lab.start_server(
            "--git", self.url, "--git-allow-file", "--admin-listen", f"127.0.0.1:{self.port}", *arguments
        )

    def source(self) -> dict[str, object]:
        return dict(self.lab.status()["source"])

    def wake(self) -> int:
        """Send what GitLab sends."""
        headers = {"content-type": "application/json", "X-Gitlab-Token": "t0ken", "X-Gitlab-Event-UUID": self._once()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/hooks/gitlab", b"{}", headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)

    def _once(self) -> str:
        self._count = getattr(self, "_count", 0) + 1
        return f"delivery-{self._count}"

    def until_state(self, state: str) -> dict[str, object]:
        self.wake()
        self.lab.until(lambda: self.source()["state"] == state, f"the state {state}")
        return self.source()


@pytest.fixture
def remote(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Remote:
    lab.environment["LLMGW_SECRET_HOOK"] = "t0ken"
    return Remote(lab)


def test_each_state_of_the_source_is_told_apart_and_none_takes_anything_away(remote: Remote) -> None:
    lab = remote.lab
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + "source: {rewrite: hold}\n")
    base = remote.push("base")
    lab.write("README.md", "more\n")
    good = remote.push("good")
    lab.start_agent()
    remote.serve("--hook-secret", "HOOK")
    lab.until(lambda: lab.ready("m"), "the model")
    engine = lab.pids()
    assert remote.source()["state"] == "valid"

    lab.write("models/n.yaml", REFUSED)
    remote.push("bad")
    shown = remote.until_state("invalid")
    assert shown["in_force"] == good

    lab.git("reset", "-q", "--hard", base)
    rewritten = remote.push("rewritten", "--force")
    shown = remote.until_state("history rewritten")
    assert (shown["in_force"], shown["fetched"]) == (good, rewritten)
    text = lab.llmgw("status", "--server", str(lab.admin)).stdout
    assert f"! source: history rewritten: the branch's history was rewritten: {rewritten[:10]}" in text
    assert f"{good[:10]} stays in force" in text

    lab.git("push", "-q", "--delete", str(remote.bare), "main")
    assert remote.until_state("empty repository")["in_force"] == good
    lab.git("push", "-q", str(remote.bare), "HEAD:other")
    assert remote.until_state("branch missing")["in_force"] == good
    remote.bare.rename(lab.root / "away")
    assert remote.until_state("unreachable")["in_force"] == good
    assert lab.pids() == engine

    server = next(one for one in lab.processes if "server" in one.args)
    server.terminate()
    assert server.wait(20) == 0
    remote.serve("--hook-secret", "HOOK")
    lab.until(lambda: lab.ready("m"), "the last good revision without its repository")
    assert remote.source()["state"] == "unreachable"
    assert lab.pids() == engine

    (lab.root / "away").rename(remote.bare)
    lab.git("push", "-q", str(remote.bare), "HEAD:main")
    remote.until_state("history rewritten")
    assert lab.llmgw("accept", base, "--server", str(lab.admin)).returncode == 1
    assert lab.llmgw("accept", rewritten[:10], "--server", str(lab.admin)).returncode == 0
    shown = remote.until_state("valid")
    assert (shown["in_force"], shown["verified_by"]) == (rewritten, "an operator (llmgw accept)")
    assert lab.pids() == engine


def test_a_branch_that_contains_the_good_revision_again_ends_the_hold(remote: Remote) -> None:
    lab = remote.lab
    lab.write("cluster.yaml", (lab.cluster / "cluster.yaml").read_text() + "source: {rewrite: hold}\n")
    base = remote.push("base")
    lab.write("README.md", "more\n")
    good = remote.push("good")
    remote.serve("--hook-secret", "HOOK")
    lab.git("reset", "-q", "--hard", base)
    remote.push("rewritten", "--force")
    remote.until_state("history rewritten")
    lab.git("reset", "-q", "--hard", good)
    after = remote.push("after", "--force")
    assert remote.until_state("valid")["in_force"] == after


def test_a_first_start_without_anything_says_what_to_do(remote: Remote) -> None:
    for url, words in (
        (remote.url, "has no commit yet; push"),
        ("file:///nowhere.git", "cannot fetch file:///nowhere.git"),
    ):
        done = remote.lab.llmgw("server", "--git", url, "--git-allow-file", "--listen", "127.0.0.1:0")
        assert done.returncode == 1
        assert words in done.stderr.splitlines()[-1]


# credentials

PASSWORD = "p@ss/w%rd+1"
CODED = "p%40ss%2Fw%25rd%2B1"


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{CODED}@h.example/x",
        f"https://{CODED}@h.example/x",
        "https://h.example/x?token=p%40ss&a=b",
        f"HTTPS://user:{CODED.lower()}@h.example/x?private_token=p%40ss",
        "https%3A%2F%2Fuser%3Ap%40ss%40h.example",
        f"fatal: unable to access 'https://u:{CODED}@h.example/x/?token=p%40ss': no",
        "ssh://git:p%40ss@h.example/x",
        "postgresql://llmgw:p%40ss@db/llmgw",
    ],
)
def test_a_url_is_shown_without_user_and_query(text: str) -> None:
    shown = redact(text)
    assert "%40ss" not in shown
    assert "token=" not in shown
    assert redact(shown) == shown


@pytest.mark.parametrize("form", [PASSWORD, CODED, CODED.lower(), "p%40ss/w%25rd%2B1", "p@ss/w%25rd%2B1"])
def test_a_known_secret_is_taken_out_however_it_is_written(form: str) -> None:
    assert redact(f"remote said: {form}!", [PASSWORD]) == "remote said: …!"


@pytest.mark.parametrize(
    "text", ["ssh://git@h.example/x", "git@h.example:team/x", "http://127.0.0.1:8080/v1", "a?b", "ops@example.org"]
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


def test_every_log_line_is_redacted_tracebacks_included() -> None:
    import logging

    record = logging.makeLogRecord({"msg": "at %s", "args": ("https://u:hush@h/x",), "url": "https://h/x?token=hush"})
    try:
        int("https://u:hush@h/y")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    line = FieldFormatter("x").format(record)
    assert "ValueError" in line
    assert "hush" not in line


def _seen_by_people(lab: Lab) -> dict[str, str]:
    """Everything that a person may read: logs, status, metrics, events, the mirror's configuration, arguments."""
    seen = {path.name: path.read_text(errors="replace") for path in lab.root.glob("*.log")}
    with sqlite3.connect(f"file:{lab.root / 's/store.sqlite'}?mode=ro", uri=True) as store:
        seen["events"] = json.dumps(store.execute("select kind, subject, text, cause from events").fetchall())
    store.close()
    if lab.answers():
        seen["status.json"] = json.dumps(lab.status())
        seen["status"] = lab.llmgw("status", "--server", str(lab.admin)).stdout
    seen["mirror"] = "".join(
        path.read_text(errors="replace")
        for path in (lab.root / "s/git").rglob("*")
        if path.is_file() and path.stat().st_size < 1e6
    )
    seen["arguments"] = "".join(lab.left_over().values())
    return seen


def test_a_token_opens_the_repository_and_is_in_no_output_even_if_the_host_repeats_it(remote: Remote) -> None:
    lab, token = remote.lab, "t0p+s3cret/tok"
    lab.environment["LLMGW_SECRET_DEPLOY"] = token
    first = remote.push("first")
    lab.git(f"--git-dir={remote.bare}", "update-server-info")
    (lab.root / "www").mkdir()
    shutil.copytree(remote.bare, lab.root / "www/x.git")
    with git_host(lab.root / "www", "robot", token) as host:
        lab.start_server(
            *("--git", f"https://127.0.0.1:{host.port}/x.git", "--git-secret", "DEPLOY", "--git-user", "robot"),
            *("--git-ca", str(host.authorities), "--hook-secret", "HOOK", "--log-level", "debug"),
            *("--admin-listen", f"127.0.0.1:{remote.port}"),
        )
        assert remote.source()["in_force"] == first
        host.echo = True
        assert "403" in str(remote.until_state("unreachable")["failed"])
        seen = _seen_by_people(lab)
    for name, text in seen.items():
        for form in (
            token,
            "t0p%2Bs3cret",
            "t0p%2bs3cret",
            "t0p+s3cret%2Ftok",
            base64.b64encode(f"robot:{token}".encode()).decode(),
        ):
            assert form not in text, name


@pytest.mark.parametrize(
    "url", [f"https://u:{CODED}@h.example/x", f"https://{CODED}@h.example/x", "https://h.example/x?token=p%40ss"]
)
def test_a_url_with_credentials_is_refused_without_repeating_them(lab: Lab, url: str) -> None:
    done = lab.llmgw("server", "--git", url)
    assert done.returncode == 64
    assert "--git-secret" in done.stderr
    assert "%40ss" not in done.stdout + done.stderr


@pytest.mark.parametrize("url", [
    "--upload-pack=touch /tmp/ran", "ext::sh -c id", "http://h/x", "file:///x", "ssh://-oProxyCommand=id/x",
    "-oProxyCommand=id:x", "/tmp/x", "https://h:x/y", "",
])  # fmt: skip
def test_a_remote_that_git_must_not_get_is_refused(lab: Lab, url: str) -> None:
    done = lab.llmgw("server", "--git", url)
    assert done.returncode == 64, done
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [
    ("--branch", "-x"), ("--branch", "a..b"), ("--branch", ""), ("--branch", "a:b"), ("--path", "../x"), ("--path", "/x"),
])  # fmt: skip
def test_a_branch_or_path_that_git_must_not_get_is_refused(lab: Lab, options: tuple[str, str]) -> None:
    done = lab.llmgw("server", "--git", "https://h/x", *options)
    assert done.returncode == 64, done
    assert options[0] in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_a_real_server_tells_a_forge_and_waits_for_none(remote: Remote) -> None:
    lab, stub = remote.lab, StubForge()
    url = await stub.start()
    lab.environment["LLMGW_SECRET_FORGE"] = TOKEN
    lab.write("models/m.yaml", fake_yaml("m"))
    first = remote.push("first")
    stub.answers = [(503, {}, "not now"), None]
    options = ("--forge", "gitea", "--forge-api", url, "--forge-repository", "team/cluster", "--forge-secret", "FORGE")

    def serve() -> None:
        lab.start_agent()
        remote.serve("--hook-secret", "HOOK", *options)
        lab.until(lambda: lab.ready("m"), "the model, while the forge is silent")
        lab.until(lambda: "503" in str(remote.source()["notices"]), "the failure to be shown")

    await asyncio.to_thread(serve)
    assert stub.shown == {}
    await stub.stop()
    stub.answers = []
    # at the same address, and well
    await stub.start(int(url.rpartition(":")[2]))
    key = (first, "llmgw/lab/apply")
    await asyncio.to_thread(lab.until, lambda: len(stub.shown.get(key, ())) > 0, "the first status")
    lab.write("models/m.yaml", "nonsense: true\n")
    second = remote.push("second")
    remote_wake = await asyncio.to_thread(remote.wake)
    assert remote_wake == 202
    await asyncio.to_thread(lab.until, lambda: (second, "llmgw/lab/apply") in stub.shown, "the second commit's status")
    assert stub.shown[key][-1][0] == "success"
    assert [mark for mark, _ in stub.shown[second, "llmgw/lab/apply"]] == ["failure"]
    await stub.stop()


def test_over_ssh_only_known_hosts_count_and_the_key_is_a_secret(remote: Remote) -> None:
    lab = remote.lab
    first = remote.push("first")
    sshd = Sshd(lab)
    lab.environment["LLMGW_SECRET_DEPLOY_KEY"] = sshd.identity.read_text()
    remote.url = f"ssh://{sshd.user}@127.0.0.1:{sshd.port}{remote.bare}"
    done = lab.llmgw("server", "--git", remote.url, "--git-secret", "DEPLOY_KEY", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    hosts = lab.root / "s/git/known_hosts"
    assert f"into {hosts} once you have compared it" in done.stderr
    hosts.write_text(f"[127.0.0.1]:{sshd.port} {sshd.public(sshd.host_key)}\n")
    remote.serve("--git-secret", "DEPLOY_KEY", "--hook-secret", "HOOK")
    assert remote.source()["in_force"] == first
    assert (lab.root / "s/git/identity").stat().st_mode & 0o777 == 0o600
    second = remote.push("second")
    remote.wake()
    lab.until(lambda: remote.source()["in_force"] == second, "the second push")
    sshd.authorized.write_text("")
    assert "the secret DEPLOY_KEY is not accepted" in str(remote.until_state("unreachable")["failed"])
    secret = sshd.identity.read_text().splitlines()[2]
    seen = _seen_by_people(lab)
    seen["mirror"] = ""  # where the key itself is, for ssh to read
    assert not [name for name, text in seen.items() if secret in text]
