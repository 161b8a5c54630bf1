"""`Endpoint` objects with a real server and worker, and a fake engine as the upstream that somebody else runs."""

import contextlib
import http.client
import json
from pathlib import Path

import psutil

from llmgw.app.places import left_workers
from llmgw.cli.client import ask
from tests.live.lab import Lab
from tests.live.test_router import engine, post

KEY = "sk-hunter2-of-the-hub"


def endpoint_yaml(url: str, *models: str) -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Endpoint
name: hub
url: {url}/v1
models: {json.dumps(models)}
api_key: {{secret: HUB}}
"""


def headers_seen(lab: Lab, model: str) -> dict[str, str]:
    """Ask a model whose engine answers with what it was sent."""
    with contextlib.closing(post(lab.port, {"model": model}, None)) as response:
        answer = json.loads(response.read())
    assert response.status == 200, answer
    return {name.lower(): value for name, value in answer["headers"]}


def listed(lab: Lab) -> list[str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", lab.port, timeout=10)) as connection:
        connection.request("GET", "/v1/models")
        return [one["id"] for one in json.loads(connection.getresponse().read())["data"]]


def test_an_upstream_of_the_directory_is_routed_to_with_its_key_which_nobody_sees(lab: Lab) -> None:
    url, _ = engine(lab, "x", "--echo-headers")
    lab.write("endpoints/hub.yaml", endpoint_yaml(url, "x", "org/Other"))
    lab.commit()
    lab.environment["LLMGW_SECRET_HUB"] = KEY
    lab.start_server()
    lab.until(lambda: listed(lab) == ["x", "org/Other"], "its models")
    assert headers_seen(lab, "x")["authorization"] == f"Bearer {KEY}"

    rows = json.loads(lab.llmgw("get", "endpoints", "-o", "json").stdout)
    assert [row["endpoint"] for row in rows] == ["hub/x", "hub/org/Other"]
    shown = lab.llmgw("status").stdout
    assert f"{url}/v1" in shown
    assert "not routed to" not in shown
    (worker,) = (psutil.Process(pid) for pid in left_workers(lab.root / "s"))
    kept = b"".join(path.read_bytes() for path in (lab.root / "s").rglob("*") if path.is_file())
    for place in (
        json.dumps(lab.status()),
        json.dumps(ask(str(lab.admin), "GET", "/v1/snapshot")),
        json.dumps(rows),
        lab.log("server.log"),
        kept.decode(errors="replace"),
        " ".join(worker.cmdline()),
        json.dumps(worker.environ()),
    ):
        assert KEY not in place

    Path(lab.cluster / "endpoints/hub.yaml").write_text(endpoint_yaml(url, "x"))
    code, plan = lab.plan()
    (changed,) = plan["objects"]
    assert (code, plan["replicas"]) == (2, [])
    assert [(one["path"], one["impact"]) for one in changed["fields"]] == [("models", "route")]
    lab.git("rm", "-qf", "endpoints/hub.yaml")
    said = lab.llmgw("plan", str(lab.cluster)).stdout
    assert f"requests for x, org/Other go to {url}/v1 no more; those that run there finish [route]" in said
    lab.commit()
    lab.until(lambda: listed(lab) == [], "it to be gone")


def test_an_upstream_whose_key_is_missing_is_not_routed_to_until_it_is_there(lab: Lab) -> None:
    url, _ = engine(lab, "x", "--echo-headers")
    lab.write("endpoints/hub.yaml", endpoint_yaml(url, "x"))
    lab.commit()
    secrets = lab.root / "secrets"
    secrets.mkdir(mode=0o700)
    lab.start_server("--secrets-dir", str(secrets), "--workers", "0")
    lab.until(lambda: "set LLMGW_SECRET_HUB, or put a file HUB" in lab.llmgw("status").stdout, "what is missing")
    assert listed(lab) == []
    (secrets / "HUB").touch(mode=0o600)
    (secrets / "HUB").write_text(KEY + "\n")
    lab.until(lambda: listed(lab) == ["x"], "its model")
    assert headers_seen(lab, "x")["authorization"] == f"Bearer {KEY}"
