"""`Usage`: what the gateways say of an endpoint. Not knowing is a variant of its own, and never reads as idle.

A zero timestamp for "never used" would make a fresh replica the oldest idle one in every comparison, so one restart of
the control plane would nominate a whole fleet for eviction. So `Idle` needs a request that was seen to end; until then
it is `Unknown`, with `quiet` telling apart "every gateway says that nothing is in flight" (enough to finish a drain)
from "no word" (enough for nothing).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.base.ids import ReplicaId
from llmgw.base.time import Instant


@dataclass(frozen=True, slots=True)
class Active:
    """Requests are in flight."""

    in_flight: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing in flight; the last response ended then."""

    since: Instant


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be said since when it is idle, or whether it is."""

    why: str
    quiet: bool = False


Usage = Active | Idle | Unknown

NO_WORD = Unknown("no gateway has reported yet")


@dataclass(frozen=True, slots=True)
class UsageView:
    """What all gateways together say."""

    endpoints: Mapping[ReplicaId, Usage]
    otherwise: Usage = NO_WORD
    """What holds for an endpoint that none of them spoke of."""
    current: bool = False
    """Every living gateway goes by the newest table: what has left it gets no new request anywhere."""
    routed: frozenset[ReplicaId] = frozenset()
    """What gateways of other control planes may still send new requests to, whatever this one's table says."""
    present: bool = True
    """Whether this control plane has gateways at all."""

    def of(self, replica: ReplicaId) -> Usage:
        """Return the usage of one endpoint."""
        return self.endpoints.get(replica, self.otherwise)


NO_USAGE = UsageView({})


def is_quiet(usage: Usage) -> bool:
    """Whether every live gateway says that nothing is in flight, in words that are current."""
    return isinstance(usage, Idle) or (isinstance(usage, Unknown) and usage.quiet)
