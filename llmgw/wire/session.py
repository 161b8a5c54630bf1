"""The session's state machine: greeting first, then messages of the right direction only. Sans-IO.

A peer of another protocol version is refused in the greeting, with the side to upgrade named, and never half understood.
"""

from typing import Literal

from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import FrameDecoder
from llmgw.wire.messages import (
    PROTOCOL,
    AccessTable,
    Hello,
    LogReply,
    LogRequest,
    Message,
    Order,
    Refused,
    RouterHello,
    RouterLeaves,
    Said,
    Spending,
    SpendingKept,
    Table,
    Using,
    Welcome,
    WorkerCounts,
    WorkerHello,
    WorkerUsage,
    decode,
)

Role = Literal["control_of_agent", "agent", "control_of_worker", "worker", "control_of_router", "router"]

_GREETING: dict[Role, type[Hello | Welcome | WorkerHello | RouterHello] | None] = {
    "control_of_agent": Welcome,
    "agent": Hello,
    "control_of_worker": WorkerHello,
    "worker": None,
    "control_of_router": RouterHello,
    "router": None,
}
_ACCEPTED: dict[Role, tuple[type, ...]] = {
    "control_of_agent": (Said, LogReply),
    "agent": (Order, Using, LogRequest),
    "control_of_worker": (WorkerUsage, WorkerCounts, Spending),
    "worker": (Table, AccessTable, SpendingKept),
    "control_of_router": (WorkerUsage, Spending, RouterLeaves),
    "router": (Table, AccessTable, SpendingKept, Refused),
}
_PEER: dict[Role, str] = {
    "control_of_agent": "agent",
    "agent": "control plane",
    "control_of_worker": "gateway worker",
    "worker": "control plane",
    "control_of_router": "router",
    "router": "control plane",
}


class Session:
    """What one side may hear. One a connection; after a ProtocolError it is of no further use."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._decoder = FrameDecoder()
        self._greeted = _GREETING[role] is None

    @property
    def greeted(self) -> bool:
        """Whether the peer has said who it is."""
        return self._greeted

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes as they came; return the messages they complete. Raises ProtocolError."""
        return [self._check(decode(payload)) for payload in self._decoder.feed(data)]

    def _check(self, message: Message) -> Message:
        greeting = _GREETING[self._role]
        peer = _PEER[self._role]
        if not self._greeted and greeting is not None:
            if isinstance(message, Refused) and greeting is Welcome:
                raise ProtocolError(message.reason)
            if not isinstance(message, greeting):
                raise ProtocolError(f"the {peer} began with {message.type!r} instead of its greeting")
            if message.protocol != PROTOCOL:
                older = peer if message.protocol < PROTOCOL else "this side"
                raise ProtocolError(
                    f"the {peer} ({message.version}) speaks protocol {message.protocol}, this side {PROTOCOL}; "
                    f"upgrade the older one: {older}"
                )
            self._greeted = True
            return message
        if not isinstance(message, _ACCEPTED[self._role]):
            raise ProtocolError(f"the {peer} sent {message.type!r}, which is not for this side")
        return message
