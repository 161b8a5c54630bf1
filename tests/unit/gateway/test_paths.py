"""Where requests go: every route, forms, stored responses, an engine's own paths, WebSockets, and compressed bodies."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway import forms
from llmgw.gateway.routes import POSTS
from tests.fakes.engine import running_engine
from tests.unit.gateway.support import CHAT, STREAM, address_of, endpoint, gateway_before, serving, table, until


def form(model: str, boundary: str = "xyz", more: bytes = b"\x00\xff\r\n--xy\r\n") -> bytes:
    parts = [
        b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n' + more,
        b'content-disposition: form-data; name="model"\r\n\r\n' + model.encode(),
        b'Content-Disposition: form-data; name="language"\r\n\r\nde',
    ]
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"


FORM = "content-type: multipart/form-data; boundary=xyz\r\n"


@pytest.mark.parametrize("path", sorted(POSTS))
async def test_every_route_reaches_the_engine_under_its_own_name_for_the_model(path: bytes) -> None:
    where = POSTS[path].where
    async with serving(echo_headers=True) as s:
        body: object = form("alias") if where == "form" else {**CHAT, "model": "alias"}
        response = await s.ask(body, path.decode() + "?x=1", FORM if where == "form" else "")
        assert response.status == 200
        assert response.json["path"] == path.decode() + "?x=1"
        sent = response.json["body"]
        assert "alias" not in sent
        length = next(value for name, value in response.json["headers"] if name == "content-length")
        if where == "form":
            assert sent.encode("utf-8", "replace") == form("m").decode("utf-8", "replace").encode()
            assert int(length) == len(form("m"))
        else:
            assert json.loads(sent)["model"] == "m"
            assert int(length) == len(sent)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_of_a_form_only_the_model_s_part_is_changed(data: bytes, before: str, after: str) -> None:
    if b"\r\n--q7" in data or "\r" in before + after or "\n" in before + after:
        return
    whole = form(before, "q7", data)
    found = forms.fields(whole, b"q7", (b"model",))
    assert found is not None
    (place,) = found[b"model"]
    assert whole[place[0] : place[1]] == before.encode()
    assert forms.with_field(whole, b"q7", b"model", after.encode()) == form(after, "q7", data)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (form("m"), "content-type: multipart/form-data\r\n"),
        (form("m"), "content-type: application/json\r\n"),
        (form("m", "other"), FORM),
        (b"--xyz\r\n\r\n--xyz--", FORM),
        (b"", FORM),
        (b"--xyz", FORM),
        (b'--xyz\r\ncontent-disposition: form-data; name="model"\r\n\r\n--xyz--\r\n', FORM),
    ],
)
async def test_what_is_no_form_with_a_model_is_refused(body: bytes, headers: str) -> None:
    async with serving() as s:
        response = await s.ask(body, "/v1/audio/transcriptions", headers)
        assert (response.status, response.code) == (400, "invalid_request")
        assert s.engines[0].seen.requests == 0


async def test_a_stream_is_asked_what_it_cost_and_the_client_does_not_see_the_answer() -> None:
    async with serving(chunks=2) as s:
        plain = await s.ask(STREAM)
        assert b'"usage"' not in plain.body
        assert plain.events[-1] == b"data: [DONE]"
        assert json.loads(s.engines[0].seen.last_body)["stream_options"] == {"include_usage": True}
        asked = await s.ask({**STREAM, "stream_options": {"include_usage": True}})
        assert b'"usage"' in asked.body
        told = await s.ask({**STREAM, "stream_options": {"include_usage": False, "other": 1}})
        assert b'"usage"' not in told.body
        assert json.loads(s.engines[0].seen.last_body)["stream_options"] == {"include_usage": True, "other": 1}
        samples = {(one.name, one.labels): one.value for one in s.gateway.samples()}
        assert samples["llmgw_gateway_tokens_total", ("m", "completion")] == 6
        assert samples["llmgw_gateway_tokens_total", ("m", "prompt")] == 9


async def test_a_stored_response_is_looked_for_at_one_endpoint_after_the_other() -> None:
    async with (
        running_engine("a", knows="resp_a") as a,
        running_engine("b", knows="resp_b") as b,
        gateway_before(a, b) as s,
    ):
        for method in ("GET", "DELETE"):
            for wanted in ("resp_a", "resp_b"):
                client = await s.client()
                client.get(f"/v1/responses/{wanted}", method)
                assert (await client.response()).status == 200
                await client.close()
        client = await s.client()
        client.get("/v1/responses/resp_c")
        response = await client.response()
        assert (response.status, response.code) == (404, "not_found")
        await client.close()
        cancelled = await s.ask({}, "/v1/responses/resp_b/cancel?model=m")
        assert cancelled.status == 404, "a named model is asked at one endpoint"


async def test_an_engine_s_own_paths_are_open_to_this_host() -> None:
    async with serving(echo_headers=True) as s:
        client = await s.client()
        client.get("/engines/alias/props?x=1")
        response = await client.response()
        assert response.json["path"] == "/props?x=1"
        await client.close()
        assert (await s.ask({}, "/engines/nobody/props")).code == "model_not_found"


async def test_a_websocket_is_passed_through_both_ways() -> None:
    async with serving() as s:
        client = await s.client()
        client.send(
            b"GET /v1/realtime?model=alias HTTP/1.1\r\nhost: gw\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: abc\r\nsec-websocket-version: 13\r\nauthorization: Bearer x\r\n\r\nearly"
        )
        head = await client.head()
        assert head.status == 101
        assert await client.reader.readexactly(5) == b"early"
        client.send(b"x" * 300_000)
        assert await client.reader.readexactly(300_000) == b"x" * 300_000
        sent = dict(s.engines[0].seen.last_headers)
        assert sent["sec-websocket-key"] == "abc"
        assert "authorization" not in sent
        assert s.in_flight == 1
        await client.close()
        await until(lambda: s.in_flight == 0)


async def test_a_websocket_that_cannot_be_is_refused_in_words() -> None:
    async with serving(status=403) as s:
        for path, code, upgrade in (
            ("/v1/realtime?model=nobody", "model_not_found", True),
            ("/v1/realtime", "invalid_request", True),
            ("/v1/realtime?model=m", "not_a_websocket", False),
        ):
            client = await s.client()
            client.get(path, headers="connection: upgrade\r\nupgrade: websocket\r\n" if upgrade else "")
            assert (await client.response()).code == code
            await client.close()
        client = await s.client()
        client.get("/v1/realtime?model=m", headers="connection: upgrade\r\nupgrade: websocket\r\n")
        assert (await client.head()).status == 403, "what the engine says is passed on"
        await client.close()


async def test_a_compressed_body_is_read_or_refused_in_words() -> None:
    async with serving(echo_headers=True) as s:
        body = json.dumps(CHAT).encode()
        response = await s.ask(gzip.compress(body), headers="content-encoding: gzip\r\n")
        assert response.json["body"].encode() == body
        assert "content-encoding" not in dict(response.json["headers"])
        assert (await s.ask(body, headers="content-encoding: br\r\n")).status == 415
        assert (await s.ask(body, headers="content-encoding: gzip\r\n")).status == 400
        assert (await s.ask(gzip.compress(body)[:-9], headers="content-encoding: gzip\r\n")).status == 400
        s.gateway.set_table(table(endpoint(0, address_of(s.engines[0])), version=2, max_body=1000))
        bomb = gzip.compress(b" " * 500_000)
        assert len(bomb) < 1000
        assert (await s.ask(bomb, headers="content-encoding: gzip\r\n")).status == 413
        assert (await s.ask(b" " * 1001)).status == 413


async def test_anthropic_s_routes_are_refused_in_anthropic_s_words() -> None:
    async with serving() as s:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            refused = await s.ask({**CHAT, "model": "nobody"}, path)
            assert (refused.status, refused.json["type"]) == (404, "error")
            assert refused.json["error"]["type"] == "not_found_error"
        assert (await s.ask(b"{", "/v1/messages")).json["error"]["type"] == "invalid_request_error"
