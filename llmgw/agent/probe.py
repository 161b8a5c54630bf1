"""Asking an engine whether it can serve, whether what answers is the engine we started, and what it is doing.

A 200 proves little: an orphan may still answer on the port, and two engines can share one. Before an engine counts as
ready, the listening socket must belong to its own session, and `/v1/models` must name the model it was started for. That is
proven again now and then, because a listener can die in a process that lives on, and another take its port.

A look has one time limit for all it asks, and every answer a size limit. What an engine answers about its requests may hold
prompts: it is hashed and dropped.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from llmgw.agent import figures, procfs
from llmgw.agent.liveness import SILENT, Pulse
from llmgw.agent.lora import change
from llmgw.base.ids import ShardId
from llmgw.engines.shard import LoraAdapter, ShardSpec
from llmgw.fleet.report import Reason

LIMIT = 5.0
"""Seconds for one probe in all; a busy engine answers late."""
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""An engine that listens everywhere is asked over loopback."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found. `lost` is a proof that what answers is not the engine, never a guess."""

    ready: bool
    text: str
    lost: Reason | None = None
    models: object = None
    """What the engine says it serves, where it was asked."""


class Prober:
    """Probes engines. One for the agent's life; `close` it.

    `owner` says which shard a process belongs to, by more than its session: a worker may lead one of its own.
    """

    def __init__(self, owner: Callable[[int], ShardId | None] = lambda _: None) -> None:
        self._owner = owner
        # a fresh connection each time: a kept one would hold on to an engine that is going away
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))

    async def close(self) -> None:
        """Close what is open."""
        await self._http.close()

    async def probe(self, spec: ShardSpec, pid: int, *, proof: bool) -> Verdict:
        """Ask once whether it can serve. With `proof`, also check who answers.

        A shard without HTTP counts as ready while its process lives: its head is ready only once every rank has loaded,
        and its end is told by the kernel.
        """
        return await self._ask(spec, pid, proof=proof) if spec.ready_path else Verdict(True, "")

    async def _ask(self, spec: ShardSpec, pid: int, *, proof: bool) -> Verdict:
        base = base_url(spec)
        body: object = None
        try:
            async with asyncio.timeout(LIMIT):
                async with self._http.get(base + spec.ready_path) as answer:
                    if answer.status != 200:
                        return self._owned(
                            spec, pid, Verdict(False, f"{spec.ready_path} answers {answer.status}"), proof
                        )
                if not proof:
                    return Verdict(True, "")
                if spec.models_path:
                    async with self._http.get(base + spec.models_path) as answer:
                        body = await answer.json(content_type=None)
        except TimeoutError:
            verdict = Verdict(False, f"{spec.ready_path} did not answer within {LIMIT:.0f} s")
            return self._owned(spec, pid, verdict, proof)
        except (aiohttp.ClientError, OSError) as error:
            return self._owned(spec, pid, Verdict(False, f"port {spec.port}: {type(error).__name__}"), proof)
        except (ValueError, RecursionError):
            return self._owned(spec, pid, Verdict(False, f"{spec.models_path} does not answer with JSON"), proof)
        verdict = self._owned(spec, pid, Verdict(True, ""), proof)
        if not verdict.ready or not spec.models_path:
            return verdict
        names = _names(body)
        if spec.served_name not in names:
            text = f"the engine serves {', '.join(sorted(names)) or 'nothing'}, not {spec.served_name}"
            return Verdict(False, text, Reason("wrong_model", text) if names else None)
        return replace(verdict, models=body)

    async def adapt(
        self, spec: ShardSpec, load: Sequence[tuple[LoraAdapter, Path]], unload: Sequence[str]
    ) -> Mapping[str, str]:
        """Give an engine adapters and take others away; return why it did not take some, by name."""
        return await change(self._http, base_url(spec), spec.lora, load, unload) if spec.lora is not None else {}

    async def pulse(self, spec: ShardSpec) -> Pulse | None:
        """Ask for the engine's own figures; None if it has none."""
        names = spec.metrics
        if names is None:
            return None
        base = base_url(spec)
        try:
            async with asyncio.timeout(LIMIT):
                page = await self._page(base + names.path)
                activity = await self._page(base + names.activity) if names.activity else None
        except (TimeoutError, aiohttp.ClientError, OSError):
            return SILENT
        return figures.pulse(names, page, activity)

    async def _page(self, url: str) -> bytes | None:
        """Return a page that answers 200. Raises TimeoutError, aiohttp.ClientError, OSError."""
        async with self._http.get(url) as answer:
            if answer.status != 200:
                return None
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > figures.LARGEST_PAGE:
                    return None
            return bytes(body)

    def _owned(self, spec: ShardSpec, pid: int, verdict: Verdict, proof: bool) -> Verdict:
        """Return the verdict, or a worse one if the port's listening socket is proven not to be the engine's."""
        try:
            return self._proven(spec, pid, verdict, proof)
        except OSError as error:  # nobody can tell, which proves nothing
            return Verdict(False, f"cannot look who listens on port {spec.port}: {error.strerror}")

    def _proven(self, spec: ShardSpec, pid: int, verdict: Verdict, proof: bool) -> Verdict:
        if not proof or procfs.listens_alone(pid, spec.port):
            return verdict
        owners = procfs.listeners(spec.port)
        session = set(procfs.members(pid)) if owners else set()
        strangers = [owner for owner in owners if owner not in session and self._owner(owner) != spec.shard]
        if strangers:
            who = ", ".join(f"{owner} ({procfs.command_of(owner)})" for owner in strangers)
            text = f"port {spec.port} is held by pid {who}, which is not the engine that was started"
            return Verdict(False, text, Reason("port_stolen", text))
        if not owners and spec.port in procfs.listening_ports():
            text = (
                f"port {spec.port} is held by a process that is not visible, which is not the engine that was started"
            )
            return Verdict(False, text, Reason("port_stolen", text))
        if not owners:
            text = f"nothing listens on port {spec.port} any more, though the engine's process lives"
            return Verdict(False, text if verdict.ready else verdict.text, Reason("port_lost", text))
        return verdict


def base_url(spec: ShardSpec) -> str:
    """Return where an engine is asked."""
    host = ANY_ADDRESS.get(spec.host, spec.host)
    return f"http://[{host}]:{spec.port}" if ":" in host else f"http://{host}:{spec.port}"


def _names(body: object) -> set[str]:
    if not isinstance(body, dict) or not isinstance(body.get("data"), list):
        return set()
    names: set[str] = set()
    for entry in body["data"]:
        if isinstance(entry, dict):
            aliases = entry.get("aliases")
            found = [entry.get("id"), *(aliases if isinstance(aliases, list) else ())]
            names.update(name for name in found if isinstance(name, str))
    return names
