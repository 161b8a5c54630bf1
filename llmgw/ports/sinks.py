"""What the control plane's loops hand to each other and to the gateways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmgw.base.ids import Epoch, NodeName, OwnerId
from llmgw.base.time import Instant
from llmgw.fleet.access import Access
from llmgw.fleet.order import NodeOrder
from llmgw.fleet.table import EndpointTable
from llmgw.fleet.usage import UsageView
from llmgw.plan.snapshot import Act


class OrderSink(Protocol):
    """Takes orders to nodes."""

    def send(self, orders: Mapping[NodeName, NodeOrder]) -> None:
        """Replace the newest order of each node. Never blocks; sent again until the node reports its generation."""
        ...


class EndpointSink(Protocol):
    """Takes endpoint tables to gateways."""

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Make this the newest table. Never blocks; `settled` tells that it leaves nothing out for want of knowledge."""
        ...


class AccessSink(Protocol):
    """Takes to gateways who may ask for what."""

    def admit(self, access: Access) -> None:
        """Make this the newest. Never blocks."""
        ...


class UsageSource(Protocol):
    """Says what the gateways have in flight."""

    def usage(self) -> UsageView:
        """Return what is known now, counted against the newest published table; `Unknown` wherever it is not certain."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for people: what, to whom, why."""

    at: Instant
    kind: str
    subject: str
    text: str
    cause: str


class EventSink(Protocol):
    """Keeps events. An event that cannot be kept is logged by the sink, and nothing else stops for it."""

    def record(self, event: Event) -> None:
        """Take an event. Never blocks, never raises."""
        ...


class EventSource(Protocol):
    """Gives back kept events."""

    async def events(self, limit: int, since: Instant | None = None, subject: str = "") -> list[Event]:
        """Return the newest events, newest first: at most `limit`, not before `since`, of this subject if one is given.

        A subject is `replica/ID`, `node/NAME`, …, or `model/NAME`, which stands for its replicas as well. Raises
        StoreUnavailable.
        """
        ...


class ActKeeper(Protocol):
    """Keeps what operators asked for, over restarts."""

    async def keep_acts(self, acts: Sequence[Act]) -> None:
        """Keep these in place of those before, all or none. Raises StoreUnavailable."""
        ...

    async def last_acts(self) -> tuple[Act, ...]:
        """Return the kept ones, by target. Raises StoreUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may decide, as the store has it."""

    owner: OwnerId
    epoch: Epoch
    mine: bool


class StoreUnavailable(Exception):
    """The store cannot be used now; the message says why."""


class LeaseKeeper(Protocol):
    """The one lease row. Expiry is by the store's clock."""

    async def take(self, owner: OwnerId, seconds: float, at_least: Epoch) -> Lease:
        """Take or renew the lease in one statement, and return who holds it now.

        The epoch grows whenever the holder changes, and to `at_least` if it is smaller. Raises StoreUnavailable.
        """
        ...

    async def release(self, owner: OwnerId) -> None:
        """Give the lease up, if it is held by this owner. Raises StoreUnavailable."""
        ...

    async def release_epoch(self, epoch: Epoch) -> bool:
        """Take the lease of this epoch away from whoever has it; False, and nothing, if it is of another epoch, or of nobody.

        The next taker begins a higher epoch. Raises StoreUnavailable.
        """
        ...
