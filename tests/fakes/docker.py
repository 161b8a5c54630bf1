"""A fake `docker` and `podman`: a daemon, one process that stands by each container, and clients that come and go.

`with docker(directory) as fake` makes `directory/bin/docker` and `.../podman` and starts the daemon; `fake.image(...)` says
what may be pulled. A container is a process of this host in a session of its own, below a process that the daemon started: not
a child of the client, nor of whoever runs that, and with an environment that is the image's and the flags' only. What it prints
goes to clients that are attached, and nowhere else (`--log-driver none`). The daemon may die and come back while containers
run, as with `live-restore`. It knows the flags that are used here and refuses others; statuses and words are those of docker 28
and podman 5, from their sources. It imports nothing of llmgw.
"""

import csv
import json
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WITH_VALUE = {
    *("--name", "--cidfile", "--label", "--log-driver", "--network", "--shm-size", "--memory", "--memory-swap"),
    *("--cpu-shares", "--gpus", "--device", "--group-add", "--security-opt", "--mount", "--env", "--entrypoint"),
}
ALONE = {"--init", "--no-healthcheck"}
OWN_ALONE = {"docker": set[str](), "podman": {"--http-proxy=false"}}


class Docker:
    """What a test does with it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.bin.mkdir(parents=True)
        (root / "containers").mkdir()
        self._images: dict[str, Any] = {}
        for name in ("docker", "podman"):
            program = self.bin / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} {root} "$@"\n')
            program.chmod(0o755)
        (root / "cards").write_text("[]")
        self.image("", present=True)

    def image(self, name: str, *, present: bool = False, pull: float = 0.0, programs: Any = None, **more: Any) -> None:
        """Say what an image has: `programs` by the name that is run, `entrypoint`, `env`; None for what cannot be run."""
        self._images[name] = {"pull": pull, "programs": programs or {}, "entrypoint": [], "env": {}, **more}
        (self.root / "images.json").write_text(json.dumps(self._images))
        if present:
            _present(self.root, name).touch()

    def cards(self, *uuids: str) -> None:
        """Say which cards containers may be given."""
        (self.root / "cards").write_text(json.dumps(uuids))

    def start(self) -> None:
        """Start the daemon."""
        self.daemon = subprocess.Popen([sys.executable, __file__, "daemon", str(self.root)], start_new_session=True)
        assert _until(lambda: _answers(self.root))

    def stop(self) -> None:
        """End the daemon, which leaves containers running."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None
        with suppress(FileNotFoundError):
            (self.root / "docker.sock").unlink()

    def __call__(self, *argv: str, name: str = "docker") -> subprocess.CompletedProcess[str]:
        """Run a client as an operator does."""
        return subprocess.run([self.bin / name, *argv], capture_output=True, text=True, check=False, timeout=30)

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Every container there is, oldest first: `name`, `status`, `pid`, `argv`, `env`, `labels`, …"""
        return sorted(_all(self.root), key=lambda one: one["created"])

    def kill_for_memory(self, name: str) -> None:
        """End a container as the kernel does when its limit is reached."""
        found = _find(self.root, name)
        assert found is not None
        _save(self.root, {**found, "oom": True})
        os.kill(found["pid"], signal.SIGKILL)

    def clean(self) -> None:
        """End the daemon and every container."""
        self.stop()
        for one in self.containers:
            _end(one)


@contextmanager
def docker(root: Path) -> Iterator[Docker]:
    """Give a docker that nothing is left of afterwards."""
    fake = Docker(root)
    fake.start()
    try:
        yield fake
    finally:
        fake.clean()


def _present(root: Path, image: str) -> Path:
    return root / f"present-{image.replace('/', '+')}"


def _all(root: Path) -> list[dict[str, Any]]:
    found = []
    for path in (root / "containers").glob("*.json"):
        with suppress(FileNotFoundError):
            found.append(json.loads(path.read_text()))
    return found


def _find(root: Path, name: str) -> dict[str, Any] | None:
    return next((one for one in _all(root) if name in (one["name"], one["id"])), None)


def _save(root: Path, one: dict[str, Any]) -> None:
    path = root / "containers" / f"{one['id']}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(one))
    temporary.replace(path)


def _session(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def _end(one: dict[str, Any]) -> None:
    for pid in _session(one["pid"]) if one["pid"] else ():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _until(holds: Any, limit: float = 20.0) -> bool:
    for _ in range(round(limit * 100)):
        if holds():
            return True
        time.sleep(0.01)
    return False


def _connected(root: Path) -> socket.socket | None:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(str(root / "docker.sock"))
    except OSError:
        client.close()
        return None
    return client


def _answers(root: Path) -> bool:
    connection = _connected(root)
    if connection is not None:
        connection.close()
    return connection is not None


# --- the daemon, and what stands by a container


def daemon(root: Path) -> None:
    """Start what clients ask to be started; each keeps its connection for as long as it waits."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "docker.sock"))
    server.listen(64)
    chosen = selectors.DefaultSelector()
    chosen.register(server, selectors.EVENT_READ)
    while True:
        for key, _ in chosen.select():
            if key.fileobj is server:
                client, _ = server.accept()
                chosen.register(client, selectors.EVENT_READ)
                continue
            client = key.fileobj  # type: ignore[assignment]
            said = client.recv(4096)
            if not said:
                chosen.unregister(client)
                client.close()
                continue
            argv = [sys.executable, __file__, "beside", str(root), said.decode().strip()]
            subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, env={})


def beside(root: Path, name: str) -> None:
    """Run a container, and note how it ended."""
    one = _find(root, name)
    assert one is not None
    with (root / "containers" / f"{one['id']}.out").open("wb") as out:
        process = subprocess.Popen(one["run"], env=one["env"], stdout=out, stderr=out, start_new_session=True)
    _save(root, {**one, "status": "running", "pid": process.pid})
    code = process.wait()
    now = _find(root, one["id"])
    for pid in _session(process.pid):  # what is process 1 takes the rest of its container with it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if now is not None:
        _save(root, {**now, "status": "exited", "pid": 0, "code": code if code >= 0 else 128 - code})


# --- clients


class Client:
    """One run of `docker` or `podman`."""

    def __init__(self, program: str, root: Path) -> None:
        self.program = program
        self.root = root
        self.connection: socket.socket | None = None

    def main(self, argv: list[str]) -> int:
        self.connection = _connected(self.root)
        if argv[:2] == ["container", "inspect"]:
            argv = argv[1:]
        command, *rest = argv
        if self.connection is None:
            text = (
                f"Cannot connect to the Docker daemon at unix://{self.root}/docker.sock. Is the docker daemon running?"
            )
            return self.fails(text, 125 if command == "run" else 1, prefix="docker: " if command == "run" else "")
        return int(getattr(self, f"do_{command}")(rest))

    def fails(self, text: str, status: int, prefix: str | None = None) -> int:
        theirs = "Error: " if self.program == "podman" else "Error response from daemon: "
        print(f"{theirs if prefix is None else prefix}{text}", file=sys.stderr, flush=True)
        return status

    def refused(self, text: str, status: int = 125) -> int:
        """Say why nothing was started."""
        prefix = "Error: " if self.program == "podman" else "docker: Error response from daemon: "
        self.fails(text, status, prefix)
        if self.program == "docker":
            print("\nRun 'docker run --help' for more information", file=sys.stderr, flush=True)
        return status

    def do_info(self, argv: list[str]) -> int:
        assert argv[0] == "--format"
        print("28.3.0 [name=seccomp,profile=builtin]" if self.program == "docker" else "5.4.2 rootless=false")
        return 0

    def do_run(self, argv: list[str]) -> int:
        flags: dict[str, list[str]] = {}
        while argv and argv[0].startswith("-"):
            flag = argv.pop(0)
            if flag in WITH_VALUE:
                flags.setdefault(flag, []).append(argv.pop(0))
            elif flag not in ALONE | OWN_ALONE[self.program]:
                return self.fails(f"unknown flag: {flag}", 125, f"{self.program}: ")
        image, *args = argv
        cid_file = Path(flags["--cidfile"][0])
        if cid_file.exists():
            text = f"container ID file found, make sure the other container isn't running or delete {cid_file}"
            return self.fails(text, 125, f"{self.program}: ")
        cid_file.touch()  # it is there from the beginning, and empty until there is a container
        status = self.run_image(flags, image, args, cid_file)
        if not cid_file.read_text():
            cid_file.unlink()
        return status

    def run_image(self, flags: dict[str, list[str]], image: str, args: list[str], cid_file: Path) -> int:
        images = json.loads((self.root / "images.json").read_text())
        if not _present(self.root, image).exists():
            print(f"Unable to find image '{image}' locally", file=sys.stderr, flush=True)
            if image not in images:
                text = f"pull access denied for {image}, repository does not exist or may require 'docker login'"
                return self.refused(text)
            for layer in range(5):
                print(f"{layer}a5c: Pulling fs layer", file=sys.stderr, flush=True)
                time.sleep(images[image]["pull"] / 5)
            _present(self.root, image).touch()
        made = self.created(flags, images[image], args)
        if isinstance(made, int):
            return made
        made["argv"] = [self.program, "run", *sys.argv[4:]]
        _save(self.root, made)
        cid_file.write_text(made["id"])
        entry = (flags.get("--entrypoint") or images[image]["entrypoint"] or args)[0]
        if entry not in images[image]["programs"]:
            text = f'failed to create task for container: exec: "{entry}": executable file not found in $PATH: unknown'
            return self.refused(text, 127)
        if images[image]["programs"][entry] is None:
            return self.refused(
                f'failed to create task for container: exec: "{entry}": permission denied: unknown', 126
            )
        assert self.connection is not None
        self.connection.sendall(f"{made['id']}\n".encode())
        return self.attached(made["id"], 0)

    def created(self, flags: dict[str, list[str]], image: dict[str, Any], args: list[str]) -> dict[str, Any] | int:
        name = flags["--name"][0]
        other = _find(self.root, name)
        if other is not None:
            return self.refused(
                f'Conflict. The container name "/{name}" is already in use by container "{other["id"]}". You have to '
                "remove (or rename) that container to be able to reuse that name."
            )
        for mount in flags.get("--mount", []):
            fields = dict(part.partition("=")[::2] for part in next(csv.reader([mount])))
            if not Path(fields["source"]).exists():
                return self.refused(
                    f'invalid mount config for type "bind": bind source path does not exist: {fields["source"]}'
                )
        wanted = [uuid for value in flags.get("--gpus", []) for uuid in next(csv.reader([value]))[0][7:].split(",")]
        wanted += [one.partition("=")[2] for one in flags.get("--device", []) if one.startswith("nvidia.com/gpu=")]
        if not set(wanted) <= set(json.loads((self.root / "cards").read_text())):
            return self.refused('could not select device driver "" with capabilities: [[gpu]]')
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **image["env"]}
        for text in flags.get("--env", []):
            variable, given, value = text.partition("=")
            if given or variable in os.environ:
                env[variable] = value if given else os.environ[variable]
        if wanted:
            env["NVIDIA_VISIBLE_DEVICES"] = ",".join(wanted)
        entry, *more = [*(flags.get("--entrypoint") or image["entrypoint"]), *args]
        return {
            "id": secrets.token_hex(32),
            "name": name,
            "created": time.monotonic_ns(),
            "status": "created",
            "pid": 0,
            "code": 0,
            "oom": False,
            "env": env,
            "labels": dict(text.partition("=")[::2] for text in flags.get("--label", [])),
            "flags": flags,
            "run": [*(image["programs"].get(entry) or [entry]), *more],
        }

    def do_attach(self, argv: list[str]) -> int:
        assert argv[:2] == ["--no-stdin", "--sig-proxy=false"]
        one = _find(self.root, argv[2])
        if one is None:
            return self.fails(f"No such container: {argv[2]}", 1)
        if one["status"] != "running":
            return self.fails("cannot attach to a stopped container, start it first", 1, "")
        return self.attached(one["id"], (self.root / "containers" / f"{one['id']}.out").stat().st_size)

    def attached(self, cid: str, offset: int) -> int:
        """Print what a container prints until it ends, as long as the daemon is there."""
        assert self.connection is not None
        self.connection.settimeout(0.02)
        out = self.root / "containers" / f"{cid}.out"
        while True:
            one = _find(self.root, cid)
            if out.exists():
                with out.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                offset += len(data)
                while data:
                    data = data[os.write(1, data) :]
            if one is None:
                return 137
            if one["status"] == "exited":
                return int(one["code"])
            try:
                if self.connection.recv(1) == b"":
                    return self.fails("error waiting for container: unexpected EOF", 125, "")
            except TimeoutError:
                continue
            except OSError:
                return 125

    def do_inspect(self, argv: list[str]) -> int:
        assert argv[0] == "--format"
        one = _find(self.root, argv[2])
        if one is None:
            theirs = "no such container" if self.program == "podman" else "No such container:"
            return self.fails(f"{theirs} {argv[2]}", 125 if self.program == "podman" else 1)
        return self.shows(argv[1], one)

    def shows(self, template: str, one: dict[str, Any]) -> int:
        known = {
            ".State.Status": one["status"],
            ".State.Pid": one["pid"],
            ".State.ExitCode": one["code"],
            ".State.OOMKilled": str(one["oom"]).lower(),
            ".ID": one["id"],
            **{f'.Label "{key}"': value for key, value in one["labels"].items()},
        }
        print(re.sub(r"\{\{(.*?)\}\}", lambda match: str(known[match[1]]), template))
        return 0

    def do_kill(self, argv: list[str]) -> int:
        assert argv[0] == "--signal"
        one = _find(self.root, argv[2])
        if one is None or one["status"] != "running":
            return self.fails(f"cannot kill container: {argv[2]}: it is not running", 1)
        os.kill(one["pid"], getattr(signal, f"SIG{argv[1]}"))
        print(argv[2])
        return 0

    def do_stop(self, argv: list[str]) -> int:
        one = _find(self.root, argv[-1])
        if one is None:
            return self.fails(f"No such container: {argv[-1]}", 1)
        grace = float(argv[1]) if argv[0] in ("-t", "--time", "--timeout") else 10.0
        os.kill(one["pid"], signal.SIGTERM)
        if not _until(lambda: (_find(self.root, one["id"]) or one)["status"] == "exited", grace):
            _end(one)
        print(argv[-1])
        return 0

    def do_rm(self, argv: list[str]) -> int:
        force = "--force" in argv
        for name in (each for each in argv if not each.startswith("-")):
            one = _find(self.root, name)
            if one is None:
                return self.fails(f"No such container: {name}", 0 if force else 1)
            if one["status"] == "running" and not force:
                return self.fails(f'cannot remove container "{name}": container is running', 1)
            _end(one)
            _until(lambda cid=one["id"]: (_find(self.root, cid) or {"status": ""})["status"] != "running", 5.0)
            for path in (self.root / "containers").glob(f"{one['id']}.*"):
                path.unlink()
            print(name)
        return 0

    def do_ps(self, argv: list[str]) -> int:
        filters = [argv[place + 1] for place, text in enumerate(argv) if text == "--filter"]
        template = argv[argv.index("--format") + 1]
        for one in _all(self.root):
            labels = {f"label={key}={value}" for key, value in one["labels"].items()}
            if set(filters) <= labels and ("--all" in argv or one["status"] == "running"):
                self.shows(template, one)
        return 0

    def do_logs(self, _argv: list[str]) -> int:
        return self.fails("configured logging driver does not support reading", 1)


if __name__ == "__main__":
    match sys.argv[1]:
        case "daemon":
            daemon(Path(sys.argv[2]))
        case "beside":
            beside(Path(sys.argv[2]), sys.argv[3])
        case program:
            sys.exit(Client(program, Path(sys.argv[2])).main(sys.argv[3:]))
