"""The admin API's part for keys, usage and the audit trail.

`GET /v1/keys?tenant=` · `POST /v1/keys` `{"tenant" | "scope", "note", "expires"}` · `POST /v1/keys/rotate`
`{"key", "overlap"}` · `POST /v1/keys/revoke` `{"key", "all": false}`, where `key` is an id, or a tenant with one key ·
`GET /v1/usage?by=&since=&until=` · `GET /v1/audit?limit=&since=`.

A credential is in the answer to what made it, and nowhere else.
"""

from dataclasses import asdict
from typing import Any

from aiohttp import web

from llmgw.base.time import Clock, Instant
from llmgw.control.acts import CannotAct, until_of
from llmgw.control.key_book import KeyBook, Made
from llmgw.control.operator import MOST_EVENTS, object_from, since_of, told
from llmgw.control.peers import by_of
from llmgw.control.requests import line_from
from llmgw.fleet.spent import HOUR, Spent
from llmgw.ports.audit import AuditKeeper
from llmgw.ports.keys import SCOPES, Key, Scope
from llmgw.ports.usage import BYS, By, UsageKeeper

OVERLAP = "24h"
SINCE = "7d"
LONGEST_OVERLAP = 90 * 86400.0
"""Seconds; a rotation that never ends is none."""


class KeyApi:
    """The routes."""

    def __init__(self, book: KeyBook, usage: UsageKeeper, audit: AuditKeeper, clock: Clock) -> None:
        self._book = book
        self._usage = usage
        self._audit = audit
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to an application."""
        return [
            web.get("/v1/keys", told(self._get_keys)),
            web.post("/v1/keys", told(self._post_key)),
            web.post("/v1/keys/rotate", told(self._post_rotate)),
            web.post("/v1/keys/revoke", told(self._post_revoke)),
            web.get("/v1/usage", told(self._get_usage)),
            web.get("/v1/audit", told(self._get_audit)),
        ]

    async def _get_keys(self, request: web.Request) -> web.Response:
        now, tenant = self._clock.now(), request.query.get("tenant")
        rows = [key_row(one, now) for one in self._book.keys if tenant is None or one.tenant == tenant]
        return web.json_response({"keys": rows})

    async def _post_key(self, request: web.Request) -> web.Response:
        asked = await object_from(request, '{"tenant": …} or {"scope": …}')
        tenant, scope = line_from(asked, "tenant"), _scope(line_from(asked, "scope"))
        if (scope is None) == (not tenant):
            raise CannotAct("name a tenant, or the scope of an administrator's key; not both")
        until = line_from(asked, "expires")
        expires = _end(until, self._clock.now()) if until else None
        by = by_of(request, line_from(asked, "by"))
        return self._told(await self._book.create(tenant, scope, line_from(asked, "note"), expires, by))

    async def _post_rotate(self, request: web.Request) -> web.Response:
        asked = await object_from(request, '{"key": …}')
        now, text = self._clock.now(), line_from(asked, "overlap", OVERLAP)
        overlap = 0.0 if text in ("0", "0s") else _end(text, now, "--overlap") - now
        if overlap > LONGEST_OVERLAP:
            raise CannotAct(f"--overlap {text} is too long; {LONGEST_OVERLAP / 86400:.0f}d is the most")
        return self._told(
            await self._book.rotate(line_from(asked, "key"), overlap, by_of(request, line_from(asked, "by")))
        )

    async def _post_revoke(self, request: web.Request) -> web.Response:
        asked = await object_from(request, '{"key": …}')
        gone = await self._book.revoke(line_from(asked, "key"), every=asked.get("all") is True)
        return web.json_response({"keys": [key_row(one, self._clock.now()) for one in gone]})

    def _told(self, made: Made) -> web.Response:
        row = key_row(made.key, self._clock.now())
        old = {"old": made.old.id} if made.old is not None else {}
        return web.json_response({"keys": [row], "credential": made.credential, **old})

    async def _get_usage(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        by = next((one for one in BYS if one == request.query.get("by", "tenant")), None)
        if by is None:
            raise CannotAct(f"--by is one of {', '.join(BYS)}")
        since = int(since_of(request.query.get("since") or SINCE, now)) // HOUR
        text = request.query.get("until", "")
        until = int(since_of(text, now, "--until") if text else now + HOUR) // HOUR
        if until <= since:
            raise CannotAct("--until is not after --since; usage is kept by the hour")
        found = await self._usage.usage(by, since, until)
        rows = [spent_row(one, by) for one in found]
        total = Spent("", "", "", 0)
        for one in found:
            total = total.plus(one)
        span = {"by": by, "since": since * HOUR, "until": until * HOUR}
        return web.json_response({**span, "usage": rows, "total": _sums(total)})

    async def _get_audit(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MOST_EVENTS):
            raise CannotAct(f"limit is a whole number from 1 to {MOST_EVENTS}")
        now, text = self._clock.now(), request.query.get("since", "")
        entries = await self._audit.entries(int(limit), since_of(text, now) if text else None)
        return web.json_response({"audit": [{**asdict(one), "age": now - one.at} for one in entries]})


def key_row(key: Key, now: Instant) -> dict[str, Any]:
    """Return a key as the admin API shows it; its hash is nobody's business."""
    state = "revoked" if key.revoked is not None else "valid" if key.holds(now) else "expired"
    return {
        "id": key.id,
        "tenant": key.tenant or None,
        "scope": key.scope,
        "note": key.note,
        "state": state,
        "created": key.created,
        "by": key.by,
        "expires": key.expires,
        "revoked": key.revoked,
        "last_used": key.last_used,
        "age": now - key.created,
        "expires_in": key.expires - now if key.expires is not None else None,
        "last_used_ago": max(0.0, now - key.last_used) if key.last_used is not None else None,
    }


def spent_row(one: Spent, by: By) -> dict[str, Any]:
    """Return a sum as the admin API shows it: with what it is grouped by."""
    names: dict[By, dict[str, Any]] = {
        "tenant": {"tenant": one.tenant},
        "key": {"tenant": one.tenant, "key": one.key},
        "model": {"model": one.model},
        "hour": {"hour": one.hour * HOUR},
        "day": {"day": one.hour * HOUR},
    }
    return {**names[by], **_sums(one)}


def _sums(one: Spent) -> dict[str, int]:
    return {
        "requests": one.requests,
        "failed": one.failed,
        "prompt_tokens": one.prompt,
        "completion_tokens": one.completion,
        "cached_tokens": one.cached,
        "estimated_tokens": one.estimated,
    }


def _scope(text: str) -> Scope | None:
    if not text:
        return None
    found = next((one for one in SCOPES if one == text), None)
    if found is None:
        raise CannotAct(
            f"there is no scope {text!r}; there are {', '.join(SCOPES)}, each with what those before it may do"
        )
    return found


def _end(text: str, now: Instant, option: str = "--expires") -> Instant:
    try:
        return until_of(text, now)
    except CannotAct as error:
        raise CannotAct(str(error).replace("--until", option)) from None
