"""What the audit trail says of a request to the admin API: which act, on what, with what reason. Pure.

It is worked out in one place from the request and its answer, and not written by each route: so no act can be left out, and one
that is not described here is in the trail by its route all the same. A credential is in answers alone, and of an answer only
what is named here is taken.
"""

from collections.abc import Mapping
from typing import Any

from llmgw.control.requests import line_from, names_from

LONGEST_ACT = 64
"""Characters."""
_SIMPLE = {
    "/v1/apply": "apply",
    "/v1/rollback": "rollback",
    "/v1/suspend": "suspend",
    "/v1/resume": "resume",
    "/v1/source/accept": "accept",
}


def described(
    method: str, pattern: str, query: Mapping[str, str], body: Mapping[str, Any], answer: Mapping[str, Any]
) -> tuple[str, str, str, str]:
    """Return (act, subject, text, cause)."""
    reason = line_from(body, "reason")
    match method, pattern:
        case "POST", "/v1/acts":
            return line_from(body, "kind", "act")[:LONGEST_ACT], line_from(body, "target"), reason, ""
        case "DELETE", "/v1/acts":
            return "uncordon", line_from(query, "target"), "", ""
        case "POST", "/v1/forget":
            return "forget", f"node/{line_from(body, 'node')}", reason, ""
        case "POST", "/v1/routers/forget":
            return "forget", f"router/{line_from(body, 'router')}", reason, ""
        case "POST", "/v1/lease/release":
            epoch = body.get("epoch")
            return "lease release", f"epoch/{epoch:d}" if isinstance(epoch, int) else "", reason, ""
        case "POST", "/v1/keys" | "/v1/keys/rotate" | "/v1/keys/revoke":
            verb = pattern.removeprefix("/v1/keys").strip("/") or "create"
            return f"keys {verb}", _owner(body, answer), _of_key(body, answer), ""
        case "POST", _ if pattern in _SIMPLE:
            return _SIMPLE[pattern], _revision(body, answer), _of_revision(body, reason), line_from(answer, "id")
    return f"{method} {pattern}"[:LONGEST_ACT], "", reason, ""


def _row(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    keys = answer.get("keys")
    return keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], dict) else {}


def _owner(body: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    row = _row(answer)
    tenant = line_from(row, "tenant") or ("" if row else line_from(body, "tenant"))
    if tenant:
        return f"tenant/{tenant}"
    return "administrator" if row or line_from(body, "scope") else line_from(body, "key")


def _of_key(body: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    keys = answer.get("keys")
    ids = [line_from(one, "id") for one in keys if isinstance(one, dict)] if isinstance(keys, list) else []
    old, scope = line_from(answer, "old"), line_from(body, "scope")
    parts = [f"key {', '.join(ids)}" if ids else "", f"in place of {old}" if old else "", scope and f"scope {scope}"]
    return "; ".join(part for part in (*parts, line_from(body, "note"), line_from(body, "reason")) if part)


def _revision(body: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    tree = body.get("tree")
    named = line_from(answer, "revision") or line_from(body, "revision")
    return named or (line_from(tree, "revision") if isinstance(tree, dict) else "")


def _of_revision(body: Mapping[str, Any], reason: str) -> str:
    until, allowed = line_from(body, "until"), sorted(names_from(body, "allow_remove"))
    parts = [reason, until and f"until {until}", f"may remove {', '.join(allowed)}" if allowed else ""]
    return "; ".join([*(part for part in parts if part), *(["supersedes"] if body.get("supersede") is True else [])])
