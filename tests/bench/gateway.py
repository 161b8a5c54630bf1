"""The gateway worker beside its peers, in one run: `python -m tests.bench.gateway` (about 3 minutes) prints two tables.

Contenders run on one core, one after the other under load; the engine and the clients on another. Absolute figures move with
the machine, so goals are ratios to nginx and to the best router in Rust, but for memory and large bodies. Each measure goes
round all contenders before it is repeated, and the better of the rounds counts: what else runs on the machine only ever takes
away. CPU per request and per event hardly depends on that, and says what a whole core would do.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from tests.bench.gateway_engine import EVENTS, PACE
from tests.bench.gateway_load import CREDENTIAL, body_of, cpu_of
from tests.bench.gateway_peers import CONTENDERS, LLMGW, PEERS, ROOT, Contender, Lineup, Running, pinned

CONNECTIONS = 64
STREAMS = 256
OPEN_STREAMS = 10_000
ENOUGH = 0.9
"""Share of the streams that must have opened, lest the memory of those that wait be taken for theirs."""
SPARE_FILES = 1200
"""What a process may have open besides its connections."""
SMALL = 800
LARGE = 400_000
LARGE_CONNECTIONS = 16
DIRECT = "no gateway"

Against = Literal["nginx", "router", "figure"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of each contender, and what is aimed at."""

    name: str
    title: str
    heading: str
    digits: int = 0
    more: bool = False
    """Whether more is better."""
    goals: tuple[tuple[Against, float], ...] = ()


MEASURES = (
    Measure(
        "rate", f"JSON requests/s, {CONNECTIONS} connections", "JSON/s", 0, True, (("router", 2.5), ("nginx", 0.6))
    ),
    Measure("request", "CPU a JSON request (us)", "us/req", 1),
    Measure("p50", "JSON p50, 1 connection (us)", "p50 us", 0, False, (("nginx", 1.5),)),
    Measure("large", "400 KB bodies/s", "400KB/s", 0, True, (("figure", 1000.0),)),
    Measure("events", f"events/s, {STREAMS} streams", "events/s", 0, True),
    Measure("event", "CPU an event (us)", "us/event", 1, False, (("nginx", 1.3),)),
    Measure("first", f"first byte, {STREAMS} streams (ms)", "1st ms", 2),
    Measure("first99", "first byte, 99 % (ms)", "99% ms", 2),
    Measure("rest", "memory at rest (MB)", "RSS MB", 1, False, (("figure", 60.0),)),
    Measure("stream", "memory an open stream (KiB)", "KiB/str", 1, False, (("figure", 30.0),)),
)


@dataclass
class Results:
    """The best figure of each contender by measure, which of them are routers, and what else should be known."""

    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    routers: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, **found: float) -> None:
        """Keep a figure if it is the best yet."""
        known = self.figures.setdefault(name, {})
        for measure in MEASURES:
            if (value := found.get(measure.name)) is not None:
                best = known.get(measure.name, value)
                known[measure.name] = max(best, value) if measure.more else min(best, value)

    def of(self, name: str, measure: Measure) -> float | None:
        """Return a figure; None where it was not taken."""
        return self.figures.get(name, {}).get(measure.name)

    def best_router(self, measure: Measure) -> tuple[str, float] | None:
        """Return the router with the best figure, if any has one."""
        found = [(value, name) for name in self.routers if (value := self.of(name, measure)) is not None]
        if not found:
            return None
        value, name = max(found) if measure.more else min(found)
        return name, value

    def ratio(self, measure: Measure, against: Against) -> float | None:
        """Return llmgw's figure over that of nginx or the best router, or the figure itself."""
        ours = self.of(LLMGW.name, measure)
        if against == "figure" or ours is None:
            return ours
        router = self.best_router(measure)
        theirs = self.of("nginx", measure) if against == "nginx" else router and router[1]
        return ours / theirs if theirs else None


class Bench:
    """One run. The measures print what went wrong, so that a figure of refused calls is not taken for one of answers."""

    def __init__(self, directory: Path, cores: tuple[int, int], seconds: int, rounds: int) -> None:
        self.results = Results()
        self._directory = directory
        self._cores = cores
        self._seconds = seconds
        self._half = max(1, seconds // 2)
        self._rounds = rounds
        limit = _most_files()
        self._connections = limit - 100
        self._open_streams = min(OPEN_STREAMS, (limit - SPARE_FILES) // 2)
        if self._open_streams < OPEN_STREAMS:
            self.results.notes.append(f"{self._open_streams} open streams, because a process may open {limit} files")

    def run(self, contenders: Sequence[Contender]) -> Results:
        """Take all measures."""
        before, since = psutil.cpu_times(percpu=True)[self._cores[1]], time.monotonic()
        own = 0.0
        with self._lineup("json", contenders) as lineup:
            for _ in range(self._rounds):
                self._each(lineup, self._json)
                self._each(lineup, self._latency)
                self._each(lineup, self._large)
            own += sum(cpu_of(one.pids) for one in self._alive(lineup))
        with self._lineup("stream", contenders) as lineup:
            for one in self._alive(lineup):
                self.results.add(one.contender.name, rest=one.resident / 1e6)
            for _ in range(self._rounds):
                self._each(lineup, self._events)
            for one in self._alive(lineup):
                self._open(one.contender.name, one)
                own += cpu_of(one.pids)
                lineup.end(one.process)  # one that goes on reading from the engine would use up the engine's open files
        after, seconds = psutil.cpu_times(percpu=True)[self._cores[1]], time.monotonic() - since
        busy = sum(after) - sum(before) - (after.idle - before.idle) - (after.iowait - before.iowait)
        self.results.notes.append(
            f"{seconds:.0f} s; of the contenders' core, other programs took {max(0.0, busy - own) / seconds:.0%}"
        )
        return self.results

    @contextlib.contextmanager
    def _lineup(self, load: Literal["json", "stream"], contenders: Sequence[Contender]) -> Iterator[Lineup]:
        directory = self._directory / load
        directory.mkdir()
        lineup = Lineup(directory, self._cores, self._connections)
        try:
            lineup.start(load, contenders)
            routers = [one.contender.name for one in lineup.running if one.contender.kind == "router"]
            self.results.routers = tuple(routers)
            yield lineup
        finally:
            lineup.stop()

    def _each(self, lineup: Lineup, measure: Callable[[str, int, list[int]], None]) -> None:
        measure(DIRECT, lineup.engine, [])
        for one in self._alive(lineup):
            measure(one.contender.name, one.port, one.pids)

    def _alive(self, lineup: Lineup) -> Iterator[Running]:
        for one in lineup.running:
            if one.process.poll() is None:
                yield one
            else:
                self.results.notes.append(f"{one.contender.name} ended with {one.process.returncode} under load")

    def _json(self, name: str, port: int, pids: list[int]) -> None:
        cpu = cpu_of(pids)
        done = self._calls(name, port, CONNECTIONS, self._seconds, SMALL)
        cpu = cpu_of(pids) - cpu
        self.results.add(name, rate=done["rate"])
        if pids and done["rate"]:
            self.results.add(name, request=cpu / done["total"] * 1e6)

    def _latency(self, name: str, port: int, _: list[int]) -> None:
        self.results.add(name, p50=self._calls(name, port, 1, self._half, SMALL)["p50"] * 1e6)

    def _large(self, name: str, port: int, _: list[int]) -> None:
        self.results.add(name, large=self._calls(name, port, LARGE_CONNECTIONS, self._half, LARGE)["rate"])

    def _events(self, name: str, port: int, pids: list[int]) -> None:
        arguments = ["stream", str(port), "--count", str(STREAMS), "--seconds", str(self._seconds)]
        found = json.loads(self._client([*arguments, "--watch", *map(str, pids)]))
        self._blame(name, found["errors"])
        self.results.add(name, events=found["rate"], first=found["first"] * 1e3, first99=found["first99"] * 1e3)
        if pids:
            self.results.add(name, event=found["cpu"] * 1e6)

    def _open(self, name: str, running: Running) -> None:
        command = [sys.executable, "-m", "tests.bench.gateway_load", "hold", str(running.port)]
        before = running.resident
        with pinned(self._cores[0]):
            client = subprocess.Popen(
                [*command, "--count", str(self._open_streams)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert client.stdin is not None
        assert client.stdout is not None
        with client, client.stdin, client.stdout:
            count = json.loads(client.stdout.readline())["open"]
            if count < self._open_streams:
                self.results.notes.append(f"{name}: only {count} of {self._open_streams} streams opened")
            if count > self._open_streams * ENOUGH:
                self.results.add(name, stream=(running.resident - before) / count / 1024)

    def _calls(self, name: str, port: int, count: int, seconds: int, size: int) -> dict[str, float]:
        """Make calls that get JSON; return how many a second and in total, and the median of what they took in seconds."""
        if shutil.which("wrk") is None:
            arguments = ["json", str(port), "--count", str(count), "--seconds", str(seconds), "--size", str(size)]
            found = json.loads(self._client(arguments))
            self._blame(name, found["errors"])
            return found
        script = self._directory / f"{size}.lua"
        script.write_text(
            'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
            f'wrk.headers["Authorization"] = "Bearer {CREDENTIAL}"\nwrk.body = \'{body_of(size).decode()}\'\n'
        )
        command = ["wrk", "-t1", f"-c{count}", f"-d{seconds}s", "-s", str(script), "--latency"]
        with pinned(self._cores[0]):
            done = subprocess.run(
                [*command, f"http://127.0.0.1:{port}/v1/chat/completions"], capture_output=True, text=True, check=True
            )
        return self._wrk(name, done.stdout)

    def _wrk(self, name: str, said: str) -> dict[str, float]:
        refused = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
        broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", said)
        self._blame(name, int(refused[1]) if refused else 0, sum(map(int, broken.groups())) if broken else 0)
        rate, total = re.search(r"Requests/sec: +([\d.]+)", said), re.search(r"(\d+) requests in", said)
        half = re.search(r"50% +([\d.]+)(us|ms|s)", said)
        assert rate, said
        assert total, said
        assert half, said
        unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[half[2]]
        return {"rate": float(rate[1]), "total": int(total[1]), "p50": float(half[1]) * unit}

    def _client(self, arguments: list[str]) -> str:
        command = [sys.executable, "-m", "tests.bench.gateway_load", *arguments]
        with pinned(self._cores[0]):
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout

    def _blame(self, name: str, refused: int, broken: int = 0) -> None:
        if refused or broken:
            self.results.notes.append(f"{name}: {refused} calls refused, {broken} broken in a measure")


def _most_files() -> int:
    """Allow this process, and what it starts, as many open files as it may have; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))  # children get it too; it stays raised
    return most


def table(results: Results) -> str:
    """Return the figures of all contenders, one a line."""
    lines = [f"{'':14}" + "".join(f"{measure.heading:>10}" for measure in MEASURES)]
    for name in results.figures:
        cells = [_shown(results.of(name, measure), measure.digits) for measure in MEASURES]
        lines.append(f"{name:14}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def verdicts(results: Results) -> str:
    """Return llmgw's figures beside those of nginx and the best router, as ratios, with what was aimed at."""
    lines = [f"{'':36}{'llmgw':>8}{'nginx':>8}{'x nginx':>9}{'best router':>22}{'x router':>9}  goal"]
    for measure in MEASURES:
        name, value = results.best_router(measure) or ("", None)
        router = f"{name} {_shown(value, measure.digits)}" if name else "-"
        cells = (
            f"{_shown(results.of(LLMGW.name, measure), measure.digits):>8}",
            f"{_shown(results.of('nginx', measure), measure.digits):>8}",
            f"{_shown(results.ratio(measure, 'nginx'), 2):>9}{router:>22}",
            f"{_shown(results.ratio(measure, 'router'), 2):>9}",
        )
        judged = ", ".join(_judged(results, measure, against, bound) for against, bound in measure.goals)
        lines.append(f"{measure.title:36}{''.join(cells)}  {judged}".rstrip())
    return "\n".join(lines)


def _judged(results: Results, measure: Measure, against: Against, bound: float) -> str:
    ratio = results.ratio(measure, against)
    aim = f"{'>=' if measure.more else '<='} {bound:g}" + ("" if against == "figure" else f" x {against}")
    if ratio is None:
        return f"{aim}: not known"
    return f"{aim}: {'PASS' if (ratio >= bound if measure.more else ratio <= bound) else 'short of'}"


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def run(names: Sequence[str] = (), seconds: int = 2, rounds: int = 2) -> Results:
    """Measure llmgw and those of the others that are there, or that are named; print and return the figures."""
    chosen = [one for one in CONTENDERS if not names or one.name in names or one.kind == "llmgw"]
    print()
    for one in chosen:
        if not one.found():
            print(f"{one.name} is absent; to have it: {one.install}")
    if shutil.which("wrk") is None:
        print("wrk is absent, so the bench's own client limits what JSON is measured; to have it: apt-get install wrk")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        print("one core only: clients, engine and contender share it")
    print(
        f"contenders on core {cores[-1]}, clients and engine on core {cores[0]}; the better of {rounds} rounds; "
        f"{STREAMS} streams of {EVENTS} events, {PACE * 1e3:.0f} ms apart"
    )
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-", ignore_cleanup_errors=True) as directory:
        bench = Bench(Path(directory), (cores[0], cores[-1]), seconds, rounds)
        results = bench.run([one for one in chosen if one.found()])
    print(f"\n{table(results)}\n\n{verdicts(results)}\n")
    for note in dict.fromkeys(results.notes):
        print(note)
    return results


def main() -> None:
    """Run by command."""
    parser = argparse.ArgumentParser(prog="tests.bench.gateway", description=f"{PEERS} names a directory of routers.")
    parser.add_argument("names", nargs="*", help="of contenders; all without any")
    parser.add_argument("--seconds", type=int, default=2, help="of a measure; some take half of it")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    run(options.names, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
