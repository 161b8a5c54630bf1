"""`systemctl`, `loginctl` and `journalctl` for one unit, as far as an installation uses them: a program, not a module.

It behaves like systemd in what matters there: a unit is run as it was at the last `daemon-reload`, an `ExecStart` that is
not there fails, and a stop ends the main process alone with `KillMode=process`, and everything below it otherwise. Its
directory is `$FAKE_SYSTEMD`; every call is a line of `calls` there. A file `offline` there makes it a machine that
was not started by systemd.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(os.environ["FAKE_SYSTEMD"])
PID = ROOT / "main.pid"
LOADED = ROOT / "loaded.service"


def main(program: str, arguments: list[str]) -> int:
    with (ROOT / "calls").open("a") as calls:
        calls.write(f"{program} {' '.join(arguments)}\n")
    words = [one for one in arguments if not one.startswith("-")]
    if program == "journalctl":
        sys.stdout.write("\n".join((ROOT / "unit.log").read_text().splitlines()[-1:]))
        return 0
    if program == "loginctl":
        if words[0] == "enable-linger":
            (ROOT / "linger").touch()
        elif (ROOT / "linger").exists():
            print("yes")
        return 0
    if "--version" in arguments:
        print("systemd 252 (252.38)")
        return 0
    return systemctl(words[0], words[1:])


def systemctl(verb: str, words: list[str]) -> int:
    unit = Path(os.environ["HOME"]) / ".config/systemd/user" / (words[0] if words else "none")
    match verb:
        case "is-system-running":
            offline = (ROOT / "offline").exists()
            print("offline" if offline else "running")
            return int(offline)
        case "daemon-reload":
            for path in (Path(os.environ["HOME"]) / ".config/systemd/user").glob("*.service"):
                shutil.copy(path, LOADED)
        case "enable":
            (ROOT / "enabled").touch()
        case "is-enabled":
            return 0 if (ROOT / "enabled").exists() else 1
        case "is-active":
            return 0 if main_process() else 3
        case "show":
            process = main_process()
            print(process.pid if process else 0)
        case "restart":
            if not LOADED.exists() or LOADED.read_text() != unit.read_text():
                sys.stderr.write("Warning: the unit file changed on disk. Run 'systemctl daemon-reload'.\n")
            settings = dict(line.split("=", 1) for line in LOADED.read_text().splitlines() if "=" in line)
            stop(settings)
            return start(settings)
        case _:
            sys.stderr.write(f"Unknown command verb {verb}.\n")
            return 1
    return 0


def main_process() -> psutil.Process | None:
    try:
        process = psutil.Process(int(PID.read_text()))
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None


def stop(settings: dict[str, str]) -> None:
    process = main_process()
    if process is None:
        return
    below = process.children(recursive=True)
    process.send_signal(signal.SIGTERM)
    for _ in range(500):
        if main_process() is None:
            break
        time.sleep(0.02)
    if main_process() is not None:
        process.kill()
    if settings.get("KillMode") != "process":
        for one in below:
            one.kill()


def start(settings: dict[str, str]) -> int:
    for name in settings.get("RuntimeDirectory", "").split():
        path = Path(os.environ["XDG_RUNTIME_DIR"]) / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(int(settings["RuntimeDirectoryMode"], 8))
    command = shlex.split(settings["ExecStart"].replace("%%", "%").replace("$$", "$"))
    environment = {name: os.environ[name] for name in ("HOME", "XDG_RUNTIME_DIR", "FAKE_SYSTEMD")}
    with (ROOT / "unit.log").open("ab") as log:
        try:
            process = subprocess.Popen(
                command,
                env={**environment, "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            sys.stderr.write(f"Job for the unit failed: {error}\n")
            return 1
    PID.write_text(str(process.pid))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
