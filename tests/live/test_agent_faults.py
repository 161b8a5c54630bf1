"""What goes wrong with an engine on its node, with real processes: wedged, busy, robbed of its port, killed, never ready."""

import asyncio
import hashlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai

from llmgw.agent.liveness import Pulse
from llmgw.agent.probe import Prober
from llmgw.agent.procfs import stat_of
from tests.fakes.files import serving_file
from tests.live.lab import ENGINE, Lab, alive, fake_yaml, model_yaml, stolen
from tests.live.test_broken import _switch
from tests.live.test_skeleton import Stream
from tests.unit.agent.brain import SPEC

SLOW = ("--chunks", "400", "--chunk-interval", "0.1")


def serve(lab: Lab, *flags: str, extra: str = "") -> int:
    """Serve one model by the fake engine; return the engine's pid."""
    lab.write("models/m.yaml", fake_yaml("m", *flags, extra=extra))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    return lab.pids()["m-1-0"]


def replica(lab: Lab) -> dict[str, Any]:
    return next(iter(lab.replicas("m")), {})


def ask_in_vain(lab: Lab, count: int) -> list[threading.Thread]:
    """Ask so many questions that nobody will answer."""

    def stream() -> None:
        with lab.client() as client, suppress(openai.OpenAIError):
            question: Any = [{"role": "user", "content": "hi"}]
            for _ in client.chat.completions.create(model="m", messages=question, stream=True):
                pass

    threads = [threading.Thread(target=stream) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def restarted(lab: Lab, engine: int, code: str) -> dict[str, Any]:
    """Wait until the engine was replaced for this reason; return how it ended."""

    def replaced() -> dict[str, Any] | None:
        one = replica(lab)
        end = one.get("last_end")
        return end if lab.ready("m") and one["pid"] != engine and end is not None and end["code"] == code else None

    found: dict[str, Any] = lab.until(replaced, f"another engine after {code}")
    assert not alive(engine)
    return found


def test_an_engine_wedged_behind_a_healthy_health_is_restarted(lab: Lab) -> None:
    engine = serve(lab, "--chunks", "50", "--wedge-after", "5", extra="    stall_after: 14s\n")
    threads = ask_in_vain(lab, 2)
    lab.until(lambda: replica(lab).get("engine_in_flight") == 2, "the engine's own word of what is in flight")
    assert replica(lab)["degraded"] is None
    end = restarted(lab, engine, "stalled")
    assert "2 requests in flight and no token for" in end["text"]
    for thread in threads:
        thread.join()


def test_an_engine_whose_loop_hangs_is_restarted_though_its_health_answers(lab: Lab) -> None:
    flags = ("--chunks", "50", "--wedge-after", "5", "--silent-metrics")
    engine = serve(lab, *flags, extra="    stall_after: 8s\n")
    threads = ask_in_vain(lab, 1)
    end = restarted(lab, engine, "stalled")
    assert "its loop does not answer" in end["text"]
    for thread in threads:
        thread.join()


def test_a_busy_engine_whose_health_fails_is_degraded_and_untouched(lab: Lab) -> None:
    engine = serve(lab, *SLOW, extra="    stall_after: 5s\n")
    stream = Stream(lab, "m")
    _switch(replica(lab)["port"], '{"health_status": 503}')
    lab.until(lambda: replica(lab)["degraded"], "the failing probes to be said")
    assert replica(lab)["engine_in_flight"] == 1
    stream.end()
    assert (stream.error, stream.finish) == (None, "stop")
    assert lab.pids() == {"m-1-0": engine}
    assert "/health answers 503" in lab.llmgw("status").stdout


def test_an_engine_whose_listener_died_is_replaced_and_a_thief_of_its_port_is_named(lab: Lab) -> None:
    engine = serve(lab, "--lose-port-after", "6")
    port = replica(lab)["port"]
    with stolen(lab, port):

        def moved() -> dict[str, Any] | None:
            one = replica(lab)
            return one if one and one["port"] != port and lab.ready("m") else None

        one = lab.until(moved, "the engine at another port")
        assert one["last_end"]["code"] == "port_stolen"
        assert f"port {port} is held by pid {os.getpid()} (" in one["last_end"]["text"]
        assert not alive(engine)


def test_a_port_that_is_taken_between_start_and_bind_is_named_and_left_to_its_holder(lab: Lab) -> None:
    late = json.dumps(["sh", "-c", f'sleep 4; exec {sys.executable} {ENGINE} "$@"', "late"])
    text = fake_yaml("m")
    command = next(line for line in text.splitlines() if "command:" in line)
    lab.write("models/m.yaml", text.replace(command, f"    command: {late}"))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: replica(lab).get("phase") == "starting", "its start")
    port = replica(lab)["port"]
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", port))
        thief.listen()
        end = lab.until(lambda: replica(lab).get("last_end"), "the end of the attempt")
        assert end["code"] == "port_taken"
        assert f"port {port} is taken by pid {os.getpid()} (" in end["text"]
        lab.until(lambda: replica(lab).get("port") != port and lab.ready("m"), "it to serve at another port")


def test_real_llama_cpp_shows_every_token_in_its_slots_and_nothing_while_idle(lab: Lab) -> None:
    lab.write("models/m.yaml", model_yaml("m"))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: lab.ready("m"), "the model")
    spec = replace(SPEC, port=replica(lab)["port"])

    async def pulses() -> list[Pulse]:
        prober = Prober()
        seen = []
        try:
            for _ in range(4):
                pulse = await prober.pulse(spec)
                assert pulse is not None
                seen.append(pulse)
                await asyncio.sleep(0.1)
        finally:
            await prober.close()
        return seen

    idle = asyncio.run(pulses())
    assert [one.in_flight for one in idle] == [0] * 4
    assert len({one.activity for one in idle}) == 1

    def generate() -> None:
        with lab.client() as client:
            client.completions.create(model="m", prompt="a", max_tokens=3000, extra_body={"ignore_eos": True})

    thread = threading.Thread(target=generate)
    thread.start()
    busy = [one for one in asyncio.run(pulses()) if one.in_flight]
    thread.join()
    assert len(busy) >= 2, "it was asked while it generated"
    assert len({one.activity for one in busy}) == len(busy)


def test_an_engine_that_stops_listening_is_started_again_where_it_was(lab: Lab) -> None:
    engine = serve(lab, "--lose-port-after", "6")
    port = replica(lab)["port"]
    end = restarted(lab, engine, "port_lost")
    assert end["text"] == f"nothing listens on port {port} any more, though the engine's process lives"


def test_a_killed_engine_leaves_no_grandchild_behind(lab: Lab) -> None:
    engine = serve(lab, "--spawn-child")
    orphans = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _session(path) == engine]
    orphans.remove(engine)
    assert orphans, "the engine has a child whose parent ended"
    os.kill(engine, signal.SIGKILL)
    restarted(lab, engine, "killed")
    assert [pid for pid in orphans if alive(pid)] == []


def _session(path: Path) -> int:
    stat = stat_of(int(path.name))
    return stat.session if stat is not None else 0


def test_an_engine_that_ends_with_status_0_has_failed(lab: Lab) -> None:
    engine = serve(lab, "--exit-after", "4", "--exit-code", "0")
    assert restarted(lab, engine, "exited")["text"] == "exited with status 0 without being asked to"


def test_an_engine_that_ignores_sigterm_is_killed_and_says_why_meanwhile(lab: Lab) -> None:
    engine = serve(lab, "--ignore-sigterm")
    lab.write("models/m.yaml", fake_yaml("m", "--ignore-sigterm", replicas=0))
    lab.commit()
    lab.until(lambda: replica(lab).get("reason_code") == "asked_to_end", "the reason of the stop")
    assert "killed if it has not ended after 10 s" in replica(lab)["reason"]
    lab.until(lambda: not lab.replicas("m"), "the end of it")
    assert not alive(engine)


def test_a_start_that_talks_for_ever_is_ended(lab: Lab) -> None:
    flags = ("--load-seconds", "600", "--log-every", "0.2")
    lab.write("models/m.yaml", fake_yaml("m", *flags, extra="    start_timeout: 2s\n"))
    lab.commit()
    lab.agent = lab.start_agent()
    lab.server = lab.start_server()
    lab.until(lambda: (replica(lab).get("progress") or "").startswith("fake engine: still waiting"), "its last line")
    begun = time.monotonic()
    end = lab.until(lambda: replica(lab).get("last_end"), "the end of the attempt")
    assert end["code"] == "start_timeout"
    assert end["text"].startswith("not ready within 8 s, though its log grows; last answer: /health answers 503")
    assert "last line of its log: fake engine: still waiting" in end["text"]
    assert time.monotonic() - begun < 30


def test_weights_from_a_url_are_fetched_once_verified_and_served(lab: Lab) -> None:
    content = (lab.weights / "tiny.gguf").read_bytes() + random.Random(1).randbytes(1 << 20)
    digest = hashlib.sha256(content).hexdigest()
    with serving_file(content) as files:
        files.status = 404
        weights = f"  url: {files.url}\n  sha256: {digest}"
        lab.write("models/m.yaml", fake_yaml("m", replicas=2).replace("  path: tiny.gguf", weights))
        lab.commit()
        lab.agent = lab.start_agent()
        lab.server = lab.start_server()
        lab.until(lambda: replica(lab).get("reason_code") == "http_404", "the reason of the failed fetch")
        assert "answers 404" in lab.llmgw("status").stdout
        files.pace, files.status = 0.15, 200
        lab.until(lambda: "1 MiB" in (replica(lab).get("progress") or ""), "the progress of the fetch")
        lab.until(lambda: replica(lab).get("phase") == "fetching", "the phase")
        files.pace = 0.0
        lab.until(lambda: lab.ready("m", 2), "the model")
        target = lab.weights / f"{digest[:16]}-file.gguf"
        assert target.read_bytes() == content
        whole = [asked for asked in files.asked if not asked]
        failed = len(files.asked) - 1
        assert len(whole) == failed + 1
        assert sorted(path.name for path in lab.weights.iterdir()) == sorted(["tiny.gguf", target.name])


def test_an_order_that_wants_it_no_more_ends_a_fetch_and_a_killed_agent_goes_on_with_it(lab: Lab) -> None:
    content = random.Random(2).randbytes(4 << 20)
    digest = hashlib.sha256(content).hexdigest()
    with serving_file(content) as files:
        files.pace = 0.1
        weights = f"  url: {files.url}\n  sha256: {digest}"
        text = fake_yaml("m").replace("  path: tiny.gguf", weights)
        lab.write("models/m.yaml", text)
        lab.commit()
        lab.agent = lab.start_agent()
        lab.server = lab.start_server()
        partial = lab.weights / f"{digest[:16]}-file.gguf.partial"
        lab.until(lambda: partial.exists() and partial.stat().st_size > 500_000, "half of the file")
        lab.agent.kill()
        lab.agent.wait()
        kept = partial.stat().st_size
        lab.agent = lab.start_agent()
        lab.until(lambda: len(files.asked) == 2, "the fetch to go on")
        assert files.asked[1].startswith("bytes=")
        assert int(files.asked[1].removeprefix("bytes=").rstrip("-")) >= kept
        lab.write("models/m.yaml", text.replace("replicas: 1", "replicas: 0"))
        lab.commit()
        lab.until(lambda: not lab.replicas("m"), "the shard to be gone")
        lab.until(lambda: not _fetchers(files.url), "the fetch to be ended")
        whole = partial.with_suffix("")
        assert partial.exists() or whole.exists(), "what came is kept, and may be all of it by now"


def _fetchers(url: str) -> list[str]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and alive(int(path.name)):
            try:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if "llmgw.agent.fetch" in command and url in command:
                found.append(path.name)
    return found
