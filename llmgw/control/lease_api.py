"""The lease over the admin API: `GET /v1/leader` · `POST /v1/lease/release` `{"epoch", "reason", "by"}`.

Any control plane answers, not only the one that leads: a leader that hangs is why somebody asks. The epoch is the proof
that the asker has looked: a lease that changed hands meanwhile is not taken from its new holder.
"""

from typing import Any

from aiohttp import web

from llmgw.base.ids import Epoch
from llmgw.base.time import Clock
from llmgw.control.leadership import Leadership
from llmgw.control.peers import by_of
from llmgw.control.requests import line_from
from llmgw.ports.sinks import Event, EventSink, StoreUnavailable


class LeaseApi:
    """The routes."""

    def __init__(self, leadership: Leadership, events: EventSink, clock: Clock) -> None:
        self._leadership = leadership
        self._events = events
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to the admin API."""
        return [web.get("/v1/leader", self._get), web.post("/v1/lease/release", self._post)]

    async def _get(self, _: web.Request) -> web.Response:
        return web.json_response({"leader": [leader_row(self._leadership)]})

    async def _post(self, request: web.Request) -> web.Response:
        try:
            asked = await request.json()
        except (ValueError, RecursionError):
            asked = None
        epoch = asked.get("epoch") if isinstance(asked, dict) else None
        if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 < epoch < 1 << 62:
            return web.json_response({"error": 'the request must be {"epoch": N, "reason": …, "by": …}'}, status=400)
        reason, by = line_from(asked, "reason", "no reason given"), by_of(request, line_from(asked, "by"))
        try:
            freed = await self._leadership.release_epoch(Epoch(epoch))
        except StoreUnavailable as error:
            return web.json_response({"error": f"the store cannot be used: {error}; mend it first"}, status=503)
        if not freed:
            text = f"no lease of epoch {epoch} is held; `llmgw get leader` shows the one that is"
            return web.json_response({"error": text}, status=409)
        text = f"{by} took the lease of epoch {epoch} away: {reason}"
        self._events.record(Event(self._clock.now(), "lease_released", "control", text, ""))
        return web.json_response({"released": epoch})


def leader_row(leadership: Leadership) -> dict[str, Any]:
    """Return who leads, as this control plane knows."""
    mine = leadership.epoch is not None
    return {
        "owner": leadership.owner if mine else leadership.leader,
        "epoch": leadership.epoch if mine else leadership.leaders_epoch,
        "here": mine,
        "asked": leadership.owner,
        "store": leadership.trouble or "ok",
        "changes": leadership.changes,
    }
