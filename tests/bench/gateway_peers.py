"""The contenders of the bench of gateways: how each is configured and started, and where it is looked for.

llmgw is its real worker process with what it has by default, under a control plane that says one table and then listens; it is
the compiled one if `LLMGW_COMPILED` names where that was unpacked (`make compiled`), beside the one of the source. nginx
and haproxy only pass bytes on: they are the limit. The others are routers and proxies for language models; each needs a virtual
environment of its own, because their packages exclude each other: `LLMGW_BENCH_PEERS=DIR` with `DIR/<name>/bin`. All have one
upstream, keep connections to it, and buffer no stream; routers go round, log errors only, and otherwise do what they always do.
"""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from llmgw.base.ids import ModelName, ReplicaId
from llmgw.fleet.access import Access, KnownKey, TenantRight, hash_of
from llmgw.fleet.table import Endpoint, EndpointTable, RoutedModel, TcpAddress
from llmgw.wire.frames import frame
from llmgw.wire.messages import AccessTable, Table, encode
from tests.bench.gateway_engine import nginx_engine
from tests.bench.gateway_load import CREDENTIAL, KEY, SECRET, body_of

ROOT = Path(__file__).parents[2]
PEERS = "LLMGW_BENCH_PEERS"
COMPILED = os.environ.get("LLMGW_COMPILED", "")
PATIENCE = 60.0
"""Seconds in which a contender should answer its first call."""

Kind = Literal["llmgw", "limit", "router", "proxy"]
Load = Literal["json", "stream"]


@dataclass(frozen=True, slots=True)
class Site:
    """What a contender is given."""

    directory: Path
    engine: int
    """Port of the engine, one for each contender: closed connections to one address use up the ports on this side of it."""
    port: int
    spare: int
    """A port for its own metrics."""
    connections: int
    """How many it may have open, to clients and the engine together."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A program that can stand between clients and an engine."""

    name: str
    kind: Kind
    command: Callable[[Site], list[str]]
    install: str
    """What to do where it is absent."""
    found: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Running:
    """One that answers."""

    contender: Contender
    port: int
    process: subprocess.Popen[bytes]

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        root = psutil.Process(self.process.pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]

    @property
    def resident(self) -> int:
        """Bytes of memory that its processes have together."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids)


class ControlPlane:
    """Says one table, and whose key opens it, to every worker that greets, and reads what it says about its usage."""

    def __init__(self, path: Path, engine: int) -> None:
        model = ModelName("m")
        endpoint = Endpoint(ReplicaId("m-0"), model, TcpAddress("127.0.0.1", engine), "m")
        table = EndpointTable(1, (RoutedModel(model, (), wanted=1, retry_after=5),), (endpoint,))
        access = Access(1, True, (KnownKey(KEY, hash_of(SECRET), "t"),), (TenantRight("t", ("m*",)),))
        self._said = frame(encode(AccessTable(access))) + frame(encode(Table(table)))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._socket.accept()
                with worker, contextlib.suppress(ConnectionError):
                    worker.sendall(self._said)
                    while worker.recv(1 << 16):
                        pass

    def close(self) -> None:
        """Listen no more; the worker must be gone."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def _llmgw(site: Site) -> list[str]:
    return [
        sys.executable, "-m", "llmgw.app.worker", "--host", "127.0.0.1", "--port", str(site.port),
        "--control", str(site.directory / f"{site.engine}.sock"), "--drain", "0",
    ]  # fmt: skip


def _compiled(site: Site) -> list[str]:
    python, *arguments = _llmgw(site)
    return ["env", f"PYTHONPATH={COMPILED}", python, "-P", *arguments]


def _nginx(site: Site) -> list[str]:
    """Return its command; it resets idle clients once a sixteenth of its connections is left, so it gets more of them."""
    config = site.directory / "proxy.conf"
    config.write_text(f"""
        worker_processes 1; daemon off; pid proxy.pid; error_log proxy.log crit;
        events {{ worker_connections {site.connections * 9 // 8}; }}
        http {{
            access_log off; keepalive_requests 1000000000; client_max_body_size 0; client_body_buffer_size 1m;
            upstream engine {{ server 127.0.0.1:{site.engine}; keepalive 512; keepalive_requests 1000000000; }}
            server {{
                listen 127.0.0.1:{site.port} backlog=4096;
                location / {{
                    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                    proxy_buffering off; proxy_read_timeout 600s;
                }}
            }}
        }}
    """)
    return ["nginx", "-p", str(site.directory), "-e", "proxy.log", "-c", str(config)]


def _haproxy(site: Site) -> list[str]:
    config = site.directory / "haproxy.cfg"
    config.write_text(f"""
global
  maxconn {(site.connections - 200) // 2}
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
  option http-no-delay
frontend clients
  bind 127.0.0.1:{site.port} backlog 4096
  default_backend engine
backend engine
  server engine 127.0.0.1:{site.engine}
""")
    return ["haproxy", "-db", "-f", str(config)]


def _router(*program: str) -> Callable[[Site], list[str]]:
    def command(site: Site) -> list[str]:
        name, *arguments = program
        return [
            str(_bin(name)), *arguments, "--host", "127.0.0.1", "--port", str(site.port),
            "--worker-urls", f"http://127.0.0.1:{site.engine}", "--policy", "round_robin",
            "--prometheus-port", str(site.spare), "--log-level", "error",
        ]  # fmt: skip

    return command


def _litellm(site: Site) -> list[str]:
    config = site.directory / "litellm.yaml"
    config.write_text(
        "model_list: [{model_name: m, litellm_params: {model: openai/m, api_key: x, "
        f'api_base: "http://127.0.0.1:{site.engine}/v1"}}}}]\nlitellm_settings: {{telemetry: false}}\n'
    )
    settings = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true"
    command = [str(_bin("litellm/litellm")), "--host", "127.0.0.1", "--port", str(site.port), "--num_workers", "1"]
    return ["env", settings, *command, "--config", str(config)]


def _bin(name: str) -> Path:
    peer, _, program = name.partition("/")
    return Path(os.environ.get(PEERS, "")) / peer / "bin" / program


def _in_path(name: str, kind: Kind, command: Callable[[Site], list[str]], package: str) -> Contender:
    return Contender(name, kind, command, f"apt-get install {package}", lambda: shutil.which(name) is not None)


def _in_venv(name: str, kind: Kind, command: Callable[[Site], list[str]], program: str, package: str) -> Contender:
    install = f"python -m venv DIR/{name} && DIR/{name}/bin/pip install '{package}', and set {PEERS}=DIR"
    return Contender(name, kind, command, install, lambda: bool(os.environ.get(PEERS)) and _bin(program).exists())


VLLM = ("vllm-router/vllm-router",)
SGLANG = ("sglang-router/sglang-router", "launch")
SMG = ("smg/python", "-m", "smg", "launch", "--max-concurrent-requests", "20000")
SOURCE = Contender("llmgw-source" if COMPILED else "llmgw", "llmgw", _llmgw, "", lambda: True)
LLMGW = Contender("llmgw", "llmgw", _compiled, "make compiled", lambda: True) if COMPILED else SOURCE
CONTENDERS = (
    *dict.fromkeys((LLMGW, SOURCE)),
    _in_path("nginx", "limit", _nginx, "nginx-light"),
    _in_path("haproxy", "limit", _haproxy, "haproxy"),
    _in_venv("vllm-router", "router", _router(*VLLM), VLLM[0], "vllm-router"),
    _in_venv("sglang-router", "router", _router(*SGLANG), SGLANG[0], "sglang-router"),
    _in_venv("smg", "router", _router(*SMG), "smg/smg", "smg"),
    _in_venv("litellm", "proxy", _litellm, "litellm/litellm", "litellm[proxy]"),
)
"""Routers are those written in Rust. sglang-router installs a command `smg` of its own, hence the module; the real one admits
4,096 requests at once unless told otherwise."""


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Let what is started meanwhile run on this core only, as programs ask at their start how many there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody listens at now."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


class Lineup:
    """An engine on one core and contenders on another, all running at once; those that do not answer are left out."""

    def __init__(self, directory: Path, cores: tuple[int, int], connections: int) -> None:
        self._directory = directory
        self._load_core, self._core = cores
        self._connections = connections
        self._controls: list[ControlPlane] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.engine = 0
        """A port of the engine that no contender uses."""
        self.running: list[Running] = []

    def start(self, load: Load, contenders: Sequence[Contender]) -> None:
        """Start an engine for this load and the contenders, and wait for an answer of each."""
        ports = iter(free_ports(3 * len(contenders) + 1))
        engines = [next(ports) for _ in range(len(contenders) + 1)]
        self.engine = engines.pop()
        command = [sys.executable, "-m", "tests.bench.gateway_engine", *map(str, [*engines, self.engine])]
        if load == "json" and shutil.which("nginx"):
            command = nginx_engine(self._directory, [*engines, self.engine])
        engine = self._spawn("engine", command, self._load_core)
        assert self._answers(engine, self.engine), self._last_words("engine")
        started = []
        for one, port in zip(contenders, engines, strict=True):
            site = Site(self._directory, port, next(ports), next(ports), self._connections)
            if one.kind == "llmgw":
                self._controls.append(ControlPlane(self._directory / f"{port}.sock", port))
            started.append(Running(one, site.port, self._spawn(one.name, one.command(site), self._core)))
        for one in started:
            if self._answers(one.process, one.port):
                self.running.append(one)
            else:
                print(f"{one.contender.name} gave no answer, left out: {self._last_words(one.contender.name)}")

    def stop(self) -> None:
        """End all of them."""
        while self._processes:
            self.end(self._processes[-1])
        for control in self._controls:
            control.close()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End one, with all that it has started."""
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._processes.remove(process)

    def _spawn(self, name: str, command: list[str], core: int) -> subprocess.Popen[bytes]:
        with pinned(core), (self._directory / f"{name}.out").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        self._processes.append(process)
        return process

    def _answers(self, process: subprocess.Popen[bytes], port: int) -> bool:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None:
            if answered(port):
                return True
            time.sleep(0.1)
        return False

    def _last_words(self, name: str) -> str:
        return "\n".join((self._directory / f"{name}.out").read_text(errors="replace").splitlines()[-3:]) or "no output"


def answered(port: int) -> bool:
    """Return whether a chat call is answered there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {CREDENTIAL}"}
        connection.request("POST", "/v1/chat/completions", body_of(40), headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
