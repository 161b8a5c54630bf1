"""The admin API's part for plans that are kept: the snapshot to plan from elsewhere, saved plans, and whether one still holds.

`GET /v1/snapshot` · `POST /v1/plan/verify` `{"plan": a saved plan}` answers `{"id", "stale": [what changed], "holds"}` and
changes nothing. `POST /v1/plan` itself is `admin`'s; with `"save": true` (and `"valid_for"` in seconds) its answer has
`saved`, the file that `llmgw plan --out` writes.
"""

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from llmgw.base.ids import IdSource, ModelName
from llmgw.base.time import Clock
from llmgw.catalog.source import SourceTree
from llmgw.control.catalogs import Catalogs
from llmgw.control.plan_file import (
    USED,
    VALID_FOR,
    BadPlanFile,
    PlanFile,
    Terms,
    load_plan,
    plan_row,
    save,
    stale,
)
from llmgw.control.plan_rows import cold_starts
from llmgw.control.preview import Preview, as_json
from llmgw.control.requests import seconds_from
from llmgw.plan.result import Verb
from llmgw.plan.saved import dump_snapshot
from llmgw.plan.snapshot import Snapshot
from llmgw.ports.plans import PlanKeeper
from llmgw.ports.sinks import EventSource, StoreUnavailable

MOST_MODELS = 20
"""Models whose last cold start is looked up for one plan."""
MOST_EVENTS = 1000


class PlanApi:
    """The routes, and what `admin` asks for its answer to a plan."""

    def __init__(
        self,
        catalogs: Catalogs,
        snapshot: Callable[[], Snapshot | None],
        events: EventSource,
        keeper: PlanKeeper,
        clock: Clock,
        ids: IdSource,
        version: str,
    ) -> None:
        """`version` is that of this program, for saved plans."""
        self._catalogs = catalogs
        self._snapshot = snapshot
        self._events = events
        self._keeper = keeper
        self._clock = clock
        self._ids = ids
        self._version = version

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/v1/snapshot", self._get_snapshot)
        app.router.add_post("/v1/plan/verify", self._post_verify)

    async def answer(self, shown: Preview, tree: SourceTree | None, body: Any) -> dict[str, Any]:
        """Return the answer to a plan of `tree`, None for the one in force; with the plan as a file if `body` asks for it.

        Raises BadRequest.
        """
        row = as_json(shown, await self._cold_starts(shown))
        asked = isinstance(body, dict) and body.get("save") is True
        if asked and tree is not None and shown.decision is not None and not shown.supposed and not shown.violations:
            valid_for = seconds_from(body, "valid_for")
            if valid_for is None or valid_for <= 0:
                valid_for = VALID_FOR
            terms = Terms(self._ids.new(), self._clock.now(), valid_for, self._version)
            there = shown.decision.there
            row["saved"] = plan_row(save(shown.decision.plan, there, self._catalogs.state.value.tree, tree, terms))
        return row

    async def take(self, plan: PlanFile) -> tuple[str, ...]:
        """Take a saved plan for used if it holds; return why it does not, and then it is not used. Raises StoreUnavailable.

        For an apply, under the lease and in its turn, right before the first effect. It is looked at again once it is
        taken, since the store takes its time: what changed in that moment makes it stale, and it stays used.
        """
        found = await self.refusals(plan)
        if found:
            return found
        if not await self._keeper.use_plan(plan.id, self._clock.now(), plan.expires):
            return (USED,)
        return self._stale(plan, frozenset())

    async def refusals(self, plan: PlanFile) -> tuple[str, ...]:
        """Return why a saved plan does not hold any more; nothing if it does. Raises StoreUnavailable."""
        return self._stale(plan, await self._keeper.used_plans())

    def _stale(self, plan: PlanFile, used: frozenset[str]) -> tuple[str, ...]:
        """Look at one moment: nothing may be awaited in between."""
        tree = self._catalogs.state.value.tree
        return stale(plan, self._snapshot(), tree, plan.desired_digest, used, self._clock.now())

    async def _get_snapshot(self, _: web.Request) -> web.Response:
        snapshot, tree = self._snapshot(), self._catalogs.state.value.tree
        if snapshot is None or tree is None:
            return _refuse(503, "there is no valid revision yet; `llmgw status` shows why")
        return web.json_response(dump_snapshot(snapshot, tree))

    async def _post_verify(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("plan"), dict):
            return _refuse(400, 'the request must be {"plan": {…}}, as `llmgw plan --out` writes it')
        try:
            plan = load_plan(json.dumps(body["plan"]))
            found = await self.refusals(plan)
        except BadPlanFile as error:
            return _refuse(422, f"this is no plan that can be applied: {error}")
        except StoreUnavailable as error:
            return _refuse(503, f"the store cannot be used now: {error}; try again when it can (`llmgw status`)")
        return web.json_response(
            {
                "id": plan.id,
                "holds": not found,
                "stale": list(found),
                "revision": plan.revision,
                "expires_in": plan.expires - self._clock.now(),
            }
        )

    async def _cold_starts(self, shown: Preview) -> dict[ModelName, float]:
        """Return how long each model that starts took last time, where events tell; a plan is not refused for want of it."""
        names = dict.fromkeys(action.model for action in shown.actions if action.verb is Verb.START)
        found: dict[ModelName, float] = {}
        try:
            for name in list(names)[:MOST_MODELS]:
                found |= cold_starts(await self._events.events(MOST_EVENTS, subject=f"model/{name}"))
        except StoreUnavailable:
            return found
        return found


def _refuse(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
