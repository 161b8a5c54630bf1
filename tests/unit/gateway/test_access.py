"""Keys at the gateway: who is let in, what is hidden, what is said and logged; and what requests cost, until it is kept."""

import contextlib
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from llmgw.base.time import Instant
from llmgw.fleet.access import Access, KnownKey, TenantRight, hash_of
from llmgw.fleet.table import EndpointTable, RoutedModel
from llmgw.gateway.access import Door
from llmgw.gateway.heads import Incoming
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.records import LONGEST, MOST_ROWS, Ledger
from llmgw.gateway.routes import Found
from llmgw.gateway.server import Gateway
from llmgw.gateway.usage import Tokens
from llmgw.routing.access import ANYBODY, FAILURES, Caller
from llmgw.routing.index import index_table
from llmgw.routing.request import RequestShape
from llmgw.runtime.clock import SystemClock
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.gateway.support import CHAT, STREAM, Serving, address_of, endpoint, gateway_before, serving, table

HIDDEN = RoutedModel("hidden", ("secret-alias",), 1, 9)


def access(*tenants: TenantRight, version: int = 1) -> Access:
    keys = tuple(KnownKey(one.name, hash_of("s3cret"), one.name) for one in tenants)
    return Access(version, True, (*keys, KnownKey("adm", hash_of("s3cret"), "")), tenants)


SOME = access(TenantRight("t", ("m",)), TenantRight("none", ("x",)))


def bearer(key: str) -> str:
    return f"authorization: Bearer sk-llmgw-{key}-s3cret\r\n"


def with_hidden(*engines) -> EndpointTable:
    first, second = (address_of(engine) for engine in engines)
    shown = table(endpoint(0, first))
    return replace(shown, models=(*shown.models, HIDDEN), endpoints=(*shown.endpoints, endpoint(1, second, "hidden")))


@contextlib.asynccontextmanager
async def two(**knows: str) -> AsyncIterator[tuple[Serving, FakeEngine, FakeEngine]]:
    """A gateway with a model for tenant `t`, and one that is not."""
    async with (
        running_engine("a", knows=knows.get("first")) as first,
        running_engine("b", knows=knows.get("second")) as second,
    ):
        routed = with_hidden(first, second)
        async with gateway_before(first, second, routed=routed) as s:
            yield s, first, second


async def test_nobody_is_let_in_before_it_is_known_who_may() -> None:
    gateway = Gateway(SystemClock(), random.Random(1))
    await gateway.start(("127.0.0.1", 0))
    gateway.set_table(table())
    s = Serving(gateway, ())
    response = await s.ask(CHAT, headers=bearer("t"))
    assert (response.status, response.code, response.header("retry-after")) == (503, "no_keys", "1")
    client = await s.client()
    for path, status in (("/ready", 503), ("/v1/models", 503), ("/health", 200)):
        client.get(path)
        assert (await client.response()).status == status
    await client.close()
    await gateway.stop(1.0)


async def test_a_key_opens_its_tenant_s_models_and_hides_all_others() -> None:
    async with two() as (s, _, second):
        s.gateway.set_access(SOME)
        for headers in (bearer("t"), bearer("t").replace("Bearer", "bearer"), "x-api-key: sk-llmgw-t-s3cret\r\n"):
            assert (await s.ask(CHAT, headers=headers)).status == 200
        unknown = await s.ask({**CHAT, "model": "nothing"}, headers=bearer("t"))
        assert (unknown.status, unknown.json["error"]["param"]) == (404, "model")
        for name in ("hidden", "secret-alias"):
            hidden = await s.ask({**CHAT, "model": name}, headers=bearer("t"))
            assert hidden.status == 404
            assert hidden.body.replace(name.encode(), b"nothing") == unknown.body
        client = await s.client()
        client.get("/v1/models", headers=bearer("t"))
        assert [one["id"] for one in (await client.response()).json["data"]] == ["m", "alias"]
        client.get("/v1/models/hidden", headers=bearer("t"))
        assert (await client.response()).status == 404
        client.get("/v1/realtime?model=hidden", headers=bearer("t"))
        assert (await client.response()).status == 404
        assert second.seen.connections == 0
        s.gateway.set_access(replace(access(TenantRight("t", ("hidden",)), version=2)))
        assert (await s.ask({**CHAT, "model": "secret-alias"}, headers=bearer("t"))).status == 200
        assert (await s.ask(CHAT, headers=bearer("t"))).status == 404


@dataclass
class HandClock:
    instant: float = 100.0

    def now(self) -> Instant:
        return Instant(self.instant)


def test_what_was_right_is_right_no_longer_than_its_key_and_with_the_models_of_now() -> None:
    clock, index = HandClock(), index_table(table())
    door = Door(clock, index)
    shown = b"Bearer sk-llmgw-t-s3cret"
    incoming = Incoming(b"POST", b"/", (), b"", None, None, http11=True, keep_alive=True, body=b"", credential=shown)

    def admitted() -> Caller | str:
        incoming.caller = ANYBODY
        fault = door.admit(incoming, Found("chat", "json"), lambda: "10.0.0.1")
        return fault.code if fault is not None else incoming.caller

    until = replace(SOME, keys=tuple(replace(key, expires=Instant(200.0)) for key in SOME.keys))
    door.set_access(until)
    assert [admitted() for _ in range(2)] == [Caller("t", "t", frozenset({"m", "alias"}), expires=Instant(200.0))] * 2
    door.set_index(index_table(EndpointTable(2, (), ())))
    assert admitted() == Caller("t", "t", frozenset(), expires=Instant(200.0))
    clock.instant = 200.0
    assert admitted() == "invalid_api_key"
    door.set_access(SOME)
    assert isinstance(admitted(), Caller)
    door.set_access(replace(SOME, keys=()))
    assert admitted() == "invalid_api_key"


async def test_what_names_no_model_is_asked_of_no_engine_that_is_not_the_tenant_s() -> None:
    async with two(first="resp_a", second="resp_b") as (s, first, second):
        s.gateway.set_access(SOME)
        client = await s.client()
        for wanted, status in (("resp_a", 200), ("resp_b", 404)):
            client.get(f"/v1/responses/{wanted}", headers=bearer("t"))
            assert (await client.response()).status == status
        assert first.seen.connections == 1
        assert second.seen.connections == 0


async def test_a_wrong_key_is_refused_in_the_client_s_own_words_and_never_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving() as s:
        s.gateway.set_access(SOME)
        missing = await s.ask(CHAT)
        assert (missing.status, missing.code, missing.header("www-authenticate")) == (401, "invalid_api_key", "Bearer")
        wrong = await s.ask(CHAT, headers="authorization: Bearer sk-llmgw-t-w0rd\r\n")
        assert (wrong.status, wrong.code) == (401, "invalid_api_key")
        assert wrong.body != missing.body
        messages = await s.ask(CHAT, "/v1/messages", "x-api-key: w0rd\r\n")
        assert (messages.status, messages.json["type"]) == (401, "error")
        assert messages.json["error"]["type"] == "authentication_error"
        assert (await s.ask(b"no json", headers="x-api-key: w0rd\r\n")).status == 401  # before anything is read
        assert s.engines[0].seen.connections == 0
        for _ in range(FAILURES):
            last = await s.ask(CHAT, headers="authorization: Bearer sk-llmgw-t-w0rd\r\n")
        assert (last.status, last.code) == (429, "too_many_failures")
        assert int(last.header("retry-after") or 0) >= 1
        assert (await s.ask(CHAT, headers=bearer("t"))).status == 200  # who is right is not locked out with the others
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert len(refused) == 2
    assert [getattr(record, "key", None) for record in refused] == [None, "t"]
    assert "w0rd" not in "".join(str(record.__dict__) for record in caplog.records)


async def test_preflights_and_health_need_no_key() -> None:
    async with serving() as s:
        s.gateway.set_access(SOME)
        client = await s.client()
        for path, method, status in (
            ("/v1/chat/completions", "OPTIONS", 204),
            ("/v1/models", "OPTIONS", 204),
            ("/health", "GET", 200),
            ("/ready", "GET", 200),
            ("/nowhere", "GET", 404),
            ("/v1/models/m", "GET", 401),
        ):
            client.get(path, method, "origin: http://ui\r\n")
            assert (await client.response(bodiless=method == "OPTIONS")).status == status, path


async def test_an_engine_s_own_paths_need_an_administrator_s_key_and_that_is_good_for_nothing_else() -> None:
    async with serving() as s:
        s.gateway.set_access(SOME)
        client = await s.client()
        for headers, status in (("", 401), (bearer("t"), 403), (bearer("adm"), 200)):
            client.get("/engines/m/health", headers=headers)
            assert (await client.response()).status == status
        refused = await s.ask(CHAT, headers=bearer("adm"))
        assert (refused.status, refused.code) == (403, "not_a_client_key")


async def test_no_engine_sees_a_key() -> None:
    async with serving() as s:
        s.gateway.set_access(SOME)
        assert (await s.ask(CHAT, headers=bearer("t") + "upgrade: h2c\r\nconnection: upgrade\r\n")).status == 200
        assert s.engines[0].seen.last_headers
        assert "s3cret" not in str(s.engines[0].seen.last_headers)


async def test_each_request_is_counted_for_whose_it_is() -> None:
    async with serving() as s:
        s.gateway.set_access(SOME)
        for body in (CHAT, STREAM, {**CHAT, "model": "alias"}):
            assert (await s.ask(body, headers=bearer("t"))).status == 200
        await s.ask(CHAT)
        await s.ask({**CHAT, "model": "nothing"}, headers=bearer("t"))
        batch = s.gateway.ledger.batch("w")
        assert batch is not None
        (row,) = batch.rows
        assert (row.tenant, row.key, row.model, row.requests, row.failed, row.estimated) == ("t", "t", "m", 3, 0, 0)
        assert row.prompt > 0
        assert row.completion > 0


# the ledger by itself


class _Clock:
    def __init__(self) -> None:
        self.time = 7200.0

    def now(self) -> Instant:
        return Instant(self.time)


MODEL = table().models[0]
SHAPE = RequestShape("chat", "m", stream=False, prompt_bytes=400)
ANN = Caller("t", "k")


def outcome(tokens: Tokens | None = None, **more: object) -> Outcome:
    return Outcome(**{"status": 200, "tokens": tokens, "worked": True, **more})


def test_sums_are_by_tenant_key_model_and_hour_and_wait_until_they_are_kept() -> None:
    clock = _Clock()
    ledger = Ledger(clock)
    assert ledger.empty
    assert ledger.batch("w") is None
    ledger.add(MODEL, SHAPE, ANN, outcome(Tokens(5, 7, 2)))
    ledger.add(MODEL, SHAPE, ANN, outcome(Tokens(1, 1)))
    ledger.add(MODEL, SHAPE, Caller(), outcome(Tokens(1, 1), status=499))
    clock.time += 3600
    ledger.add(MODEL, SHAPE, ANN, outcome(None, status=503, worked=False))
    first = ledger.batch("w")
    assert first is not None
    rows = [
        (one.tenant, one.hour, one.requests, one.failed, one.prompt, one.completion, one.cached) for one in first.rows
    ]
    assert rows == [("t", 2, 2, 0, 6, 8, 2), ("", 2, 1, 1, 1, 1, 0), ("t", 3, 1, 1, 0, 0, 0)]
    ledger.add(MODEL, SHAPE, ANN, outcome(Tokens(1, 1)))
    assert ledger.batch("w") is first
    assert ledger.requests == 5
    ledger.kept(first.sequence + 1)
    assert ledger.batch("w") is first
    ledger.kept(first.sequence)
    second = ledger.batch("w")
    assert second is not None
    assert (second.sequence, [one.requests for one in second.rows]) == (first.sequence + 1, [1])
    ledger.kept(first.sequence)  # said late
    assert not ledger.empty
    ledger.kept(second.sequence)
    assert ledger.empty


def test_a_batch_is_bounded_and_the_rest_follows() -> None:
    ledger = Ledger(_Clock())
    for number in range(MOST_ROWS + 1):
        ledger.add(MODEL, SHAPE, Caller("t", f"k{number}"), outcome(Tokens(1, 1)))
    sizes = []
    while (batch := ledger.batch("w")) is not None:
        sizes.append(len(batch.rows))
        ledger.kept(batch.sequence)
    assert sizes == [MOST_ROWS, 1]


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (SHAPE, outcome(length=80), (100, 20, 120)),
        (SHAPE._replace(stream=True), outcome(pieces=9), (100, 9, 109)),
        (SHAPE._replace(route="embeddings"), outcome(length=80), (100, 0, 100)),
        (SHAPE._replace(route="transcriptions", prompt_bytes=1 << 20), outcome(length=80), (0, 0, 0)),
        (SHAPE._replace(prompt_bytes=1 << 30), outcome(), (LONGEST, 0, LONGEST)),
        (SHAPE, outcome(Tokens(3, 4), length=80), (3, 4, 0)),
        (SHAPE, outcome(status=502, worked=False), (0, 0, 0)),
    ],
)
def test_what_no_engine_reported_is_estimated_and_marked(
    shape: RequestShape, given: Outcome, expected: tuple[int, int, int]
) -> None:
    ledger = Ledger(_Clock())
    ledger.add(MODEL, shape, ANN, given)
    batch = ledger.batch("w")
    assert batch is not None
    assert (batch.rows[0].prompt, batch.rows[0].completion, batch.rows[0].estimated) == expected
