"""What control planes told this agent of their gateways, to be passed on to all of them in reports.

An entry is kept by the name of the gateways, not by connection or process: a control plane that is started again speaks for
the same ones. It ages when it is not renewed, and is dropped when that is no more news to anybody, or when they have ended.
"""

from dataclasses import dataclass, field

from llmgw.base.time import Instant
from llmgw.fleet.report import User
from llmgw.wire.messages import Using

FORGOTTEN_AFTER = 3600.0
MOST = 16
"""Sets of gateways that are remembered, the newest: a peer that makes up names fills no memory."""


@dataclass(slots=True)
class Users:
    """All of them. Use from one thread."""

    _known: dict[str, tuple[Instant, Using]] = field(default_factory=dict)

    def take(self, using: Using, now: Instant) -> bool:
        """Take what was said; whether others should hear of it now, and not with the next report."""
        _, before = self._known.pop(using.gateways, (now, None))
        if not using.leaving:
            self._known[using.gateways] = (now, using)
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return before is None or using.leaving or _essence(before) != _essence(using)

    def said(self, now: Instant) -> tuple[User, ...]:
        """Return what is known of each, as a report has it."""
        for name in [name for name, (at, _) in self._known.items() if now - at > FORGOTTEN_AFTER]:
            del self._known[name]
        return tuple(
            User(name, max(0.0, now - at), using.epoch, using.generation, using.uses, using.routers)
            for name, (at, using) in sorted(self._known.items())
        )


def _essence(using: Using) -> object:
    uses = [(one.replica, one.in_flight is None, bool(one.in_flight), one.routed) for one in using.uses]
    return (using.epoch, using.generation, uses, using.routers)
