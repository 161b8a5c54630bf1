"""A fake engine: a real HTTP server that behaves like llama.cpp's, with a switch for each way an engine goes wrong.

It is run as a program (`python tests/fakes/engine.py --alias m --port 9001 --chunks 5`), where it takes llama-server's
flags and ignores those it has no use for, or in the test's own loop (`async with running_engine(chunks=5) as engine`).
Switches can be thrown while it runs, by `POST /switches` or `engine.throw(...)`; `GET /seen` (or `engine.seen`) says
what arrived. It imports nothing of llmgw, so that it cannot share a misunderstanding with what it tests.

`--as vllm`, `--as sglang` and `--as tei` make it behave like those: it takes their flags and no others, refuses connections
while it loads, answers their probes with their metrics, and ends as they do (vLLM with status 0 when its engine died). Shards
on several nodes meet at the port they are told, and none is ready before all have come. What it knows of them is that of the
fact sheet (vLLM 0.33, SGLang 0.5.23, Text Embeddings Inference 1.9.3), not of any adapter.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import httptools

CREATED = 1700000000
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}


@dataclass
class Switches:
    """What this engine does differently. Times in seconds; None and False mean that it does not."""

    load_seconds: float = 0.0
    """Answers 503 to everything until so long after its start."""
    health_status: int | None = None
    """What /health answers instead of its own opinion."""
    chunks: int = 3
    chunk_interval: float = 0.0
    chunk_text: str | None = None
    """Text of each event instead of the alias, the pid and a number."""
    status: int | None = None
    """Status of every generation instead of 200, with `error_body`."""
    error_body: str = '{"error":{"message":"the fake engine was told to fail","type":"server_error","code":500}}'
    die_after: int | None = None
    """Ends the response after so many events, or half way through a body that is no stream."""
    die_how: str = "fin"
    """rst, fin, or clean_eof (the body ends properly, but its last event is missing)."""
    die_before_headers: bool = False
    """Closes the connection instead of answering."""
    refuse_reused: bool = False
    """Closes the connection instead of answering a second request on it."""
    abort_after: int | None = None
    """Ends a stream after so many events, and any other answer, as vLLM does when told to end: with `abort`, in all order."""
    bad_chunk_after: int | None = None
    """Writes a broken chunk size after so many events."""
    knows: str = ""
    """The only response it has stored; a request for another one gets 404."""
    stall_before_headers: bool = False
    stall_before_first_byte: bool = False
    """Sends the head of its response and nothing more."""
    stall_after: int | None = None
    """Goes silent after so many events, and keeps the connection."""
    split_utf8: bool = False
    """Writes a stream byte by byte."""
    unframed: bool = False
    """Ends streams by closing the connection, as HTTP/1.0 does."""
    keepalive_close_after: float | None = None
    """Closes a connection that was idle for so long."""
    echo_headers: bool = False
    """Answers every generation with the request's headers and body, as JSON."""
    body_bytes: int = 0
    """Size of the text in an answer that is no stream; 0 means a short one."""
    read_slowly: bool = False
    """Does not read the request's body until the switch is thrown back."""
    exit_after: float | None = None
    exit_code: int = 1
    """Exit status for exit_after."""
    exit_at_once: int | None = None
    """Ends with this status before it listens."""
    wedge_after: int | None = None
    """After so many events in all, no request gets another, while /health goes on to answer 200."""
    silent_metrics: bool = False
    """When wedged, does not answer /metrics and /slots either, as a loop that hangs."""
    no_health: bool = False
    """Does not answer /health at all, as a busy front."""
    lose_port_after: float | None = None
    """Closes its listening socket so long after its start, and lives on."""
    log_every: float | None = None
    """Writes a line to its log so often."""
    ignore_sigterm: bool = False
    engine_dies_after: float | None = None
    """What computes dies so long after the start; how the server then ends is its kind's own way."""
    warm_up_seconds: float = 0.0
    """SGLang: listens, and answers 503 to its health paths, for so long after the load."""
    drain_poll: float = 0.2
    """SGLang: looks so often whether what runs has ended, once it was told to end; the real one every 5 s."""
    hang_with_gang: bool = False
    """Does not notice when another shard is gone, as a collective operation that waits for ever."""
    spawn_child: bool = False
    """Starts a grandchild whose parent ends: an orphan in the engine's process group."""


@dataclass
class Seen:
    """What arrived here."""

    connections: int = 0
    requests: int = 0
    """Generations asked for."""
    active: int = 0
    cancelled: int = 0
    """Generations whose client went away before the end."""
    probes: int = 0
    last_path: str = ""
    last_headers: list[tuple[str, str]] = field(default_factory=list)
    last_body: str = ""
    bodies: list[str] = field(default_factory=list)


def whole_of(path: str, alias: str, text: str) -> dict[str, object]:
    """Return what an engine answers on each route, in the words of its family."""
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    theirs = {"input_tokens": 3, "output_tokens": 5}
    match path:
        case "/v1/embeddings":
            vector = {"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}
            return {
                "object": "list",
                "data": [vector],
                "model": alias,
                "usage": {"prompt_tokens": 3, "total_tokens": 3},
            }
        case "/v1/responses":
            content = {"type": "output_text", "text": text, "annotations": []}
            message = {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
            return response_of(alias, "completed", [message], {**theirs, "total_tokens": 8})
        case "/v1/messages":
            return {
                "id": "msg_1", "type": "message", "role": "assistant", "model": alias, "stop_reason": "end_turn",
                "stop_sequence": None, "content": [{"type": "text", "text": text}], "usage": theirs,
            }  # fmt: skip
        case "/v1/messages/count_tokens":
            return {"input_tokens": 3}
        case "/v1/audio/transcriptions" | "/v1/audio/translations":
            return {"text": text}
        case "/v1/images/generations" | "/v1/images/edits":
            return {"created": CREATED, "data": [{"b64_json": "AAAA"}]}
        case _:
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "text": text, "finish_reason": "stop"}
            return {
                "id": "chatcmpl-fake", "object": "chat.completion", "created": CREATED, "model": alias,
                "choices": [choice], "usage": usage,
            }  # fmt: skip


def response_of(alias: str, status: str, output: list[object], usage: object) -> dict[str, object]:
    return {
        "id": "resp_1", "object": "response", "created_at": CREATED, "model": alias, "status": status, "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
    }  # fmt: skip


def path_of(url: bytes) -> str:
    return url.decode().partition("?")[0]


def json_head(status: int, length: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} Whatever\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Access-Control-Allow-Origin: \r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


class FakeEngine:
    """The state that all connections share."""

    def __init__(self, alias: str, switches: Switches, manners: "Manners | None" = None) -> None:
        self.alias = alias
        self.switches = switches
        self.manners = manners or LlamaCpp()
        self.dead = False
        """What computes is dead; the server answers on, for a moment."""
        self.alone = False
        """Another shard of its replica is gone, and it has not noticed."""
        self.seen = Seen()
        self.connections: set[Connection] = set()
        self.port = 0
        self.path = ""
        self._server: asyncio.Server | None = None
        self._ready_at = 0.0
        self._exit: asyncio.TimerHandle | None = None
        self.adapters: dict[str, str] = {}
        """LoRA adapters: name -> path."""
        self.events = 0
        """Events of all generations so far: what a token counter would say."""

    async def start(self, host: str = "127.0.0.1", port: int = 0, path: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        if path is not None:
            self._server = await loop.create_unix_server(lambda: Connection(self), path)
            self.path = path
        else:
            self._server = await loop.create_server(lambda: Connection(self), host, port)
            self.port = self._server.sockets[0].getsockname()[1]
        self._ready_at = loop.time() + self.switches.load_seconds
        self.arm()
        if self.switches.lose_port_after is not None:
            loop.call_later(self.switches.lose_port_after, self.refuse_connections)
        self.chatter()

    def chatter(self, number: int = 0) -> None:
        if self.switches.log_every is not None:
            print(f"fake engine: still waiting, {number}", file=sys.stderr, flush=True)
            asyncio.get_running_loop().call_later(self.switches.log_every, self.chatter, number + 1)

    @property
    def wedged(self) -> bool:
        return self.switches.wedge_after is not None and self.events >= self.switches.wedge_after

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        if self._exit is not None:
            self._exit.cancel()
        await self._server.wait_closed()

    def refuse_connections(self) -> None:
        """Stop listening, as an engine does first when it is told to end."""
        assert self._server is not None
        self._server.close()

    def throw(self, **changes: object) -> None:
        """Throw switches by name."""
        for name, value in changes.items():
            if name not in {known.name for known in fields(Switches)}:
                raise KeyError(name)
            setattr(self.switches, name, value)
        if "load_seconds" in changes:
            self._ready_at = asyncio.get_running_loop().time() + self.switches.load_seconds
        for connection in self.connections:
            connection.reread()
        self.arm()

    def arm(self) -> None:
        if self._exit is not None:
            self._exit.cancel()
            self._exit = None
        if self.switches.exit_after is not None:
            loop = asyncio.get_running_loop()
            self._exit = loop.call_later(self.switches.exit_after, os._exit, self.switches.exit_code)

    @property
    def warming_up(self) -> bool:
        return asyncio.get_running_loop().time() < self._ready_at + self.switches.warm_up_seconds

    @property
    def loading(self) -> bool:
        return asyncio.get_running_loop().time() < self._ready_at


class Manners:
    """How one engine behaves where they differ."""

    flags: tuple[str, ...] = ()
    """Flags with a value, besides the model; all others are refused, as the real one does."""
    switches: tuple[str, ...] = ()
    """Flags without."""
    names = ("--served-model-name", "--host", "--port")
    """Its flags for the model's name, the address and the port."""
    program = ""
    owned_by = ""
    taken = "couldn't bind HTTP server socket"
    """What it says of a port that is taken."""
    binds_first = False
    """It takes its port before it loads, and listens after."""

    def answer(self, engine: FakeEngine, path: str) -> tuple[int, object]:
        """Answer a probe of an engine that has loaded."""
        match path:
            case "/health":
                return (503, "") if engine.dead else (200, "")
            case "/v1/models":
                common = {"object": "model", "created": CREATED, "owned_by": self.owned_by}
                models = [{**common, "id": engine.alias, "root": "/weights", "parent": None}]
                for name, place in engine.adapters.items():
                    models.append({**common, "id": name, "root": place, "parent": engine.alias})
                return 200, {"object": "list", "data": models}
            case "/metrics":
                return 200, self.metrics(engine)
            case _:
                return 404, {"error": "no such path"}

    lora = ""
    """What stands before `load_lora_adapter` in its path; empty for an engine without."""

    def change_adapters(self, engine: FakeEngine, path: str, body: dict[str, object]) -> tuple[int, object]:
        """Take or drop a LoRA adapter."""
        name, place = str(body.get("lora_name")), str(body.get("lora_path"))
        if path.endswith("/unload_lora_adapter"):
            if name not in engine.adapters:
                return self.adapter_fault(404, f"The lora adapter '{name}' cannot be found.")
            del engine.adapters[name]
            return 200, f"Success: LoRA adapter '{name}' removed successfully."
        if name in engine.adapters and not self.replaces(body):
            return self.adapter_fault(400, f"The lora adapter '{name}' has already been loaded.")
        if not Path(place).is_dir():
            return self.adapter_fault(404, f"Loading lora {name} failed: No adapter found for <path>")
        engine.adapters[name] = place
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def adapter_fault(self, status: int, text: str) -> tuple[int, object]:
        raise NotImplementedError

    def replaces(self, body: dict[str, object]) -> bool:
        return body.get("load_inplace") is True

    def adapter_asked_for(self, engine: FakeEngine, model: str) -> str:
        """Return the adapter that a request names as its model; empty for none."""
        return model if model in engine.adapters else ""

    def metrics(self, engine: FakeEngine) -> str:
        raise NotImplementedError

    def die(self, engine: FakeEngine) -> None:
        """End as it does when what computes has died."""
        os._exit(1)

    def lose_peer(self, engine: FakeEngine) -> None:
        """Do what it does when another shard is gone."""
        self.die(engine)

    async def told_to_end(self, engine: FakeEngine) -> None:
        """Do what it does between SIGTERM and its end."""

    def complaint(self, options: argparse.Namespace) -> str:
        """Say why it refuses these arguments, which its parser takes; empty if it does not."""
        return ""

    def gang(self, options: argparse.Namespace) -> "Gang | None":
        """Return the shards that it belongs to, if there are several."""
        return None

    def serves(self, options: argparse.Namespace) -> bool:
        """Whether it listens for HTTP."""
        return True


class LlamaCpp(Manners):
    owned_by = "llamacpp"

    def answer(self, engine: FakeEngine, path: str) -> tuple[int, object]:
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/slots":
            busy = engine.seen.active > 0
            return 200, [{"id": 0, "is_processing": busy, "next_token": [{"n_decoded": engine.events}]}]
        return super().answer(engine, path)

    def metrics(self, engine: FakeEngine) -> str:
        return (
            f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {engine.seen.active}\n"
            "llamacpp:requests_deferred 0\nllamacpp:prompt_tokens_total 0\n"
            f"llamacpp:tokens_predicted_total {engine.events - engine.events % 1000}\n"
        )


class Vllm(Manners):
    flags = (
        *("--api-server-count", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"),
        *("--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rpc-port"),
        *("--data-parallel-start-rank", "--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr"),
        *("--master-port", "--max-model-len", "--gpu-memory-utilization", "--max-lora-rank"),
    )
    switches = ("--headless", "--enforce-eager", "--enable-prompt-tokens-details", "--enable-lora")
    lora = "/v1" if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1" else ""
    program = "vllm"
    owned_by = "vllm"
    taken = "OSError: [Errno 98] Address already in use"
    binds_first = True

    def metrics(self, engine: FakeEngine) -> str:
        labels = f'{{engine="0",model_name="{engine.alias}"}}'
        return (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {engine.seen.active}.0\n"
            f"vllm:num_requests_waiting{labels} 0.0\nvllm:prompt_tokens_total{labels} {3 * engine.seen.requests}.0\n"
            f"vllm:generation_tokens_total{labels} {engine.events}.0\n"
        )

    def die(self, engine: FakeEngine) -> None:
        print(
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", file=sys.stderr, flush=True
        )
        engine.dead = True
        asyncio.get_running_loop().call_later(0.5, os._exit, 0)  # the real one: within 5 s

    def lose_peer(self, engine: FakeEngine) -> None:
        """An idle one notices nothing, however long, and a follower never; `/health` says 200."""
        engine.alone = True
        if engine.seen.active:
            self.die(engine)

    async def told_to_end(self, engine: FakeEngine) -> None:
        """What runs is ended as if it were whole, but for its reason."""
        for connection in [one for one in engine.connections if one.generating]:
            connection.abort()
        await asyncio.sleep(0.1)

    def adapter_fault(self, status: int, text: str) -> tuple[int, object]:
        kind = {400: "InvalidUserInput", 404: "NotFoundError"}[status]
        if status == 400:
            text += " If you want to load the adapter in place, set 'load_inplace' to True."
        return status, {"error": {"message": text, "type": kind, "param": None, "code": status}}

    def complaint(self, options: argparse.Namespace) -> str:
        if options.headless and options.api_server_count is not None:
            return "ValueError: --api-server-count cannot be used with --headless"
        if int(options.nnodes or 1) > 1 and options.distributed_executor_backend not in {"mp", "uni", None}:
            return "pydantic_core._pydantic_core.ValidationError: nnodes > 1 can only be set when the backend is mp"
        return ""

    def gang(self, options: argparse.Namespace) -> "Gang | None":
        count = int(options.nnodes or 1)
        if count == 1:
            return None
        return Gang(int(options.node_rank), count, options.master_addr, int(options.master_port))

    def serves(self, options: argparse.Namespace) -> bool:
        return not options.headless


class Sglang(Manners):
    flags = (
        *("--model-path", "--tp-size", "--pp-size", "--dp-size", "--nccl-port", "--nnodes", "--node-rank"),
        *("--dist-init-addr", "--mem-fraction-static", "--context-length", "--max-lora-rank", "--lora-target-modules"),
    )
    switches = ("--enable-metrics", "--enable-cache-report", "--is-embedding", "--enable-lora")
    program = "sglang"
    owned_by = "sglang"
    taken = "[Errno 98] error while attempting to bind on address: address already in use"

    def __init__(self) -> None:
        self.counts = False
        self.rank = 0
        self.ending = False

    def complaint(self, options: argparse.Namespace) -> str:
        self.counts, self.rank = options.enable_metrics, int(options.node_rank or 0)
        self.lora = "/" if options.enable_lora else ""
        if options.enable_lora and not (options.max_lora_rank and options.lora_target_modules):
            return "AssertionError: you need to specify both --max-lora-rank and --lora-target-modules"
        several, copies = int(options.nnodes or 1) > 1, int(options.dp_size or 1) > 1
        if several and copies:
            return "AssertionError: multi-node data-parallel replicas are not supported"
        if copies and options.nccl_port is not None:
            return "OSError: [Errno 98] address already in use: every copy was given one --nccl-port"
        return ""

    def replaces(self, body: dict[str, object]) -> bool:
        return False

    def adapter_fault(self, status: int, text: str) -> tuple[int, object]:
        return 400, {"success": False, "error_message": text}

    def adapter_asked_for(self, engine: FakeEngine, model: str) -> str:
        name = model.partition(":")[2]
        return name if name in engine.adapters else ""

    async def told_to_end(self, engine: FakeEngine) -> None:
        """It takes requests on and says that it is not well, and ends once none runs, however long that takes."""
        self.ending = True
        while True:
            await asyncio.sleep(engine.switches.drain_poll)
            if not engine.seen.active:
                return

    def answer(self, engine: FakeEngine, path: str) -> tuple[int, object]:
        if path == "/health" and self.rank == 0 and (self.ending or engine.warming_up):
            return 503, ""
        if path == "/metrics" and not self.counts:
            return 404, {"detail": "Not Found"}
        if self.rank > 0 and path != "/health":
            return 404, {"detail": "Not Found"}
        return super().answer(engine, path)

    def metrics(self, engine: FakeEngine) -> str:
        stage = f'{{engine_type="unified",model_name="{engine.alias}",pp_rank="0",tp_rank="0"}}'
        # the counters move at the end of a request, the gauge every 40 tokens
        done = engine.events if not engine.seen.active else 0
        return (
            f"sglang:num_running_reqs{stage} {engine.seen.active}.0\nsglang:num_queue_reqs{stage} 0.0\n"
            f"sglang:num_used_tokens{stage} {engine.events - engine.events % 40}.0\n"
            f'sglang:generation_tokens_total{{is_streaming="true",model_name="{engine.alias}"}} {done}.0\n'
        )

    def die(self, engine: FakeEngine) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def gang(self, options: argparse.Namespace) -> "Gang | None":
        count = int(options.nnodes or 1)
        if count == 1:
            return None
        host, _, port = options.dist_init_addr.rpartition(":")
        return Gang(int(options.node_rank), count, host, int(port))


class Tei(Manners):
    flags = ("--model-id", "--prometheus-port", "--uds-path", "--pooling", "--max-batch-tokens")
    names = ("--served-model-name", "--hostname", "--port")
    program = "text-embeddings-router"
    taken = "Error: Could not bind TCP Listener"

    def answer(self, engine: FakeEngine, path: str) -> tuple[int, object]:
        return (404, {"error": "no such path"}) if path == "/v1/models" else super().answer(engine, path)

    def metrics(self, engine: FakeEngine) -> str:
        return f'te_request_count{{method="single"}} {engine.seen.requests}\nte_queue_size 0\n'


KINDS: dict[str, type[Manners]] = {"vllm": Vllm, "sglang": Sglang, "tei": Tei}


@dataclass
class Gang:
    """The shards of one replica: they meet at the head's port, and hold on to each other by their connections."""

    rank: int
    count: int
    host: str
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Of rank 0: its connections to the others."""

    def tell_to_end(self) -> None:
        """End the others, as SGLang's rank 0 does before it ends."""
        for writer in self.writers:
            writer.write(b"end\n")

    async def meet(self, lost: Callable[[], None]) -> None:
        """Wait until all have come. `lost` is called when one of them is gone."""
        if self.rank > 0:
            await self._join(lost)
            return
        come, writers = asyncio.Semaphore(0), self.writers

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writers.append(writer)
            come.release()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            lost()

        self.server = await asyncio.start_server(welcome, self.host, self.port)
        print(f"fake engine: rank 0 of {self.count} waits at {self.host}:{self.port}", file=sys.stderr, flush=True)
        for _ in range(self.count - 1):
            await come.acquire()
        for writer in writers:
            writer.write(b"all here\n")

    async def _join(self, lost: Callable[[], None]) -> None:
        tie = Tie(self.rank, lost)
        while tie.transport is None:
            try:
                await asyncio.get_running_loop().create_connection(lambda: tie, self.host, self.port)
            except OSError:
                await asyncio.sleep(0.1)
        await tie.all_here.wait()


class Tie(asyncio.Protocol):
    """A shard's connection to the head of its replica."""

    def __init__(self, rank: int, lost: Callable[[], None]) -> None:
        self.rank = rank
        self.lost = lost
        self.all_here = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(f"rank {self.rank}\n".encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if b"end\n" in data:
            os._exit(0)
        self.all_here.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost()


class Connection(asyncio.Protocol):
    """One client's connection; one request at a time."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.served = 0
        self.generating = False
        self.upgraded = False
        self.timer: asyncio.TimerHandle | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.on_message_begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.engine.seen.connections += 1
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        for timer in (self.timer, self.idle):
            if timer is not None:
                timer.cancel()
        if self.generating:
            self.finish_generation()
            self.engine.seen.cancelled += 1

    def data_received(self, data: bytes) -> None:
        if self.upgraded:
            self.transport.write(data)  # its WebSocket says back whatever it hears
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.transport.abort()
        if self.engine.switches.read_slowly:
            self.transport.pause_reading()

    def upgrade(self, rest: bytes) -> None:
        """Become a WebSocket, or refuse to."""
        self.engine.seen.last_path = self.url.decode()
        self.engine.seen.last_headers = self.headers
        if self.engine.switches.status is not None:
            self.answer(self.engine.switches.status, {"error": "no WebSockets here"})
            self.transport.close()
            return
        self.upgraded = True
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n" + rest
        )

    def reread(self) -> None:
        if not self.engine.switches.read_slowly:
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.idle is not None:
            self.idle.cancel()
        self.served += 1
        path = self.url.decode().partition("?")[0]
        if self.is_silent(path):
            return
        answer = self.own_answer(path)
        if answer is not None:
            status, document = answer
            text = document if isinstance(document, str) else json.dumps(document)
            self.transport.write(json_head(status, len(text.encode())) + text.encode())
            self.done()
        elif self.engine.loading:
            self.answer(503, LOADING)
        else:
            self.generate()

    # What is not a generation

    def is_silent(self, path: str) -> bool:
        engine, switches = self.engine, self.engine.switches
        if path == "/health":
            return switches.no_health and not engine.loading
        return path in {"/metrics", "/slots"} and switches.silent_metrics and engine.wedged

    def own_answer(self, path: str) -> tuple[int, object] | None:
        engine, switches = self.engine, self.engine.switches
        if path == "/seen":
            return 200, asdict(engine.seen)
        if path == "/switches":
            try:
                engine.throw(**json.loads(bytes(self.body) or b"{}"))
            except (KeyError, ValueError) as error:
                return 400, {"error": repr(error)}
            return 200, asdict(switches)
        if path == "/health" and switches.health_status is not None:
            engine.seen.probes += 1
            return switches.health_status, {"status": "told"}
        lora = engine.manners.lora.rstrip("/")
        if engine.manners.lora and path in {f"{lora}/load_lora_adapter", f"{lora}/unload_lora_adapter"}:
            return engine.manners.change_adapters(engine, path, json.loads(bytes(self.body)))
        if path not in {"/health", "/v1/models", "/metrics", "/slots"}:
            return None
        engine.seen.probes += 1
        return (503, LOADING) if engine.loading else engine.manners.answer(engine, path)

    def answer(self, status: int, document: object) -> None:
        text = json.dumps(document).encode()
        self.transport.write(json_head(status, len(text)) + text)
        self.done()

    def done(self) -> None:
        after = self.engine.switches.keepalive_close_after
        if after is not None:
            self.idle = asyncio.get_running_loop().call_later(after, self.transport.close)

    # Generations

    def generate(self) -> None:
        engine, switches, seen = self.engine, self.engine.switches, self.engine.seen
        if switches.die_before_headers or (switches.refuse_reused and self.served > 1):
            self.transport.close()
            return
        body = bytes(self.body)
        seen.requests += 1
        seen.active += 1
        seen.last_path = self.url.decode()
        seen.last_headers = self.headers
        seen.last_body = body.decode("utf-8", "replace")
        seen.bodies.append(seen.last_body[:1000])
        self.generating = True
        if switches.stall_before_headers:
            return
        if engine.alone:
            self.finish_generation()
            fault = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None}
            self.answer(500, {"error": {**fault, "code": 500}})
            engine.manners.die(engine)
            return
        if switches.stall_before_first_byte:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            return
        if switches.knows and not path_of(self.url).endswith(f"/{switches.knows}"):
            self.finish_generation()
            self.answer(404, {"error": {"message": "no such response", "code": "not_found"}})
        elif switches.status is not None:
            text = switches.error_body.encode()
            self.finish_generation()
            self.transport.write(json_head(switches.status, len(text), "Retry-After: 7\r\n") + text)
            self.done()
        elif switches.echo_headers:
            self.finish_generation()
            self.answer(200, {"path": self.url.decode(), "headers": self.headers, "body": seen.last_body})
        elif b'"stream"' in body and json.loads(body).get("stream") is True:
            self.start_stream(json.loads(body))
        else:
            asked = json.loads(body).get("model", "") if engine.adapters and body.startswith(b"{") else ""
            name = engine.manners.adapter_asked_for(engine, asked) or engine.alias
            text = "x" * switches.body_bytes or f"{name} {os.getpid()} answers"
            self.whole_answer(text)

    def whole_answer(self, text: str) -> None:
        path = path_of(self.url)
        if path == "/v1/audio/speech":
            self.finish_generation()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: {len(text)}\r\n\r\n"
            self.transport.write(head.encode() + text.encode())
            self.done()
            return
        whole = whole_of(path, self.engine.alias, text)
        if self.engine.switches.abort_after is not None:
            whole["choices"] = [{**one, "finish_reason": "abort"} for one in whole["choices"]]  # type: ignore[attr-defined]
        document = json.dumps(whole, separators=(",", ":")).encode()
        head = json_head(200, len(document))
        if self.engine.switches.die_after is not None:
            self.transport.write(head + document[: len(document) // 2])
            self.die()
            return
        self.finish_generation()
        self.transport.write(head + document)
        self.done()

    def start_stream(self, request: dict[str, object]) -> None:
        self.request = request
        self.count = 0
        end = "Connection: close\r\n" if self.engine.switches.unframed else "Transfer-Encoding: chunked\r\n"
        self.transport.write(
            f"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
            f"Access-Control-Allow-Origin: \r\n{end}\r\n".encode()
        )
        self.step()

    def step(self) -> None:
        """Write events until it is time to wait."""
        switches = self.engine.switches
        while not self.transport.is_closing():
            if switches.stall_after == self.count or self.engine.wedged:
                return
            if switches.bad_chunk_after == self.count:
                self.transport.write(b"zz\r\nnot a chunk\r\n")
                return
            if switches.die_after == self.count:
                self.die()
                return
            if switches.abort_after == self.count:
                self.abort()
                return
            if self.count >= switches.chunks:
                self.end_stream()
                return
            self.piece(self.count)
            self.count += 1
            self.engine.events += 1
            if switches.chunk_interval:
                self.timer = asyncio.get_running_loop().call_later(switches.chunk_interval, self.step)
                return

    def chunk_document(self, number: int) -> dict[str, object]:
        engine = self.engine
        text = engine.switches.chunk_text or f"{engine.alias} {os.getpid()} token{number} "
        delta: dict[str, object] = {"content": text} if number else {"role": "assistant", "content": text}
        choice = {"index": 0, "delta": delta, "text": text, "finish_reason": None}
        return {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": engine.alias,
            "choices": [choice],
        }

    def piece(self, number: int) -> None:
        """Write one event, and what its family has before the first."""
        text = self.engine.switches.chunk_text or f"{self.engine.alias} {os.getpid()} token{number} "
        match path_of(self.url):
            case "/v1/messages":
                if number == 0:
                    whole = whole_of("/v1/messages", self.engine.alias, "")
                    self.named("message_start", message={**whole, "content": [], "stop_reason": None})
                    self.named("content_block_start", index=0, content_block={"type": "text", "text": ""})
                self.named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
            case "/v1/responses":
                if number == 0:
                    self.named("response.created", response=response_of(self.engine.alias, "in_progress", [], None))
                delta = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text, "logprobs": []}
                self.named("response.output_text.delta", sequence_number=number, **delta)
            case _:
                self.event(self.chunk_document(number))

    def named(self, kind: str, **fields: object) -> None:
        self.frame(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())

    def abort(self) -> None:
        """End a stream of chunks here, as vLLM does when it is told to end."""
        if self.timer is not None:
            self.timer.cancel()
        self.end_stream("abort")

    def end_stream(self, reason: str = "stop") -> None:
        path = path_of(self.url)
        if path == "/v1/messages":
            self.named("content_block_stop", index=0)
            self.named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": self.count})
            self.named("message_stop")
            self.close_stream()
            return
        if path == "/v1/responses":
            done = whole_of(path, self.engine.alias, "all of it")
            self.named("response.completed", sequence_number=self.count, response=done)
            self.close_stream()
            return
        last = self.chunk_document(self.count)
        last["choices"] = [{"index": 0, "delta": {}, "text": "", "finish_reason": reason}]
        self.event(last)
        options = self.request.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            usage = {"prompt_tokens": 3, "completion_tokens": self.count, "total_tokens": 3 + self.count}
            self.event({**last, "choices": [], "usage": usage})
        self.frame(b"data: [DONE]\n\n")
        self.close_stream()

    def close_stream(self) -> None:
        self.finish_generation()
        if self.engine.switches.unframed:
            self.transport.close()
        else:
            self.transport.write(b"0\r\n\r\n")
            self.done()

    def event(self, document: dict[str, object]) -> None:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        self.frame(b"data: " + text.encode() + b"\n\n")

    def frame(self, data: bytes) -> None:
        pieces = [data[i : i + 1] for i in range(len(data))] if self.engine.switches.split_utf8 else [data]
        for piece in pieces:
            self.transport.write(piece if self.engine.switches.unframed else b"%x\r\n%b\r\n" % (len(piece), piece))

    def die(self) -> None:
        match self.engine.switches.die_how:
            case "rst":
                self.flush_then_reset()
            case "clean_eof":
                self.close_stream()
            case _:
                self.finish_generation()
                self.transport.close()

    def flush_then_reset(self) -> None:
        """Reset once the kernel has taken all; linger 0 makes the close a reset."""
        if self.transport.get_write_buffer_size():
            self.timer = asyncio.get_running_loop().call_later(0.005, self.flush_then_reset)
            return
        self.finish_generation()
        self.timer = asyncio.get_running_loop().call_later(0.02, self.reset)

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def finish_generation(self) -> None:
        if self.generating:
            self.generating = False
            self.engine.seen.active -= 1


@asynccontextmanager
async def running_engine(alias: str = "m", path: str | None = None, **switches: object) -> AsyncIterator[FakeEngine]:
    """Run an engine in this loop, on a free port of 127.0.0.1 or on a Unix socket."""
    engine = FakeEngine(alias, Switches(**switches))  # type: ignore[arg-type]
    await engine.start(path=path)
    try:
        yield engine
    finally:
        await engine.stop()


def parse(argv: list[str]) -> tuple[argparse.Namespace, Switches]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("-a", "--alias", default="m")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--unix", default=None, help="listen on this socket instead")
    take_switches(parser)
    options, _ = parser.parse_known_args(argv)
    return options, switches_of(options)


def parse_as(kind: str, manners: Manners, argv: list[str]) -> tuple[argparse.Namespace, Switches]:
    """Read the flags of another engine; as it does, end with status 2 for one that it does not know."""
    parser = argparse.ArgumentParser(prog=manners.program, allow_abbrev=False)
    if kind == "vllm":
        parser.add_argument("model")
    name, host, port = manners.names
    parser.add_argument(name, dest="alias", required=True)
    parser.add_argument(host, dest="host", default="127.0.0.1")
    parser.add_argument(port, dest="port", type=int, default=8000)
    for flag in manners.flags:
        parser.add_argument(flag, default=None)
    for flag in manners.switches:
        parser.add_argument(flag, action="store_true")
    take_switches(parser)
    options = parser.parse_args(argv)
    complaint = manners.complaint(options)
    if complaint:
        print(complaint, file=sys.stderr, flush=True)
        sys.exit(1)
    return options, switches_of(options)


def take_switches(parser: argparse.ArgumentParser) -> None:
    for switch in fields(Switches):
        flag = "--" + switch.name.replace("_", "-")
        kind = str(switch.type)
        if switch.type is bool:
            parser.add_argument(flag, action="store_true")
        else:
            parse_value = float if "float" in kind else int if "int" in kind else str
            parser.add_argument(flag, type=parse_value, default=switch.default)


def switches_of(options: argparse.Namespace) -> Switches:
    return Switches(**{switch.name: getattr(options, switch.name) for switch in fields(Switches)})


async def serve_as(kind: str, manners: Manners, options: argparse.Namespace, switches: Switches) -> None:
    """Load, meet the other shards, and only then listen."""
    loading = switches.load_seconds
    switches.load_seconds = 0.0
    engine = FakeEngine(options.alias, switches, manners)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    gang = manners.gang(options)
    deaf = switches.ignore_sigterm or (kind == "sglang" and gang is not None and gang.rank > 0)
    bound = None
    if manners.binds_first and manners.serves(options):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((options.host, options.port))
    # vLLM swallows SIGTERM while its engine starts
    loop.add_signal_handler(signal.SIGTERM, lambda: None)

    def lost() -> None:
        if not switches.hang_with_gang and not ended.is_set():
            manners.lose_peer(engine)

    await asyncio.sleep(loading)
    if gang is not None:
        await gang.meet(lost)
    if switches.engine_dies_after is not None:
        loop.call_later(switches.engine_dies_after, manners.die, engine)
    if not deaf:
        loop.add_signal_handler(signal.SIGTERM, ended.set)
    if manners.serves(options):
        if bound is not None:
            bound.close()  # it listens on the same address; nobody gets in between on a test's own port
        await engine.start(options.host, options.port)
        print(f"Starting {kind} server on http://{options.host}:{engine.port}", file=sys.stderr, flush=True)
    await ended.wait()
    await manners.told_to_end(engine)
    if kind == "sglang" and gang is not None:
        gang.tell_to_end()
        await asyncio.sleep(0)
    os._exit(0)


async def serve(options: argparse.Namespace, switches: Switches) -> None:
    engine = FakeEngine(options.alias, switches)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if switches.ignore_sigterm else ended.set)
    await engine.start(options.host, options.port, options.unix)
    where = options.unix or f"http://{options.host}:{engine.port}"
    print(f"main: server is listening on {where}", file=sys.stderr, flush=True)
    await ended.wait()
    await engine.stop()


def main() -> None:
    kind = sys.argv[2] if sys.argv[1:2] == ["--as"] else ""
    manners = KINDS[kind]() if kind else LlamaCpp()
    if kind:
        print(f"fake engine: {json.dumps(sys.argv[1:])}", file=sys.stderr, flush=True)
    options, switches = parse_as(kind, manners, sys.argv[3:]) if kind else parse(sys.argv[1:])
    if switches.exit_at_once is not None:
        print(f"fake engine: ends at once with {switches.exit_at_once}", file=sys.stderr, flush=True)
        sys.exit(switches.exit_at_once)
    if switches.spawn_child:
        subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! >&2"], check=True)
    try:
        asyncio.run(serve_as(kind, manners, options, switches) if kind else serve(options, switches))
    except OSError as error:
        print(f"main: {manners.taken}, {error}" if not kind else manners.taken, file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
