"""Asking an engine whether it can serve; and whether what answers is the engine we started.

A 200 proves little: an orphan may still answer on the port, and two engines can share one. Before an engine counts as
ready, the listening socket must belong to its own session, and `/v1/models` must name the model it was started for.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from llmgw.agent import procfs
from llmgw.engines.shard import ShardSpec

LIMIT = 5.0
"""Seconds for one probe in all; a busy engine answers late."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found."""

    ready: bool
    text: str


class Prober:
    """Probes engines over loopback. One for the agent's life; `close` it."""

    def __init__(self) -> None:
        # a fresh connection each time: a kept one would hold on to an engine that is going away
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))

    async def close(self) -> None:
        """Close what is open."""
        await self._http.close()

    async def probe(self, spec: ShardSpec, pid: int, *, proof: bool) -> Verdict:
        """Ask once. With `proof`, also check who answers."""
        base = f"http://127.0.0.1:{spec.port}"
        try:
            async with asyncio.timeout(LIMIT):
                async with self._http.get(base + spec.ready_path) as answer:
                    if answer.status != 200:
                        return Verdict(False, f"{spec.ready_path} answers {answer.status}")
                if not proof:
                    return Verdict(True, "")
                async with self._http.get(base + spec.models_path) as answer:
                    body = await answer.json(content_type=None)
        except TimeoutError:
            return Verdict(False, f"{spec.ready_path} did not answer within {LIMIT:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return Verdict(False, f"port {spec.port}: {type(error).__name__}")
        except (ValueError, RecursionError):
            return Verdict(False, f"{spec.models_path} does not answer with JSON")
        return self._identity(spec, pid, body)

    def _identity(self, spec: ShardSpec, pid: int, body: object) -> Verdict:
        owners = procfs.listeners(spec.port)
        session = set(procfs.members(pid))
        strangers = [owner for owner in owners if owner not in session]
        if strangers or not owners:
            who = (
                ", ".join(f"{owner} ({procfs.command_of(owner)})" for owner in strangers)
                or "a process that is not visible"
            )
            return Verdict(False, f"port {spec.port} is held by pid {who}, which is not the engine that was started")
        names = _names(body)
        if spec.served_name not in names:
            return Verdict(False, f"the engine serves {', '.join(sorted(names)) or 'nothing'}, not {spec.served_name}")
        return Verdict(True, "")


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
