"""The process that stands for a container: it starts it, writes its output, passes SIGTERM on, and ends when and as it ends.

To the agent it is an engine like any other: a session leader with the agent's marks and its output in the attempt's log. It
outlives the agent, is adopted by pid, start time and marks, and its end is the container's end, told by the exit status. So
what holds for processes (records, adoption, logs, stopping) holds for containers without a second kind of identity; what the
agent has to know besides is which processes are in the container, for which it reads the note that is written here.

Rejected: `docker run` itself in this place. Its client ends when the daemon is restarted, also where the daemon leaves its
containers running (`live-restore`), and an upgrade of docker would end every engine of the node; here the client is started
again, and attached to what runs. Rejected: `run --detach`, and `logs --follow` and `wait` as tasks of the agent. What the
engine said while no agent ran would be lost or told twice, every log would lie on the disk twice, and how it ended could be
known only from the daemon.

Imports nothing but the standard library: one of these lives beside each container for as long as that does.

    python -m llmgw.agent.tender ID_FILE NOTE PROGRAM run …
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

STATE = "{{.State.Status}} {{.State.Pid}} {{.State.ExitCode}} {{.State.OOMKilled}}"
ALIVE = ("running", "paused", "restarting")
ASKED_FOR = 20.0
"""Seconds that docker gets for an answer."""
PAUSE = 1.0
"""Seconds between two looks at a daemon that does not answer, or a container that lets nobody attach."""
LOOK = 0.1
"""Seconds between two looks whether the container exists; most of a start may be the image's way here."""
TAIL = 8192
KILLED = 128 + signal.SIGKILL
ENDING = (
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGHUP, signal.SIGILL, signal.SIGINT, signal.SIGKILL, signal.SIGPIPE,
    signal.SIGQUIT, signal.SIGSEGV, signal.SIGTERM,
)  # fmt: skip
"""Signals that end a process, and that a status of 128 and more stands for."""
UNHEARD = re.compile(
    r"cannot connect to|failed to connect|error during connect|is the docker daemon running|connection refused",
    re.IGNORECASE,
)
ABSENT = re.compile(r"no such (object|container)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class State:
    """What docker says of the container. `status` is empty where it says nothing, with why in `text`."""

    status: str
    pid: int = 0
    code: int = 0
    for_memory: bool = False
    text: str = ""

    @property
    def absent(self) -> bool:
        """Whether there is no such container, by docker's own word."""
        return not self.status and bool(ABSENT.search(self.text))


class Tender:
    """One container. `run` it once, in the main thread."""

    def __init__(self, id_file: Path, note: Path, run: list[str]) -> None:
        self._id_file = id_file
        self._note = note
        self._run = run
        self._program = run[0]
        self._client: subprocess.Popen[bytes] | None = None
        self._pid = 0
        """The container's main process, once it runs."""
        self._over = threading.Event()

    def run(self) -> int:
        """Return the container's exit status, or that of a client which could not start it."""
        self._id_file.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
        self._client = subprocess.Popen(self._run, stdin=subprocess.DEVNULL)
        watch = threading.Thread(target=self._take_note, daemon=True)
        watch.start()
        code = self._client.wait()
        self._over.set()
        watch.join()
        looked_twice = False
        while True:
            state = self._look()
            if state.status in ALIVE:
                self._take_note_of(state.pid)
                say(f"the client of {self._short} ended with status {code} and the container runs on; attaching again")
                self._client = subprocess.Popen(
                    [self._program, "attach", "--no-stdin", "--sig-proxy=false", self._id], stdin=subprocess.DEVNULL
                )
                code = self._client.wait()
            elif state.code == KILLED and not state.for_memory and not looked_twice:
                looked_twice = True  # a removal kills first, and whoever removed it is the better reason
            elif state.status or state.absent or not self._lives(state):
                return self._ended(state, code)
            time.sleep(PAUSE)

    def terminate(self, *_: object) -> None:
        """Pass SIGTERM on to the container; before there is one, end what would start it."""
        if self._id:
            subprocess.Popen(
                [self._program, "kill", "--signal", "TERM", self._id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        elif self._client is not None:
            self._client.kill()

    @property
    def _id(self) -> str:
        """The container's id; empty before it was created: while the image is on its way, docker's file is there and empty.

        Only this says which container is ours; under our name there may be another's.
        """
        try:
            return self._id_file.read_text().strip()
        except OSError:
            return ""

    @property
    def _short(self) -> str:
        return Path(self._program).name

    def _lives(self, silent: State) -> bool:
        """Whether it may still run although nobody says so."""
        if self._pid:
            return start_ticks(self._pid) is not None
        return bool(self._id and UNHEARD.search(silent.text))

    def _ended(self, state: State, code: int) -> int:
        if not self._pid and state.status in ("", "created", "initialized", "configured"):
            say(f"{self._short} run did not start it: {last_error(self._short)} (status {code})")
            return code or 1
        if state.absent:
            say("the container was removed by somebody else")
            return code or 1
        if not state.status:
            say(f"the container ended while {self._short} did not answer: {state.text}")
            return code or 1
        if state.for_memory:
            say(f"the container was killed for memory (status {state.code})")
        else:
            say(f"the container ended with status {state.code}")
        return state.code

    def _look(self) -> State:
        known = self._id
        if not known:
            return State("", text="no such container")
        try:
            said = subprocess.run(
                [self._program, "container", "inspect", "--format", STATE, known],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASKED_FOR,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return State("", text=str(error))
        fields = said.stdout.split()
        if said.returncode or len(fields) != 4 or not fields[1].isdigit():
            return State("", text=" ".join((said.stderr or said.stdout).split())[:300])
        return State(fields[0], int(fields[1]), int(fields[2]), fields[3] == "true")

    def _take_note(self) -> None:
        """Wait until the container runs, and write down what it is. Its client may be busy with the image for long."""
        while not self._over.wait(LOOK):
            if self._id:
                state = self._look()
                if state.status in ALIVE:
                    self._take_note_of(state.pid)
                    return

    def _take_note_of(self, pid: int) -> None:
        if self._pid or not pid:
            return
        ticks = start_ticks(pid)
        if ticks is None:
            return
        temporary = self._note.with_suffix(".tmp")
        try:
            temporary.write_text(f"{self._id} {pid} {ticks}\n")
            temporary.replace(self._note)
        except OSError as error:
            say(f"cannot write {self._note}: {error.strerror}")
            return
        self._pid = pid


def start_ticks(pid: int) -> str | None:
    """Return when a process of this host began, in the kernel's ticks; None if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def last_error(short: str, log: str = "/proc/self/fd/1") -> str:
    """Return the last line in which docker or podman complains, read from our own output; empty if that is no file."""
    try:
        with open(log, "rb") as file:  # noqa: PTH123 - a link to what is open, which may not be a path any more
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.startswith((f"{short}: ", "Error: "))), "")


def say(text: str) -> None:
    """Write a line of our own into the log."""
    os.write(1, f"llmgw: {text}\n".encode())


def main(argv: list[str]) -> int:
    """Stand for a container until it ends."""
    id_file, note, *run = argv
    tender = Tender(Path(id_file), Path(note), run)
    signal.signal(signal.SIGTERM, tender.terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = tender.run()
    number = code - 128
    if number in ENDING:  # so that whoever waits for us sees what it would see of a process
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
