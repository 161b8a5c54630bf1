import json

import pytest

from llmgw.gateway.bodies import Call, with_model
from llmgw.gateway.bodies import read_call as read_call_of
from llmgw.gateway.errors import Fault
from llmgw.gateway.routes import POSTS


def read_call(body: bytes, path: bytes = b"/v1/embeddings", content_type: bytes = b"application/json") -> Call | Fault:
    return read_call_of(POSTS[path], body, content_type)


def test_model_and_stream_are_read() -> None:
    assert read_call(b'{"stream": true, "messages": [], "model": "m"}') == Call("m", True)
    assert read_call(b'{"model": "m", "stream": null}') == Call("m", False)
    assert read_call('{"model": "\u4e2d/\\u4e2d"}'.encode()) == Call("\u4e2d/\u4e2d", False)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"m"', b"null", b"{}", b'{"model": null}', b'{"model": 3}', b'{"model": "m"} x', b"\xff\xfe"],
)
def test_what_is_no_call_is_refused(body: bytes) -> None:
    fault = read_call(body)
    assert isinstance(fault, Fault)
    assert (fault.status, fault.code) == (400, "invalid_request")


def test_deep_nesting_is_refused_and_not_fatal() -> None:
    assert isinstance(read_call(b'{"model":"m","x":' + b"[" * 100_000), Fault)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"a","x":1}', b'{"model":"real","x":1}'),
        (b'{ "x" : 1.50 ,\n "model" :\t"a" }', b'{ "x" : 1.50 ,\n "model" :\t"real" }'),
        (b'{"tool":{"model":"a"},"model":"a"}', b'{"tool":{"model":"a"},"model":"real"}'),
        (b'{"s":"\\"model\\":\\"a\\"","model":"a"}', b'{"s":"\\"model\\":\\"a\\"","model":"real"}'),
        (b'{"s":"x, \\"model\\": ","model":"a","t":1e5}', b'{"s":"x, \\"model\\": ","model":"real","t":1e5}'),
        (b'{"model":"a","model":"a"}', b'{"model":"a","model":"real"}'),
        (b'{"s":"\\u00e9","model":"\\u0061"}', b'{"s":"\\u00e9","model":"real"}'),
    ],
)
def test_only_the_bytes_of_the_model_change(body: bytes, changed: bytes) -> None:
    assert with_model(body, "real") == changed


def test_a_key_written_with_escapes_is_changed_too() -> None:
    assert json.loads(with_model(b'{"a":1,"mod\\u0065l":"a","b":2}', "real")) == {"a": 1, "model": "real", "b": 2}


def test_many_decoys_end_in_the_right_document() -> None:
    decoys = ",".join(f'"d{n}":{{"model":"a"}}' for n in range(50))
    body = f'{{{decoys},"model":"a"}}'.encode()
    document = json.loads(with_model(body, "real"))
    assert document == {**json.loads(body), "model": "real"}


def test_a_name_that_needs_escapes_is_escaped() -> None:
    assert json.loads(with_model(b'{"model":"a"}', 'r"\\\n')) == {"model": 'r"\\\n'}
