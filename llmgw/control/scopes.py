"""What an administrator's key must be good for, by what is asked. Over the Unix socket nothing is needed.

What is not listed needs the most: a route that is added and forgotten here is closed, not open. A route is told by its own
pattern, and not by what a stranger wrote as its path.
"""

from llmgw.ports.keys import SCOPES, Scope

ASKS = frozenset({("POST", "/v1/plan"), ("POST", "/v1/plan/verify")})
"""What is posted and changes nothing."""
CHANGES = frozenset(
    {
        ("POST", "/v1/apply"),
        ("POST", "/v1/rollback"),
        ("POST", "/v1/suspend"),
        ("POST", "/v1/resume"),
        ("POST", "/v1/acts"),
        ("DELETE", "/v1/acts"),
        ("POST", "/v1/source/accept"),
    }
)
_GUARDED = frozenset({("GET", "/v1/keys")})
"""What is only looked at and not for everybody who may look."""


def scope_needed(method: str, pattern: str) -> Scope:
    """Return the least scope for a route."""
    method = "GET" if method == "HEAD" else method
    if (method, pattern) in CHANGES:
        return "apply"
    if ((method == "GET" and pattern) or (method, pattern) in ASKS) and (method, pattern) not in _GUARDED:
        return "read"
    return "admin"


def is_enough(scope: Scope | None, needed: Scope) -> bool:
    """Whether a key of this scope will do; none is a tenant's, which will not."""
    return scope is not None and SCOPES.index(scope) >= SCOPES.index(needed)


def is_act(method: str, pattern: str) -> bool:
    """Whether a route does something that belongs into the audit trail."""
    return (
        method not in ("GET", "HEAD")
        and pattern != ""
        and (method, pattern) not in ASKS
        and not pattern.startswith("/hooks/")
    )
