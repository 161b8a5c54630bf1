"""The key of an upstream: it goes there, and nowhere else."""

from dataclasses import replace

from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, address_of, endpoint, gateway_before, table

CLIENTS_OWN = "authorization: Bearer sk-client\r\n"


async def test_an_upstream_gets_its_own_key_and_no_other_engine_gets_any() -> None:
    async with running_engine("a", echo_headers=True) as keyed, running_engine("b", echo_headers=True) as plain:
        ours = replace(endpoint(0, address_of(keyed)), key="HUB")
        routed = table(ours, endpoint(1, address_of(plain)))
        async with gateway_before(keyed, plain, routed=routed) as s:
            s.gateway.set_table(routed, {"HUB": "sk-hub", "OTHER": "sk-other"})
            seen = set()
            for _ in range(20):
                headers = (await s.ask(CHAT, headers=CLIENTS_OWN)).json["headers"]
                seen.add(tuple(value for name, value in headers if name == "authorization"))
            assert seen == {("Bearer sk-hub",), ()}
            assert dict(keyed.seen.last_headers)["authorization"] == "Bearer sk-hub"
            assert "authorization" not in dict(plain.seen.last_headers)


async def test_another_value_is_sent_from_the_next_request_on() -> None:
    async with running_engine("a") as engine:
        routed = table(replace(endpoint(0, address_of(engine)), key="HUB"))
        async with gateway_before(engine, routed=routed) as s:
            for value in ("one", "two"):
                s.gateway.set_table(routed, {"HUB": value})
                assert (await s.ask(CHAT)).status == 200
                assert dict(engine.seen.last_headers)["authorization"] == f"Bearer {value}"


async def test_an_engines_own_paths_are_asked_for_without_it() -> None:
    async with running_engine("a") as engine:
        routed = table(replace(endpoint(0, address_of(engine)), key="HUB"))
        async with gateway_before(engine, routed=routed) as s:
            s.gateway.set_table(routed, {"HUB": "sk-hub"})
            assert (await s.ask(CHAT, "/engines/m/v1/chat/completions")).status == 200
            assert dict(engine.seen.last_headers)["content-length"]
            assert "authorization" not in dict(engine.seen.last_headers)


async def test_a_websocket_gets_it_too() -> None:
    async with running_engine("a") as engine:
        routed = table(replace(endpoint(0, address_of(engine)), key="HUB"))
        async with gateway_before(engine, routed=routed) as s:
            s.gateway.set_table(routed, {"HUB": "sk-hub"})
            client = await s.client()
            client.get(
                "/v1/realtime?model=m",
                headers="connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: abc\r\n"
                "sec-websocket-version: 13\r\n" + CLIENTS_OWN,
            )
            assert (await client.head()).status == 101
            assert [value for name, value in engine.seen.last_headers if name == "authorization"] == ["Bearer sk-hub"]
