"""What a command says of a server's answers, and of none; against a socket that answers what a test says."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from llmgw.cli import client
from llmgw.cli.client import ask
from llmgw.cli.main import exit_code
from llmgw.cli.outcomes import ConnectionLost, Failed, GuardRefused, NoServer, ServerRefused, WrongUsage

Serve = Callable[[bytes], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return what makes a server that reads one request, answers with these bytes, and closes the connection."""
    listening: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> str:
        path = str(tmp_path / "s")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen()
        listening.append(server)

        def answer_one() -> None:
            with suppress(OSError), closing(server.accept()[0]) as connection:
                said = connection.makefile("rb")
                length = 0
                while (line := said.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                said.read(length)
                connection.sendall(answer)

        threads.append(threading.Thread(target=answer_one, daemon=True))
        threads[-1].start()
        return path

    yield start
    for one in listening:
        one.close()
    for thread in threads:
        thread.join(5)


def _http(status: str, body: object, kind: str = "application/json") -> bytes:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def test_an_answer_is_an_object(serve: Serve) -> None:
    assert ask(serve(_http("200 OK", {"a": 1})), "GET", "/v1/status") == {"a": 1}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"], ids=["nothing", "half"])
def test_a_connection_that_breaks_is_no_server(serve: Serve, answer: bytes) -> None:
    with pytest.raises(ConnectionLost) as lost:
        ask(serve(answer), "POST", "/v1/apply", {"by": "me"})
    assert isinstance(lost.value, NoServer), "so whoever looks on goes on looking"
    assert "may have been taken up all the same: `llmgw history`" in str(lost.value)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/plan")])
def test_what_changes_nothing_was_not_taken_up(serve: Serve, method: str, path: str) -> None:
    with pytest.raises(ConnectionLost) as lost:
        ask(serve(b""), method, path)
    assert str(lost.value).endswith("broke the connection off")


def test_nobody_there_is_told_from_one_who_broke_off(tmp_path: Path) -> None:
    with pytest.raises(NoServer) as nobody:
        ask(str(tmp_path / "s"), "POST", "/v1/apply", {})
    assert not isinstance(nobody.value, ConnectionLost)


@pytest.mark.parametrize(
    ("answer", "kind", "code", "text"),
    [
        (_http("400 Bad Request", {"error": "no target"}), WrongUsage, 64, "no target"),
        (_http("403 Forbidden", {"error": "a guard", "guard": [{"rule": "protect"}]}), GuardRefused, 4, "a guard"),
        (_http("403 Forbidden", {"error": "a guard"}), GuardRefused, 4, "a guard"),
        (_http("403 Forbidden", {"error": "this needs …", "denied": True}), ServerRefused, 1, "this needs …"),
        (_http("401 Unauthorized", {"error": "a key …"}), ServerRefused, 1, "a key …"),
        (_http("404 Not Found", {"error": "no such"}), ServerRefused, 1, "no such"),
        (_http("413 Too Large", "Maximum request body size", "text/plain"), ServerRefused, 1, "more than the server"),
        (_http("500 Internal", "500 Internal Server Error", "text/plain"), ServerRefused, 1, "its log says why"),
        (_http("200 OK", "hello", "text/plain"), Failed, 1, "is not an llmgw server"),
    ],
)  # fmt: skip
def test_each_refusal_has_its_kind_and_exit_code(
    serve: Serve, capsys: pytest.CaptureFixture[str], answer: bytes, kind: type[Failed], code: int, text: str
) -> None:
    where = serve(answer)
    kinds: list[type] = []

    def command() -> None:
        try:
            ask(where, "POST", "/v1/apply", {})
        except Failed as error:
            kinds.append(type(error))
            raise

    assert exit_code(command) == code
    said = capsys.readouterr().err
    assert (kinds, said.count("\n")) == ([kind], 1)
    assert text in said
    assert "500" not in answer.decode() or "not an llmgw server" not in said


def test_what_is_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_REQUEST", 10)
    with pytest.raises(Failed, match="is this a cluster directory"):
        ask(str(tmp_path / "nobody"), "POST", "/v1/plan", {"files": {}})
