"""A tenant that may use one model does not get at another one, or at an upstream's other paths, by asking in an odd way."""

import pytest

from llmgw.base.ids import ModelName
from llmgw.fleet.access import Access, KnownKey, TenantRight, hash_of
from llmgw.fleet.table import EndpointTable, RoutedModel
from llmgw.gateway import forms
from tests.fakes.engine import FakeEngine, running_engine
from tests.unit.gateway.support import address_of, endpoint, gateway_before

KEY = "authorization: Bearer sk-llmgw-t-s3cret\r\n"
FORM = "content-type: multipart/form-data; boundary=B\r\n"
MINE = Access(1, True, (KnownKey("t", hash_of("s3cret"), "t"),), (TenantRight("t", ("m",)),))
MODEL = b'content-disposition: form-data; name="model"'


def upstream(engine: FakeEngine) -> EndpointTable:
    """One that has the tenant's model `m`, and `n`, which is not for it."""
    models = tuple(RoutedModel(ModelName(name), (), 1, 9) for name in "mn")
    return EndpointTable(1, models, tuple(endpoint(0, address_of(engine), name) for name in "mn"))


def form(*parts: bytes) -> bytes:
    return b"".join(b"--B\r\n" + part + b"\r\n" for part in parts) + b"--B--\r\n"


async def asked(method: str, path: str, body: object = b"", headers: str = "") -> tuple[int, int]:
    """Return the status, and how often the upstream was asked anything."""
    async with running_engine("m") as engine, gateway_before(engine, routed=upstream(engine)) as s:
        s.gateway.set_access(MINE)
        client = await s.client()
        if method == "POST":
            client.post(body, path, KEY + headers)
        else:
            client.get(path, method, KEY)
        status = (await client.response()).status
        return status, engine.seen.connections


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/../files/f1",
        "/v1/responses/x/../../../slots",
        "/v1/responses/%2e%2e/files/f1",
        "/v1/responses/..%2ffiles",
        "/v1/responses/.",
        "/v1/responses//x",
        "/v1/responses/x/",
        "/v1/responses/x\\..",
        "/v1/responses/x;y",
    ],
)
async def test_no_other_path_of_an_upstream_is_reached_through_a_stored_response(method: str, path: str) -> None:
    status, reached = await asked(method, path + "?model=m", b"{}")
    assert status in (404, 405)
    assert reached == 0


@pytest.mark.parametrize(
    "path", ["/v1/responses/compact", "/v1/responses/compact?model=m", "/v1/responses/r/o?model=m"]
)
async def test_what_is_posted_below_responses_names_its_model_in_its_body(path: str) -> None:
    assert await asked("POST", path, {"model": "n", "input": "x"}) == (404, 0)
    assert (await asked("POST", path, {"model": "m", "input": "x"}))[1] == 1


@pytest.mark.parametrize("query", ["model=m&model=n", "model=m&mod%65l=n", "mod%65l=n"])
async def test_a_model_is_named_once_in_a_query_however_it_is_written(query: str) -> None:
    status, reached = await asked("GET", f"/v1/responses/resp_1?{query}")
    assert (status, reached) == (404 if query.startswith("mod%") else 400, 0)


@pytest.mark.parametrize(
    "more",
    [
        MODEL + b"\r\n\r\nn",
        b"x-pad: " + b"a" * forms.LONGEST_HEAD + b"\r\n" + MODEL + b"\r\n\r\nn",
        b'content-disposition: form-data; name="model"; x="; filename="\r\n\r\nn',
        b'content-disposition: form-data; name="mod\\el"\r\n\r\nn',
        b"content-disposition: form-data;\r\n name=model\r\n\r\nn",
        b"content-disposition: form-data; name*=utf-8''model\r\n\r\nn",
        b'content-disposition: form-data; name="x"\r\n' + MODEL + b"\r\n\r\nn",
    ],
)
async def test_a_form_that_could_be_read_in_two_ways_is_refused(more: bytes) -> None:
    mine = MODEL + b"\r\n\r\nm"
    for parts in ((mine, more), (more, mine)):
        assert await asked("POST", "/v1/audio/transcriptions", form(*parts), FORM) == (400, 0)
    twice = "content-type: multipart/form-data; boundary=B; boundary=C\r\n"
    assert await asked("POST", "/v1/audio/transcriptions", form(mine), twice) == (400, 0)


async def test_a_file_s_name_may_look_like_anything() -> None:
    mine = MODEL + b"\r\n\r\nm"
    head = b'Content-Disposition: form-data; name="file"; filename="C:\\a; name=model.wav"\r\n'
    file = head + b'content-type: audio/wav; name="b"\r\n\r\nRIFF'
    assert (await asked("POST", "/v1/audio/transcriptions", form(file, mine), FORM))[0] == 200
