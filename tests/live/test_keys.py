"""Tenants, keys and usage in real processes: a server with two workers, real clients, and `llmgw keys`."""

import contextlib
import http.client
import json
import os
import signal
import time

import anthropic
import openai
import pytest

from llmgw.app.places import left_workers
from tests.live.lab import CLUSTER, Lab, alive, free_port
from tests.live.test_router import Router, engine

TENANT = "apiVersion: llmgw/v1\nkind: Tenant\nname: {name}\nmodels: [{models}]\n"
MESSAGES = [{"role": "user", "content": "hi"}]
WITHIN = 2.0
"""Seconds in which a change holds on every worker."""


def status(port: int, method: str, path: str, model: str = "", **headers: str) -> int:
    """What a request on a new connection is answered with."""
    body = json.dumps({"model": model, "messages": MESSAGES}) if model else None
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, {"connection": "close", **headers})
        response = connection.getresponse()
        response.read()  # one that goes away before the end has failed
        return response.status


class Keyed:
    """A lab whose server asks for keys, with a static engine `m`, another `n`, and two workers."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        one, _ = engine(lab, "m", "--chunks", "3")
        two, _ = engine(lab, "n", "--chunks", "3")
        self.admin_port = free_port()
        self.flags = (
            *("--workers", "2", "--endpoint", f"one={one}=m", "--endpoint", f"two={two}=n"),
            *("--admin-listen", f"127.0.0.1:{self.admin_port}", "--router-secret", "EDGE"),
        )
        lab.environment["LLMGW_SECRET_EDGE"] = "k3"
        lab.write("cluster.yaml", CLUSTER + lab._ports() + "router: {auth: keys}\n")
        lab.write("tenants/a.yaml", TENANT.format(name="a", models="m"))
        lab.write("tenants/b.yaml", TENANT.format(name="b", models="'*'"))
        (lab.cluster / "nodes/local.yaml").unlink()  # nothing is to be waited for but what is tested
        lab.commit()
        self.start()

    def start(self) -> None:
        before = set(self.workers())
        self.server = self.lab.start_server(*self.flags)
        self.lab.until(
            lambda: len(self.workers()) == 2 and not before & set(self.workers()) and self.current(), "two workers"
        )

    def current(self) -> bool:
        return bool(self.lab.status()["control"]["workers_current"])

    def workers(self) -> list[int]:
        return left_workers(self.lab.root / "s")

    def run(self, *arguments: str, fails: int = 0, **env: str) -> str:
        self.lab.environment.update(env)
        done = self.lab.llmgw(*arguments)
        for name in env:
            del self.lab.environment[name]
        assert done.returncode == fails, done.stderr
        return (done.stderr if fails else done.stdout).strip()

    def create(self, tenant: str) -> str:
        return self.run("keys", "create", tenant)

    def status_of(self, key: str, model: str = "m", port: int = 0) -> int:
        """What one new connection is told; whichever worker has it."""
        return status(port or self.lab.port, "POST", "/v1/chat/completions", model=model, authorization=f"Bearer {key}")

    def everywhere(self, status: int, key: str, port: int = 0) -> int:
        """Wait until many connections in a row are told that; return how many requests were answered."""
        begun, row, good = time.monotonic(), 0, 0
        while row < 12:
            found = self.status_of(key, port=port)
            good += found == 200
            row = row + 1 if found == status else 0
            assert time.monotonic() - begun < WITHIN + 2.0, f"{found} instead of {status}"
        return good

    def models(self, key: str) -> list[str]:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.lab.port}/v1", api_key=key) as client:
            return [one.id for one in client.models.list()]

    def usage(self, by: str = "tenant") -> dict[str, int]:
        shown = json.loads(self.run("usage", "--by", by, "--json"))
        return {str(row[by] or "-"): int(row["requests"]) for row in shown["usage"]}


@pytest.fixture
def keyed(lab: Lab) -> Keyed:
    return Keyed(lab)


def test_a_key_opens_what_is_its_tenant_s_until_it_is_revoked(keyed: Keyed) -> None:
    lab, base = keyed.lab, f"http://127.0.0.1:{keyed.lab.port}"
    key, other = keyed.create("a"), keyed.create("b")
    keyed.everywhere(200, key)
    assert keyed.models(key) == ["m"]
    assert keyed.models(other) == ["m", "n"]
    with openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content
        with pytest.raises(openai.NotFoundError) as hidden:
            client.chat.completions.create(model="n", messages=MESSAGES)
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="o", messages=MESSAGES)
        assert str(hidden.value).replace("`n`", "`o`") == str(missing.value)
        with pytest.raises(openai.PermissionDeniedError):
            client.get("../engines/m/metrics", cast_to=str)
    with anthropic.Anthropic(base_url=base, api_key=key, max_retries=0) as client:
        assert client.messages.create(model="m", messages=MESSAGES, max_tokens=9).content
    with openai.OpenAI(base_url=f"{base}/v1", api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            client.chat.completions.create(model="m", messages=MESSAGES)
        assert wrong.value.code == "invalid_api_key"
    with (
        anthropic.Anthropic(base_url=base, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model="m", messages=MESSAGES, max_tokens=9)
    assert status(lab.port, "OPTIONS", "/v1/chat/completions", origin="http://x") == 204
    assert status(lab.port, "GET", "/health") == status(lab.port, "GET", "/ready") == 200
    assert status(lab.port, "GET", "/v1/models") == 401

    # rotation: both hold, then the old one does not
    rotated = time.monotonic()
    fresh = keyed.run("keys", "rotate", "a", "--overlap", "2s")
    keyed.everywhere(200, fresh)
    if time.monotonic() - rotated < 2.0:
        assert keyed.status_of(key) == 200
    lab.until(lambda: keyed.status_of(key) == 401, "the end of the overlap")
    assert time.monotonic() - rotated >= 2.0

    # what is known outlives workers and the server
    victim = keyed.workers()[0]
    os.kill(victim, signal.SIGKILL)
    lab.until(lambda: victim not in keyed.workers() and len(keyed.workers()) == 2 and keyed.current(), "another worker")
    keyed.everywhere(200, fresh)
    keyed.server.kill()
    keyed.server.wait()
    assert keyed.status_of(fresh) == 200
    assert keyed.status_of("sk-llmgw-x-y") == 401
    keyed.start()
    keyed.everywhere(200, fresh)

    keyed.run("keys", "revoke", "a", "--reason", "leaked")
    keyed.everywhere(401, fresh)
    assert keyed.status_of(other) == 200
    listed = json.loads(keyed.run("keys", "list", "--all", "--json"))
    assert sorted((one["tenant"], one["state"]) for one in listed) == [
        ("a", "expired"),
        ("a", "revoked"),
        ("b", "valid"),
    ]
    assert "hash" not in listed[0]
    said = lab.log("server.log") + json.dumps(listed) + keyed.run("get", "audit", "--json")
    for secret in (key, fresh, other):
        assert secret.split("-", 3)[3] not in said
    assert "sk-wrong" not in said


def test_what_requests_cost_adds_up_over_a_killed_server_and_a_clean_stop(keyed: Keyed) -> None:
    lab = keyed.lab
    key, other = keyed.create("a"), keyed.create("b")
    made = keyed.everywhere(200, key)
    sent = keyed.everywhere(200, other)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{lab.port}/v1", api_key=key) as client:
        for _ in range(5):
            assert list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    made += 5
    lab.until(lambda: keyed.usage() == {"a": made, "b": sent}, f"{made} and {sent} requests")

    for _ in range(6):
        assert keyed.status_of(key) == 200
    keyed.server.kill()  # with some of them not told, or told and not confirmed
    keyed.server.wait()
    for _ in range(6):
        assert keyed.status_of(key) == 200  # while nobody listens
    made += 12
    keyed.start()  # the workers that did it hand it over before they end
    lab.until(lambda: keyed.usage() == {"a": made, "b": sent}, f"{made} requests")

    for _ in range(4):
        assert keyed.status_of(other, "n") == 200
    keyed.server.terminate()
    assert keyed.server.wait(20) == 0
    assert keyed.workers() == []
    keyed.start()
    assert keyed.usage() == {"a": made, "b": sent + 4}
    assert keyed.usage("model") == {"m": made + sent, "n": 4}
    shown = json.loads(keyed.run("usage", "-o", "json"))["usage"][0]
    assert shown["prompt_tokens"] > 0
    assert shown["completion_tokens"] > 0
    assert (shown["failed"], shown["estimated_tokens"]) == (0, 0)
    table = keyed.run("usage", "--by", "key").splitlines()
    assert table[0].split() == ["TENANT", "KEY", "REQUESTS", "FAILED", "IN", "OUT", "CACHED", "ESTIMATED"]
    assert table[-1].startswith("total")
    assert keyed.run("usage", "-o", "csv").splitlines()[1].startswith(f"a,{made},0,")
    assert all(one["last_used"] for one in json.loads(keyed.run("keys", "list", "--json")))


def test_administrators_over_tcp_and_routers_elsewhere(keyed: Keyed) -> None:
    lab, tcp = keyed.lab, f"http://127.0.0.1:{keyed.admin_port}"
    reads = keyed.run("keys", "create", "--admin", "--scope", "read")
    applies = keyed.run("keys", "create", "--admin", "--scope", "apply", "--note", "ci")
    all_of_it = keyed.run("keys", "create", "--admin", "--scope", "admin")

    def told(key: str, *arguments: str, fails: int = 0) -> str:
        return keyed.run(*arguments, "--server", tcp, fails=fails, LLMGW_TOKEN=key)

    assert "needs an administrator's key" in told("", "status", fails=1)
    assert "is no administrator's key" in told(keyed.create("a"), "status", fails=1)
    assert "cluster" in told(reads, "status")
    assert "needs `apply`" in told(reads, "suspend", "--reason", "x", fails=1)
    assert "needs `admin`" in told(applies, "keys", "list", fails=1)
    told(applies, "suspend", "--reason", "switch works")
    told(applies, "resume")
    assert all_of_it.split("-")[2] in told(all_of_it, "keys", "list")
    assert keyed.status_of(reads) == 401  # only the scope `admin` is known to gateways, for engines' own paths
    assert keyed.status_of(all_of_it) == 403
    assert status(lab.port, "GET", "/engines/m/health") == 401
    assert status(lab.port, "GET", "/engines/m/health", authorization=f"Bearer {all_of_it}") == 200

    def acts() -> set[tuple[str, str, bool]]:
        trail = json.loads(told(reads, "get", "audit", "--json", "--since", "1h"))
        return {(one["act"], one["who"], one["outcome"] == "done") for one in trail}

    ci = f"key/{applies.split('-')[2]}"
    user = next(who for act, who, _ in acts() if act == "keys create")
    assert user.startswith("user/")
    assert {("suspend", ci, True), ("resume", ci, True), ("keys create", user, True)} <= acts()
    lab.until(lambda: ("revision applied", "author/lab", True) in acts(), "the revision in the trail")

    # a router follows keys
    router = Router(lab, "--control", tcp, "--router-secret", "EDGE")
    lab.until(lambda: [one["current"] for one in lab.status()["control"]["routers"]] == [True], "the router")
    client = keyed.create("b")
    keyed.everywhere(200, client, port=router.port)
    keyed.run("keys", "revoke", client.split("-")[2])
    keyed.everywhere(401, client, port=router.port)
    before = keyed.create("b")
    keyed.everywhere(200, before, port=router.port)
    told_of = json.loads(keyed.run("usage", "--by", "key", "--json"))["usage"]
    assert client.split("-")[2] in [one["key"] for one in told_of]  # and hands over what its requests cost
    keyed.server.kill()
    keyed.server.wait()
    assert keyed.status_of(before, port=router.port) == 200  # by the last keys it heard of
    router.process.kill()
    router.process.wait()
    (worker,) = router.workers()
    assert alive(worker)
    assert keyed.status_of("wrong", port=router.port) == 401


def test_what_other_hosts_reach_needs_keys(lab: Lab) -> None:
    lab.commit()
    quiet = ("server", str(lab.cluster), "--log-level", "error", "--listen", "0.0.0.0:0")
    refused = lab.llmgw(*quiet).stderr
    assert "`router.auth` is off: write `auth: keys`" in refused
    assert refused.count("\n") == 1
    alone = (
        "router",
        "--endpoint",
        "a=http://127.0.0.1:1=m",
        "--listen",
        "0.0.0.0:0",
        "--state-dir",
        str(lab.root / "r"),
    )
    done = lab.llmgw(*alone)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--client-secret NAME" in done.stderr
    lab.environment["LLMGW_SECRET_FRONT"] = "short"
    assert "too short for a key" in lab.llmgw(*alone, "--client-secret", "FRONT").stderr


def test_a_router_alone_asks_for_its_one_secret(lab: Lab) -> None:
    url, _ = engine(lab, "m")
    secret = "a-secret-of-some-length"
    router = Router(lab, "--endpoint", f"one={url}=m", "--client-secret", "FRONT", LLMGW_SECRET_FRONT=secret)
    for key, wanted in ((secret, 200), (secret[:-1], 401), ("", 401)):
        assert status(router.port, "POST", "/v1/chat/completions", "m", **{"x-api-key": key}) == wanted
