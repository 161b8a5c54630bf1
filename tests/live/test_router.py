"""`llmgw router` in real processes: alone, over TLS, and beside a control plane that may go away."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from llmgw.app.places import left_workers
from tests.fakes.certificates import write_pair
from tests.live.lab import ENGINE, Lab, alive, fake_yaml, free_port

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def engine(lab: Lab, alias: str, *flags: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a fake engine that no agent knows; return its URL and process."""
    port = free_port()
    command = [sys.executable, str(ENGINE), "--alias", alias, "--port", str(port), *flags]
    with (lab.root / "engines.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    lab.processes.append(process)
    lab.until(lambda: listens(port), "an engine to listen", process)
    return f"http://127.0.0.1:{port}", process


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Router:
    """One router of a lab."""

    def __init__(self, lab: Lab, *arguments: str, name: str = "r", **env: str) -> None:
        self.lab = lab
        self.name = name
        self.port = free_port()
        self.state = lab.root / name
        self.arguments = arguments
        self.env = env
        self.start()

    def start(self) -> None:
        self.process = self.lab.spawn(
            "router",
            "--listen", f"127.0.0.1:{self.port}", "--state-dir", str(self.state), "--name", self.name, "--drain", "5",
            *self.arguments, log=f"{self.name}.log", env=self.env,
        )  # fmt: skip
        self.lab.until(lambda: listens(self.port), "the router to listen", self.process)

    def workers(self) -> list[int]:
        return left_workers(self.state)

    def ask(self, model: str, trusting: ssl.SSLContext | None = None) -> str:
        status, answer = chat(self.port, model, trusting)
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    def carriers(self) -> set[int]:
        """The workers with a client."""
        return {
            pid
            for pid in self.workers()
            for one in psutil.Process(pid).net_connections("tcp")
            if one.laddr and one.laddr.port == self.port and one.status == psutil.CONN_ESTABLISHED
        }

    def said(self, text: str) -> bool:
        return text in self.lab.log(f"{self.name}.log")


def post(port: int, body: dict[str, object], trusting: ssl.SSLContext | None) -> http.client.HTTPResponse:
    if trusting is None:
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusting)
    headers = {"content-type": "application/json", "connection": "close"}
    connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, **body}), headers)
    return connection.getresponse()


def chat(port: int, model: str, trusting: ssl.SSLContext | None = None) -> tuple[int, dict[str, Any]]:
    with contextlib.closing(post(port, {"model": model}, trusting)) as response:
        return response.status, json.loads(response.read())


class Stream:
    """A chat that runs on while the test does something else."""

    def __init__(self, port: int, model: str, trusting: ssl.SSLContext | None = None) -> None:
        self.response = post(port, {"model": model, "stream": True}, trusting)
        assert self.response.status == 200
        assert self.response.readline().startswith(b"data: ")

    def last(self) -> str:
        """Read it to its end."""
        with contextlib.closing(self.response):
            return [line for line in self.response.read().decode().splitlines() if line][-1]


@pytest.fixture
def quiet_lab() -> Iterator[Lab]:
    """A place for processes, without a cluster that anybody follows."""
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()


def test_a_worker_that_is_killed_is_replaced_while_a_stream_runs_on(quiet_lab: Lab) -> None:
    lab = quiet_lab
    one, first = engine(lab, "a", "--chunks", "40", "--chunk-interval", "0.1")
    two, _ = engine(lab, "b")
    router = Router(lab, "--workers", "2", LLMGW_ENDPOINT=f"one={one}=a,both two={two}/v1=b,both")
    lab.until(lambda: len(router.workers()) == 2, "two workers")
    assert router.ask("a").startswith("a ")
    assert router.ask("b").startswith("b ")
    assert {router.ask("both").split()[0] for _ in range(20)} == {"a", "b"}

    stream = Stream(router.port, "a")
    (carrier,) = lab.until(router.carriers, "a worker that carries the stream")
    (victim,) = set(router.workers()) - {carrier}
    os.kill(victim, signal.SIGKILL)
    lab.until(lambda: len(set(router.workers()) - {victim}) == 2, "another worker")
    assert victim not in router.workers()
    (fresh,) = set(router.workers()) - {carrier}
    for _ in range(10):
        assert router.ask("b").startswith("b ")
    assert stream.last() == "data: [DONE]"

    router.process.kill()  # its workers serve on, and the next router takes them over
    router.process.wait()
    assert router.ask("b").startswith("b ")
    router.start()
    lab.until(lambda: not {carrier, fresh} & set(router.workers()) and len(router.workers()) == 2, "fresh workers")
    assert router.ask("b").startswith("b ")

    first.kill()
    first.wait()
    assert {router.ask("both").split()[0] for _ in range(5)} == {"b"}
    router.process.terminate()
    assert router.process.wait(10) == 0
    assert router.workers() == []


def test_tls_towards_clients_and_engines_and_a_certificate_that_changes(quiet_lab: Lab) -> None:
    lab = quiet_lab
    url, _ = engine(lab, "m", "--chunks", "40", "--chunk-interval", "0.1")
    certificate, key = write_pair(lab.root)
    router = Router(lab, "--endpoint", f"e={url}=m", "--tls-cert", str(certificate), "--tls-key", str(key))
    secure = ssl.create_default_context(cafile=str(certificate))
    assert router.ask("m", secure).startswith("m ")
    front = Router(
        lab, "--endpoint", f"r=https://localhost:{router.port}=m", name="front", SSL_CERT_FILE=str(certificate)
    )
    assert front.ask("m").startswith("m ")

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", router.port))

    assert shown() == certificate.read_text()
    old = certificate.read_text()
    stream = Stream(router.port, "m", secure)
    write_pair(lab.root)
    lab.until(lambda: shown() == certificate.read_text() != old, "the new certificate")
    good = certificate.read_text()
    certificate.write_text(old)
    lab.until(lambda: router.said("the one before stays"), "a word on the broken pair")
    assert shown() == good
    assert stream.last() == "data: [DONE]"  # over the connection that has shown the first one
    assert router.ask("m", ssl.create_default_context(cadata=good)).startswith("m ")
    assert lab.log("r.log").count("the one before stays") == 1


def test_without_worker_processes_the_program_itself_serves_and_lets_a_stream_finish(quiet_lab: Lab) -> None:
    lab = quiet_lab
    url, _ = engine(lab, "m", "--chunks", "20", "--chunk-interval", "0.05")
    router = Router(lab, "--workers", "0", "--endpoint", f"e={url}=m")
    assert router.ask("m").startswith("m ")
    assert router.workers() == []
    stream = Stream(router.port, "m")
    router.process.terminate()
    assert stream.last() == "data: [DONE]"
    assert router.process.wait(10) == 0

    router.start()
    cut = Stream(router.port, "m")
    router.process.terminate()
    lab.until(lambda: lab.log("r.log").count("stopping; running requests") == 2, "the first signal to be heeded")
    router.process.terminate()
    assert router.process.wait(10) == 0
    with pytest.raises(http.client.IncompleteRead):
        cut.last()


def test_what_cannot_be_started_is_said_in_one_line(quiet_lab: Lab) -> None:
    lab = quiet_lab
    certificate, key = write_pair(lab.root)
    _, other = write_pair(lab.root, "other")
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--state-dir", str(lab.root / "r"))
    fine = ("--endpoint", "a=http://127.0.0.1:1=m")
    for arguments, code, said in (
        ((), 64, "a router needs --endpoint id=URL=model[,model], or the --control URL"),
        (("--endpoint", "a"), 64, "--endpoint: 'a' does not name an endpoint and its models; write id=URL="),
        ((*fine, *fine), 64, "two endpoints are called 'a'"),
        (("--endpoint", "a=tcp://x=m"), 64, "is no http:// or https:// URL"),
        (("--endpoint", "a=http://x="), 64, "a model's name is empty"),
        (("--control", "127.0.0.1:9090", "--router-secret", "X"), 64, "--control 127.0.0.1:9090 is not understood"),
        (("--control", "http://127.0.0.1:9090"), 64, "--control needs --router-secret NAME"),
        (("--control", "http://127.0.0.1:9090", "--router-secret", "X"), 1, "there is no secret X: set LLMGW_SECRET_X"),
        ((*fine, "--tls-cert", str(certificate)), 64, "--tls-cert and --tls-key go together"),
        ((*fine, "--tls-cert", str(certificate), "--tls-key", "/nowhere"), 1, "cannot read /nowhere: No such file"),
        ((*fine, "--tls-cert", str(certificate), "--tls-key", str(other)), 1, "does not belong to the certificate"),
    ):
        done = lab.llmgw("router", *listen, *arguments)
        assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (code, True, 1), done.stderr
    assert key.exists()
    done = lab.llmgw("server", str(lab.cluster), "--endpoint", "a")
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)


def test_a_router_beside_a_control_plane_serves_on_without_it(lab: Lab) -> None:
    url, _ = engine(lab, "outside")
    lab.environment["LLMGW_SECRET_EDGE"] = "k3"
    lab.write("models/m.yaml", fake_yaml("m", "--chunks", "40", "--chunk-interval", "0.1"))
    lab.commit()
    admin = free_port()
    flags = ("--admin-listen", f"127.0.0.1:{admin}", "--router-secret", "EDGE", "--endpoint", f"o={url}=outside,m")
    lab.start_agent()
    server = lab.start_server(*flags)
    lab.until(lambda: lab.ready("m"), "m")
    control = ("--control", "http://127.0.0.1:1", "--control", f"http://127.0.0.1:{admin}", "--router-secret", "EDGE")
    router = Router(lab, *control)

    def row() -> dict[str, object]:
        return next(
            iter(lab.status()["control"]["routers"]), {"current": False, "connected_since": None, "in_flight": 0}
        )

    lab.until(lambda: row()["current"], "the router to go by the table")
    assert row()["name"] == "r"
    assert row()["address"] == f"http://127.0.0.1:{router.port}/v1"
    for ask in (router.ask, lab.ask):  # static endpoints, and models that both have
        assert ask("outside").startswith("outside ")
        assert {ask("m").split()[0] for _ in range(20)} == {"m", "outside"}
    listed = [row["endpoint"] for row in json.loads(lab.llmgw("get", "endpoints", "-o", "json").stdout)]
    assert listed == ["m-1-0", "o/outside", "o/m"]
    assert "1 router(s) elsewhere" in lab.llmgw("status").stdout

    server.kill()
    server.wait()
    (worker,) = router.workers()
    assert router.ask("outside").startswith("outside ")
    os.kill(worker, signal.SIGKILL)
    lab.until(lambda: router.workers() and worker not in router.workers() and listens(router.port), "another worker")
    assert {router.ask("m").split()[0] for _ in range(20)} == {"m", "outside"}  # by the last table

    flags = flags[:-2]
    lab.start_server(*flags)
    lab.until(lambda: row()["current"], "the router to be back")
    stream = Stream(router.port, "m")
    lab.until(lambda: row()["in_flight"] == 1, "the stream to be counted")
    pid = lab.pids()["m-1-0"]
    lab.git("rm", "-q", "models/m.yaml")
    lab.commit()
    lab.until(lambda: [one["phase"] for one in lab.replicas("m")] == ["draining"], "the drain to begin")
    assert stream.last() == "data: [DONE]"  # nothing was stopped under it
    lab.until(lambda: not alive(pid), "the engine to end")

    router.process.kill()
    router.process.wait()
    lab.until(lambda: row()["connected_since"] is None, "the server to miss the router")
    assert "1 not connected" in lab.llmgw("status").stdout
    assert not lab.status()["control"]["workers_current"]
    router.start()
    lab.until(lambda: row()["current"], "the next router of that name")
    router.process.terminate()
    assert router.process.wait(15) == 0
    lab.until(lambda: lab.status()["control"]["routers"] == [], "the router's goodbye")
    assert json.loads((lab.root / "s/routers.json").read_text()) == {}


def test_a_router_without_the_secret_is_told_what_to_do(lab: Lab) -> None:
    lab.environment["LLMGW_SECRET_EDGE"] = "k3"
    lab.commit()
    admin = free_port()
    lab.start_server("--admin-listen", f"127.0.0.1:{admin}")
    control = ("--control", f"http://127.0.0.1:{admin}", "--router-secret", "EDGE")
    router = lab.spawn(
        "router", *control, "--listen", f"127.0.0.1:{free_port()}", "--state-dir", str(lab.root / "r"), log="r.log"
    )
    lab.until(
        lambda: "it takes no routers; start it with --router-secret NAME" in lab.log("r.log"), "its reason", router
    )
    assert not (lab.root / "s/routers.json").exists()
