"""Messages there and back, the greeting, and who may say what to whom."""

import json
import traceback

import pytest

from llmgw.base.ids import NodeName, ReplicaId
from llmgw.base.time import Instant
from llmgw.fleet.access import Access, KnownKey, TenantRight
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.report import Ended, Phase, Reason, ShardReport
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.fleet.table import Endpoint, EndpointTable, RoutedModel, TcpAddress, UnixAddress
from llmgw.wire.errors import ProtocolError
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    PROTOCOL,
    AccessTable,
    EndpointUsage,
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
    Welcome,
    WorkerHello,
    WorkerUsage,
    decode,
    encode,
)
from llmgw.wire.session import Role, Session
from tests.builders import catalog, model, order, report, shard_report, spec_of

SPEC = spec_of(catalog(model("m", 1, "--ctx", "1", profile={"cpus": 2, "memory": "1GiB", "env": {"A": "ü"}})), "m")
FAILED = ShardReport(
    SPEC, Phase.FAILED, 1.5, 3, 5, None, Reason("exit", "status 1"), None, False, Ended(3, "exit", "1", 2.0, ("a", "b"))
)
ENDPOINTS = tuple(
    Endpoint(ReplicaId(f"m-1-{number}"), SPEC.model, address, "m")
    for number, address in enumerate((TcpAddress("10.0.0.1", 80), UnixAddress("/x")))
)
HELLO = Hello(PROTOCOL, "0.1.0", "c", NodeName("a"))
WELCOME = Welcome(PROTOCOL, "0.1.0")
WORKER = WorkerHello(PROTOCOL, "0.1.0", 7, "127.0.0.1:8080")
ROUTER = RouterHello(PROTOCOL, "0.1.0", "edge", "r1", "http://edge:8080/v1", "boot/1", serving=False)
MESSAGES: list[Message] = [
    HELLO,
    WELCOME,
    WORKER,
    Order(order("a", ShardOrder(SPEC, draining=True), SPEC)),
    Said(report("a", shard_report(SPEC), FAILED)),
    LogRequest(1, SPEC.shard, 0, 100),
    LogReply(1, 2, (1, 2), ("a", "b")),
    LogReply(1, 2, (), (), "there is none"),
    Table(EndpointTable(3, (RoutedModel(SPEC.model, ("x",), 2, 10),), ENDPOINTS)),
    WorkerUsage(3, (EndpointUsage(ReplicaId("m-1-0"), 2, None), EndpointUsage(ReplicaId("m-1-1"), 0, 1.5)), 9),
    ROUTER,
    RouterLeaves(),
    AccessTable(
        Access(
            3,
            True,
            (KnownKey("ab", "0" * 64, "t", Instant(7.5)), KnownKey("cd", "1" * 64, "")),
            (TenantRight("t", ("*",)),),
        )
    ),
    Spending(SpentBatch("w", 3, (Spent("t", "ab", "m", 9, 1, 0, 2, 3, 0, 5),))),
    SpendingKept("w", 3),
]


def test_a_message_that_cannot_be_read_shows_no_secret_in_any_traceback() -> None:
    spoiled = json.loads(encode(Order(order("a"), {"T": "hunter-two"})))
    spoiled["secrets"]["T"] = ["hunter-two"]
    with pytest.raises(ProtocolError) as refusal:
        decode(json.dumps(spoiled).encode())
    assert "order.secrets.T" in str(refusal.value)
    assert "hunter" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_a_message_comes_back_as_it_was(message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_unknown_fields_of_a_newer_peer_are_ignored(message) -> None:
    body = json.loads(encode(message))
    body["added_later"] = {"x": [1]}
    for value in list(body.values()):
        if isinstance(value, dict) and value:  # an empty one is a map of names, where a key is no field
            value["added_later"] = 1
    assert decode(json.dumps(body).encode()) == message


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "unreadable message"),
        (b"[]", "unreadable message"),
        (b"\xff", "unreadable message"),
        (b'{"type": "hullo"}', "unreadable message"),
        (b'{"type": "welcome", "protocol": 1}', "at welcome.version"),
        (b'{"type": "welcome", "protocol": [], "version": "1"}', "at welcome.protocol"),
    ],
)
def test_anything_else_is_refused_with_the_place(payload, told) -> None:
    with pytest.raises(ProtocolError, match=told):
        decode(payload)


def test_a_long_message_that_cannot_be_read_does_not_repeat_itself() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(b'{"type": "welcome", "protocol": "' + b"x" * 100_000 + b'", "version": "1"}')
    assert len(str(caught.value)) < 300


GREETINGS: dict[Role, Message] = {
    "control_of_agent": WELCOME,
    "agent": HELLO,
    "control_of_worker": WORKER,
    "control_of_router": ROUTER,
}
ACCEPTED: dict[Role, set[str]] = {
    "control_of_agent": {"report", "log_reply"},
    "agent": {"order", "log_request"},
    "control_of_worker": {"worker_usage", "spending"},
    "worker": {"table", "access", "spending_kept"},
    "control_of_router": {"worker_usage", "spending", "router_leaves"},
    "router": {"table", "access", "spending_kept"},
}


def greeted(role: Role) -> Session:
    session = Session(role)
    if role in GREETINGS:
        session.feed(frame(encode(GREETINGS[role])))
    assert session.greeted
    return session


@pytest.mark.parametrize("role", GREETINGS)
def test_the_greeting_comes_first_and_is_given_out(role) -> None:
    session = Session(role)
    assert not session.greeted
    assert session.feed(frame(encode(GREETINGS[role]))) == [GREETINGS[role]]
    assert session.greeted


@pytest.mark.parametrize("role", GREETINGS)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_anything_before_the_greeting_is_refused(role, message) -> None:
    if message == GREETINGS[role]:
        return
    with pytest.raises(ProtocolError, match=f"began with '{message.type}' instead of its greeting"):
        Session(role).feed(frame(encode(message)))


@pytest.mark.parametrize("role", ACCEPTED)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_only_messages_of_the_right_direction_are_accepted(role, message) -> None:
    session = greeted(role)
    if message.type in ACCEPTED[role]:
        assert session.feed(frame(encode(message))) == [message]
        return
    with pytest.raises(ProtocolError, match="which is not for this side"):
        session.feed(frame(encode(message)))


@pytest.mark.parametrize(("version", "older"), [(PROTOCOL - 1, "agent"), (PROTOCOL + 1, "this side")])
def test_another_protocol_version_is_refused_and_the_side_to_upgrade_named(version, older) -> None:
    with pytest.raises(ProtocolError) as caught:
        Session("control_of_agent").feed(frame(encode(Welcome(version, "9.9.9"))))
    said = f"the agent (9.9.9) speaks protocol {version}, this side {PROTOCOL}; upgrade the older one: {older}"
    assert str(caught.value) == said


def test_a_whole_conversation_may_be_cut_at_every_byte() -> None:
    said = [WELCOME, MESSAGES[4], MESSAGES[6], MESSAGES[4]]
    stream = b"".join(frame(encode(message)) for message in said)
    for cut in range(0, len(stream) + 1, 7):
        session = Session("control_of_agent")
        assert session.feed(stream[:cut]) + session.feed(stream[cut:]) == said


def test_a_router_hears_why_it_is_refused() -> None:
    refused = Refused("another router of that name is connected")
    assert Session("router").feed(frame(encode(refused))) == [refused]
