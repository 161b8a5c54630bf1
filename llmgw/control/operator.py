"""The part of the admin API that operators use besides status, plan and logs.

`GET /v1/acts` · `POST /v1/acts` `{"kind", "target", "reason", "until", "by"}` · `DELETE /v1/acts?target=` ·
`POST /v1/forget` `{"node", "reason", "by"}` · `GET /v1/explain?model=` · `GET /v1/gpus` · `GET /v1/endpoints` ·
`GET /v1/events?limit=&since=&subject=`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from llmgw.base.ids import ModelName, NodeName, ReplicaId
from llmgw.base.time import Clock, Instant
from llmgw.control.acts import Acts, CannotAct, until_of, wanted_acts, why_not_taken_back
from llmgw.control.overview import act_row, endpoint_rows, gpu_rows
from llmgw.control.peers import by_of
from llmgw.control.requests import line_from
from llmgw.fleet.static import StaticEndpoint
from llmgw.plan.explain import Explanation, explain
from llmgw.plan.snapshot import Snapshot
from llmgw.plan.suspended import in_words
from llmgw.ports.sinks import EventSource, StoreUnavailable

MOST_EVENTS = 10_000

Answer = Callable[[web.Request], Awaitable[web.Response]]


class OperatorApi:
    """The routes. `snapshot` returns what a decision would see now; `wake` asks for a decision soon."""

    def __init__(
        self,
        acts: Acts,
        events: EventSource,
        clock: Clock,
        snapshot: Callable[[], Snapshot | None],
        leader: Callable[[], str],
        wake: Callable[[], None],
        forget: Callable[[NodeName, str, str], tuple[ReplicaId, ...]],
        static: tuple[StaticEndpoint, ...] = (),
    ) -> None:
        """`leader` returns why this control plane may not decide; empty if it may.

        `forget` gives up a node, by its name, who asks and why; it returns the replicas that may still run there.
        """
        self._acts = acts
        self._events = events
        self._clock = clock
        self._snapshot = snapshot
        self._leader = leader
        self._wake = wake
        self._forget = forget
        self._static = static

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/v1/acts", told(self._get_acts))
        app.router.add_post("/v1/acts", told(self._post_acts))
        app.router.add_delete("/v1/acts", told(self._delete_acts))
        app.router.add_post("/v1/forget", told(self._post_forget))
        app.router.add_get("/v1/explain", told(self._get_explain))
        app.router.add_get("/v1/gpus", told(self._get_gpus))
        app.router.add_get("/v1/endpoints", told(self._get_endpoints))
        app.router.add_get("/v1/events", told(self._get_events))

    async def _get_acts(self, _: web.Request) -> web.Response:
        now = self._clock.now()
        return web.json_response({"acts": [act_row(act, now) for act in self._acts.current or ()]})

    async def _post_acts(self, request: web.Request) -> web.Response:
        asked = await object_from(request, '{"kind": …, "target": …, "reason": …}')
        self._must_lead()
        now = self._clock.now()
        snapshot = self._seen()
        acts = wanted_acts(snapshot, {**asked, "by": by_of(request, line_from(asked, "by"))}, now)
        await self._acts.add(acts)
        self._wake()
        suspended = {"suspended": in_words(snapshot.suspended)} if snapshot.suspended is not None else {}
        return web.json_response({"acts": [act_row(act, now) for act in acts], **suspended})

    async def _delete_acts(self, request: web.Request) -> web.Response:
        target = request.query.get("target", "")
        self._must_lead()
        found = await self._acts.remove(target)
        if found is None:
            raise CannotAct(why_not_taken_back(self._snapshot(), target), 404)
        self._wake()
        return web.json_response({"acts": [act_row(found, self._clock.now())]})

    async def _post_forget(self, request: web.Request) -> web.Response:
        asked = await object_from(request, '{"node": …, "reason": …}')
        name, reason = line_from(asked, "node"), line_from(asked, "reason")
        if not reason:
            raise CannotAct(f"say why, for whoever reads it later: llmgw forget node/{name} --reason TEXT")
        self._must_lead()
        lost = self._forget(NodeName(name), by_of(request, line_from(asked, "by")), reason)
        return web.json_response({"node": name, "replicas": list(lost)})

    async def _get_explain(self, request: web.Request) -> web.Response:
        snapshot, name = self._seen(), ModelName(request.query.get("model", ""))
        if name not in snapshot.catalog.models:
            known = ", ".join(sorted(snapshot.catalog.models)) or "none"
            raise CannotAct(f"there is no model {name!r}; there are: {known}", 404)
        return web.json_response(explained(explain(snapshot, name), snapshot.now))

    async def _get_gpus(self, _: web.Request) -> web.Response:
        return web.json_response({"gpus": gpu_rows(self._seen())})

    async def _get_endpoints(self, _: web.Request) -> web.Response:
        return web.json_response({"endpoints": endpoint_rows(self._seen(), self._static)})

    async def _get_events(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MOST_EVENTS):
            raise CannotAct(f"limit is a whole number from 1 to {MOST_EVENTS}")
        now, text = self._clock.now(), request.query.get("since", "")
        since = since_of(text, now) if text else None
        events = await self._events.events(int(limit), since, request.query.get("subject", ""))
        return web.json_response({"events": [{**asdict(one), "age": now - one.at} for one in events]})

    def _seen(self) -> Snapshot:
        snapshot = self._snapshot()
        if snapshot is None:
            raise CannotAct("there is no valid revision yet; `llmgw status` shows why", 503)
        return snapshot

    def _must_lead(self) -> None:
        why = self._leader()
        if why:
            raise CannotAct(why, 503)


def explained(one: Explanation, now: float) -> dict[str, Any]:
    """Return an explanation in the published format."""
    return {
        "model": one.model,
        "wanted": one.wanted,
        "serving": one.serving,
        "missing": one.missing,
        "replicas": [{"replica": name, "node": node, "does": does} for name, node, does in one.there],
        "held": [{"subject": each.subject, "what": each.what, "waits_for": each.waits_for} for each in one.holds],
        "nodes": dict(one.nodes),
        "cannot": list(one.cannot),
        "moves": [{"replica": each.replica, "from": each.source, "to": each.target} for each in one.moves],
        "preempts": list(one.preempts),
        "rollout": {"age": now - one.rollout.since, "failed": one.rollout.failed or None} if one.rollout else None,
    }


async def object_from(request: web.Request, form: str) -> dict[str, object]:
    """Return the object that a request holds. Raises CannotAct."""
    try:
        asked = await request.json()
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise CannotAct(f"the request must be {form}")
    return asked


def since_of(text: str, now: Instant, option: str = "--since") -> Instant:
    """Return the instant that `2h` (ago) or `2026-12-24T18:00Z` names. Raises CannotAct."""
    try:
        if text.endswith("Z"):
            return until_of(text, Instant(0.0))
        return Instant(now - (until_of(text, now) - now))
    except CannotAct:
        raise CannotAct(f"{option} {text!r} is not understood; write 2h, or 2026-12-24T18:00Z") from None


def told(answer: Answer) -> Answer:
    """Return the route with what it raises told in one line."""

    async def route(request: web.Request) -> web.Response:
        try:
            return await answer(request)
        except CannotAct as error:
            return web.json_response({"error": str(error)}, status=error.status)
        except StoreUnavailable as error:
            kept = "" if request.method == "GET" else "; whether it was kept is seen in `llmgw status` when it can"
            text = f"the store cannot be used now: {error}{kept}"
            return web.json_response({"error": text}, status=503)

    return route
