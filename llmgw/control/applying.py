"""The admin API's part for revisions: what operators adopt, go back from, and suspend; and how far that is.

`POST /v1/apply` `{"revision" | "tree", "by", "allow_remove": ["model/foo"], "supersede": false,
"plan": a saved one, which must still hold and is used up}` answers at once with an id ·
`GET /v1/apply/ID` · `GET /v1/history` · `POST /v1/rollback` `{"revision", "by", "allow_remove"}` ·
`POST /v1/suspend` `{"reason", "until", "by"}` · `POST /v1/resume` `{"by"}`.

What a guard refuses has status 403, what stands against it now 409, an unknown revision 404, an invalid tree 422, and a
store that is away 503; always with `{"error": one line}`, and `guard` as data where a guard refused, `stale` where a
saved plan does not hold any more.
"""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from llmgw.base.time import Clock
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.control.adoption import Adoption
from llmgw.control.catalogs import Catalogs
from llmgw.control.peers import NOBODY, by_of
from llmgw.control.plan_api import PlanApi
from llmgw.control.plan_file import BadPlanFile, load_plan
from llmgw.control.reconcile import Reconciler
from llmgw.control.requests import line_from, names_from, revision_from, tree_from
from llmgw.control.revision_rows import (
    progress_row,
    record_row,
    refusal_row,
    revisions_row,
    suspension_row,
    waiting_row,
)
from llmgw.control.revisions import DEFAULT_SUSPENSION, CannotAdopt
from llmgw.ports.revisions import Record

MOST = 500


def adoption_row(adoption: Adoption, catalogs: Catalogs, clock: Clock) -> dict[str, Any]:
    """Return what the status shows of revisions, whatever their state is."""
    now = clock.now()
    attempted = adoption.attempted
    return {
        "revisions": revisions_row(adoption.revisions, now),
        "attempt": record_row(attempted, now) if attempted is not None else None,
        "waiting": waiting_row(catalogs.state.value.waiting),
        "by_operator": adoption.standing.held or None,
        "suspended": suspension_row(adoption.suspension, now),
    }


class ApplyApi:
    """The routes."""

    def __init__(self, adoption: Adoption, plans: PlanApi, reconciler: Reconciler, clock: Clock) -> None:
        self._adoption = adoption
        self._plans = plans
        self._reconciler = reconciler
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to an application."""
        return [
            web.post("/v1/apply", self._refusing(self._post_apply)),
            web.get("/v1/apply/{id}", self._get_apply),
            web.get("/v1/history", self._get_history),
            web.post("/v1/rollback", self._refusing(self._post_rollback)),
            web.post("/v1/suspend", self._refusing(self._post_suspend)),
            web.post("/v1/resume", self._refusing(self._post_resume)),
        ]

    def _refusing(self, handler: Callable[[Any], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                body = await request.json()
            except (ValueError, RecursionError):
                return _refuse(400, "the request must be a JSON object")
            try:
                if isinstance(body, dict):
                    body["by"] = by_of(request, line_from(body, "by"))
                shown = await handler(body)
            except CannotAdopt as error:
                refused = [refusal_row(one) for one in error.guard]
                told = {"error": str(error), "guard": refused, "stale": list(error.stale)}
                return web.json_response(told, status=error.status)
            return web.json_response(shown)

        return handle

    async def _post_apply(self, body: Any) -> dict[str, Any]:
        wanted: SourceTree | str | None = revision_from(body) or None
        if isinstance(body, dict) and "tree" in body:
            wanted = tree_from(body["tree"])
        if wanted is None:
            raise CannotAdopt(
                'the request must have "revision", or "tree": {"revision": …, "files": {path: base64}}', 400
            )
        record = await self._adoption.apply(
            wanted,
            line_from(body, "by", NOBODY),
            names_from(body, "allow_remove"),
            supersede=body.get("supersede") is True,
            last_check=self._saved_plan(body, wanted),
        )
        return self._row(record)

    def _saved_plan(self, body: Any, wanted: SourceTree | str) -> Callable[[], Awaitable[tuple[str, ...]]] | None:
        """Return what takes a saved plan for used, if the request is to carry one out."""
        if not isinstance(body, dict) or body.get("plan") is None:
            return None
        try:
            plan = load_plan(json.dumps(body["plan"]))
        except BadPlanFile as error:
            raise CannotAdopt(f"this is no plan that can be applied: {error}", 422) from error
        if isinstance(wanted, str) or tree_digest(wanted) != plan.desired_digest:
            raise CannotAdopt("the tree is not the one that the plan was made for; apply the plan's file as it is", 400)
        return partial(self._plans.take, plan)

    async def _get_apply(self, request: web.Request) -> web.Response:
        record = self._adoption.record(request.match_info["id"])
        if record is None:
            return _refuse(404, f"there is no apply {request.match_info['id']}; `llmgw history --json` has their ids")
        return web.json_response(self._row(record))

    async def _get_history(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 0 < int(limit) <= MOST):
            return _refuse(400, f"limit is a whole number from 1 to {MOST}")
        now = self._clock.now()
        rows = [record_row(one, now) for one in self._adoption.records[: int(limit)]]
        return web.json_response({"format_version": "1.0", "now": now, "revisions": rows})

    async def _post_rollback(self, body: Any) -> dict[str, Any]:
        done = await self._adoption.rollback(
            revision_from(body), line_from(body, "by", NOBODY), names_from(body, "allow_remove")
        )
        return {**self._row(done.record), "left": done.left, "revert": done.revert}

    async def _post_suspend(self, body: Any) -> dict[str, Any]:
        until = line_from(body, "until", DEFAULT_SUSPENSION)
        await self._adoption.suspend(line_from(body, "reason"), until, line_from(body, "by", NOBODY))
        return {"suspended": suspension_row(self._adoption.suspension, self._clock.now())}

    async def _post_resume(self, body: Any) -> dict[str, Any]:
        ended = await self._adoption.resume(line_from(body, "by", NOBODY))
        return {"ended": {"by": ended.by, "reason": ended.reason, "since": ended.since, "until": ended.until}}

    def _row(self, record: Record) -> dict[str, Any]:
        reconciler = self._reconciler
        shown = self._adoption.progress_of(record, reconciler.last, reconciler.snapshot())
        return progress_row(record, shown, self._clock.now())


def _refuse(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
