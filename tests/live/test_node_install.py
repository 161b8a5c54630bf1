"""`llmgw node install` and `check` through a real sshd, into a home of its own, with a program that plays systemd.

The far side is this machine with another `HOME` and `PATH`. Wheels come from a wheelhouse that is filled once.
"""

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import llmgw
from llmgw.adapters.node_plan import Found, Wanted, unit_text
from llmgw.adapters.node_wheel import agent_wheel
from tests.live.conftest import program
from tests.live.lab import Lab, alive, fake_yaml, free_port

FAKE = Path(__file__).parents[1] / "fakes/systemd.py"
NEW = "0.9.9"


class Far:
    """The far side: an sshd, a home, a `PATH` of its own, and what plays systemd there."""

    def __init__(self, lab: Lab, wheelhouse: Path, built: Path) -> None:
        self.lab = lab
        self.wheelhouse = wheelhouse
        self.built = built
        self.root = lab.root / "far"
        self.home = self.root / "home"
        self.bin = self.root / "bin"
        self.systemd = self.root / "systemd"
        self.runtime = self.root / "run"
        for path in (self.home, self.bin, self.systemd, self.runtime):
            path.mkdir(parents=True, mode=0o700)
        self.prefix = self.home / ".local/share/llmgw"
        self.socket = self.runtime / "llmgw/agent.sock"
        for name in ("systemctl", "loginctl", "journalctl"):
            self.program(name, f'exec {sys.executable} {FAKE} {name} "$@"')
        (self.bin / "python3").symlink_to(getattr(sys, "_base_executable", sys.executable))
        self.port = free_port()
        self.host_key, self.key = self._key("host"), self._key("user")
        self.process = self._start()
        (lab.cluster / "nodes/local.yaml").unlink()
        self.pin(self.host_key)

    def _key(self, name: str) -> Path:
        path = self.root / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path

    def _start(self) -> subprocess.Popen[bytes]:
        config = self.root / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {self.key}.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nLogLevel VERBOSE\n"
            f"SetEnv HOME={self.home} PATH={self.bin}:/usr/bin:/bin XDG_RUNTIME_DIR={self.runtime} "
            f"FAKE_SYSTEMD={self.systemd}\n"
        )
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.lab.root / "sshd.log").open("ab") as log:
            process = subprocess.Popen([program("sshd"), "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        self.lab.processes.append(process)
        self.lab.until(lambda: "listening on" in self.lab.log("sshd.log"), "sshd to listen", process)
        return process

    def program(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def pin(self, host_key: Path) -> None:
        public = " ".join(Path(f"{host_key}.pub").read_text().split()[:2])
        self.lab.write(
            "nodes/far.yaml",
            "apiVersion: llmgw/v1\nkind: Node\nname: far\n"
            f"agent_socket: {self.socket}\nweights_dir: {self.lab.weights}\n"
            f"ssh: {{host: 127.0.0.1, port: {self.port}, user: {getpass.getuser()}, host_key: {public}, "
            f"identity_file: {self.key}}}\n",
        )

    def install(self, *flags: str, package: Path | None = None) -> subprocess.CompletedProcess[str]:
        process = self.installing(*flags, package=package)
        out, err = process.communicate(timeout=180)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def installing(self, *flags: str, package: Path | None = None) -> subprocess.Popen[str]:
        wheels = ("--offline", "--wheelhouse", str(self.wheelhouse))
        return self._llmgw("install", "far", "--user-unit", *wheels, *flags, package=package)

    def check(self) -> dict[str, dict[str, Any]]:
        process = self._llmgw("check", "far", "--user-unit", "--json")
        out, err = process.communicate(timeout=60)
        assert out, err
        shown = json.loads(out)
        assert process.returncode == (0 if shown["well"] else 1)
        return {one["check"]: one for one in shown["nodes"]["far"]}

    def _llmgw(self, *arguments: str, package: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "llmgw", "node", *arguments, "--dir", str(self.lab.cluster)],
            env={**self.lab.environment, **({"PYTHONPATH": str(package)} if package else {})},
            cwd=self.lab.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def calls(self) -> list[str]:
        """Return what was asked of systemd since the last look, but for questions."""
        path = self.systemd / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [one for one in lines if not any(word in one for word in ("is-", "show", "--version"))]

    def agent(self) -> int:
        return int((self.systemd / "main.pid").read_text())

    def current(self) -> str:
        return (self.prefix / "current").readlink().name

    def seed(self) -> str:
        """Be a node on which our release was installed before, and start its agent; return the release."""
        release = agent_wheel().release
        venv = self.prefix / "venvs" / release
        shutil.copytree(self.built, venv, symlinks=True)
        (venv / "whole").touch()
        done = self.install()
        assert done.returncode == 0, done.stderr
        assert "installing into" not in done.stdout
        self.calls()
        return release

    def newer(self, version: str, node: str = "") -> Path:
        """Return where a package of another version lies; `node` is put at the beginning of its program."""
        root = self.lab.root / f"v{version}"
        shutil.copytree(Path(llmgw.__file__).parent, root / "llmgw", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "llmgw/__init__.py").write_text(f'"""llmgw."""\n\n__version__ = "{version}"\n')
        if node:
            path = root / "llmgw/app/node.py"
            path.write_text(f"{node}\n{path.read_text()}")
        return root


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheelhouse")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", path, *agent_wheel().requirements],
        check=True,
    )
    return path


@pytest.fixture(scope="session")
def built(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with our release, to be copied: making one takes seconds."""
    path = tmp_path_factory.mktemp("built") / "venv"
    wheel = agent_wheel()
    (path.parent / wheel.filename).write_bytes(wheel.data)
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", path], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", path / "bin/python", "install", "-q"]  # noqa: RUF005 - two lines
        + ["--no-index", "--find-links", wheelhouse, path.parent / wheel.filename],
        check=True,
    )
    return path


@pytest.fixture
def far(lab: Lab, wheelhouse: Path, built: Path) -> Iterator[Far]:
    far = Far(lab, wheelhouse, built)
    try:
        yield far
    finally:
        pid = far.systemd / "main.pid"
        if pid.exists() and alive(int(pid.read_text())):
            psutil.Process(int(pid.read_text())).terminate()


def test_installs_once_and_an_upgrade_leaves_the_engines_alone(far: Far, lab: Lab) -> None:
    first = far.install()
    assert first.returncode == 0, first.stderr
    assert far.calls() == [
        f"loginctl enable-linger {getpass.getuser()}",
        "systemctl --user daemon-reload",
        "systemctl --user enable --quiet llmgw-agent.service",
        "systemctl --user daemon-reload",
        "systemctl --user restart llmgw-agent.service",
    ]
    assert f"answers on {far.socket}" in first.stdout
    assert (far.runtime / "llmgw").stat().st_mode & 0o777 == 0o700
    assert not (far.prefix / "incoming").exists()
    agent, release = far.agent(), far.current()

    again = far.install()
    assert (again.returncode, again.stdout) == (0, f"far: nothing to do: {release} is installed and runs\n")
    assert (far.calls(), far.agent()) == ([], agent)

    lab.write("models/slow.yaml", fake_yaml("slow"))
    lab.commit()
    lab.start_server()
    lab.until(lambda: lab.ready("slow"), "the model")
    assert {one["state"] for one in far.check().values()} == {"ok"}, far.check()
    engines = lab.pids()

    upgrade = far.install(package=far.newer(NEW))
    assert upgrade.returncode == 0, upgrade.stderr
    assert far.calls() == ["systemctl --user daemon-reload", "systemctl --user restart llmgw-agent.service"]
    assert far.agent() != agent
    assert not alive(agent)
    lab.until(lambda: lab.node().get("agent_version") == NEW and lab.ready("slow"), "the new agent's report")
    assert lab.pids() == engines, "an upgrade restarts the agent only"
    assert alive(next(iter(engines.values())))
    assert "ours is" in far.check()["agent"]["text"], "the older one is ours here"
    assert sorted(one.name for one in (far.prefix / "venvs").iterdir()) == sorted([release, far.current()])


def test_a_connection_that_breaks_in_the_middle_leaves_the_old_version_running(far: Far, lab: Lab) -> None:
    release = far.seed()
    agent = far.agent()
    package = far.newer(NEW)
    process = far.installing(package=package)
    assert process.stdout is not None
    while "installing into" not in process.stdout.readline():
        assert process.poll() is None
    venvs = far.prefix / "venvs"
    lab.until(lambda: len(list(venvs.iterdir())) == 2, "the new environment to be begun")
    for session in psutil.Process(far.process.pid).children():
        session.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "broke" in err
    assert "run this again" in err
    assert err.count("\n") == 1, err
    assert (far.current(), far.agent(), alive(agent)) == (release, agent, True)

    then = far.install(package=package)
    assert then.returncode == 0, then.stderr
    assert far.current().startswith(NEW)
    assert far.agent() != agent


def test_a_new_version_that_does_not_start_gives_way_to_the_old_one(far: Far, lab: Lab) -> None:
    release = far.seed()
    bad = far.install(package=far.newer(NEW, "raise SystemExit('the planted fault')"))
    assert bad.returncode == 1
    assert "the planted fault" in bad.stderr
    assert f"{release} was put back and runs" in bad.stderr
    assert bad.stderr.count("\n") == 1
    assert far.current() == release
    lab.until(far.socket.is_socket, "the old agent")
    assert far.check()["agent answers"]["state"] == "ok"


def test_what_cannot_be_is_refused_before_anything_is_touched(far: Far, lab: Lab) -> None:
    other = far._key("other")
    far.pin(other)
    wrong = far.install()
    assert wrong.returncode == 1
    assert "ssh-keyscan" in wrong.stderr
    assert "Accepted publickey" not in lab.log("sshd.log")
    assert (far.check()["host key"]["state"], far.check()["login"]["state"]) == ("missing", "not looked at")
    far.pin(far.host_key)

    (far.systemd / "offline").touch()
    by_hand = far.install()
    assert by_hand.returncode == 1
    assert f"runs no systemd for {getpass.getuser()}; install with --no-unit" in by_hand.stderr
    assert f"current/bin/python -m llmgw.app.node --socket {far.socket}" in by_hand.stderr
    (far.systemd / "offline").unlink()

    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        far.program(
            name, f'exec {sys.executable} -c "import sys; sys.modules[\'ensurepip\'] = None; exec(sys.argv[1])" "$2"'
        )
    bare = far.install()
    assert bare.returncode == 1
    assert "has no ensurepip" in bare.stderr
    assert "apt-get install python3 python3-venv" in bare.stderr
    assert far.check()["python"]["state"] == "missing"
    for text in (wrong.stderr, by_hand.stderr, bare.stderr):
        assert text.count("\n") == 1, text
    assert list(far.home.iterdir()) == [], "nothing was written"
    assert far.calls() == []


def test_a_target_that_cannot_be_written_and_a_wheelhouse_that_lacks_wheels_are_said(
    far: Far, lab: Lab, tmp_path: Path
) -> None:
    closed = far.install("--prefix", "/proc/llmgw")
    assert closed.returncode == 1
    assert "/proc/llmgw" in closed.stderr
    assert "--prefix" in closed.stderr

    for wheel in far.wheelhouse.glob("*.whl"):
        if not wheel.name.startswith("psutil"):
            shutil.copy(wheel, tmp_path)
    far.wheelhouse = tmp_path
    poor = far.install()
    assert poor.returncode == 1
    assert "psutil" in poor.stderr
    assert "pip download" in poor.stderr
    assert not (far.prefix / "current").exists()
    for text in (closed.stderr, poor.stderr):
        assert text.count("\n") == 1, text


def test_without_a_unit_the_printed_command_runs_the_agent(far: Far, lab: Lab) -> None:
    (far.systemd / "offline").touch()
    shutil.copytree(far.built, far.prefix / "venvs" / agent_wheel().release, symlinks=True)
    (far.prefix / "venvs" / agent_wheel().release / "whole").touch()
    process = far._llmgw("install", "far", "--no-unit", "--offline", "--wheelhouse", str(far.wheelhouse))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    command = out.rpartition("run it there: ")[2].split()
    assert far.calls() == []
    with (lab.root / "agent.log").open("ab") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, env={"HOME": str(far.home), "PATH": "/usr/bin:/bin"})
    lab.processes.append(agent)
    lab.until(far.socket.is_socket, "the agent to listen", agent)
    found = far.check()
    assert found["unit"]["text"].startswith("no systemd runs there")
    assert {one["state"] for one in found.values()} == {"ok"}


def test_check_says_what_is_missing_in_order(far: Far, lab: Lab) -> None:
    lab.write("models/slow.yaml", fake_yaml("slow"))
    found = far.check()
    assert [name for name, one in found.items() if one["state"] == "missing"] == ["agent", "unit", "agent answers"]
    assert found["agent"]["mend"] == f"llmgw node install far --dir {lab.cluster}"
    assert found["weights"]["state"] == "not looked at"
    far.process.terminate()
    far.process.wait()
    found = far.check()
    assert found.pop("reachable")["state"] == "missing"
    assert {one["state"] for one in found.values()} == {"not looked at"}


@pytest.mark.parametrize("manager", ["system", "user"])
@pytest.mark.parametrize("uid", [0, 1000])
def test_systemd_itself_takes_the_unit(tmp_path: Path, manager: Any, uid: int) -> None:
    prefix = tmp_path / "a place"
    (prefix / "current/bin").mkdir(parents=True)
    (prefix / "current/bin/python").symlink_to(sys.executable)
    found = Found(home="/home/x", user="root" if uid == 0 else "daemon", uid=uid, systemd=252)
    wanted = Wanted("far", "1", manager, str(prefix), "/run/llmgw/100%.sock", "/var/lib/llmgw/agent")
    unit = tmp_path / "llmgw-agent.service"
    unit.write_text(unit_text(wanted, found))
    done = subprocess.run(
        [program("systemd-analyze"), *(["--user"] if manager == "user" else []), "--man=no", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    ours = [line for line in done.stderr.splitlines() if "llmgw-agent" in line]
    assert (done.returncode, ours) == (0, [])
