"""The fetch of a repository, as the program that it is, against a server that speaks the hub's API."""

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import fetch_hub
from llmgw.agent.fetch import Progress
from tests.fakes.hub import Hub, serving_hub

COMMIT = "c0ffee" * 6 + "beef"
LARGE = random.Random(7).randbytes(300_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": LARGE,
    "pytorch_model.bin": LARGE[:9000],
    "original/params.json": b"{}",
    "sub dir/tokenizer.json": b"[1, 2]",
}
WANTED = {name: FILES[name] for name in ("config.json", "model.safetensors", "sub dir/tokenizer.json")}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub(Hub("Org/Name", COMMIT, dict(FILES))) as hub:
        yield hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "w" / "Org--Name-c0ffee"


def run(hub: Hub, target: Path, *patterns: str, token: str = "", repo: str = "Org/Name", commit: str = COMMIT):
    """Return the last thing that the program says, and all that it said before."""
    chosen = [argument for pattern in patterns for argument in ("--file", pattern)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(target.parent.parent / "hf"),
        **({"HF_TOKEN": token} if token else {}),
    }
    done = subprocess.run(
        [sys.executable, "-m", "llmgw.agent.fetch_hub", "--repo", repo, "--commit", commit, *chosen, "--target", str(target)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    *before, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (0 if last == {"fetched": True} else 1)
    return last, before


def there(target: Path) -> dict[str, bytes]:
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def test_a_commits_files_are_fetched_whole_without_what_repeats_the_weights(hub: Hub, target: Path) -> None:
    last, before = run(hub, target)
    assert last == {"fetched": True}
    assert there(target) == WANTED
    assert [path.name for path in target.parent.iterdir()] == [target.name], "no lock and no part is left"
    assert {line["total"] for line in before} == {sum(map(len, WANTED.values()))}
    asked = len(hub.asked)
    assert run(hub, target)[0] == {"fetched": True}
    assert len(hub.asked) == asked, "what is there is not asked for"


def test_only_the_files_that_match_are_fetched(hub: Hub, target: Path) -> None:
    run(hub, target, "*.bin", "config.json")
    assert set(there(target)) == {"pytorch_model.bin", "config.json"}


def test_no_file_that_matches_is_an_error_that_says_so(hub: Hub, target: Path) -> None:
    last, _ = run(hub, target, "*.gguf")
    assert last["error"] == "no_such_file"
    assert "correct the weights' `files`" in last["text"]


def test_a_file_that_broke_off_goes_on_from_where_it_was_and_whole_ones_are_kept(hub: Hub, target: Path) -> None:
    hub.cut_after = 100_000
    last, _ = run(hub, target)
    assert last["error"] in ("truncated", "unreachable")
    assert not target.exists()
    assert run(hub, target)[0] == {"fetched": True}
    assert there(target) == WANTED
    assert hub.bytes_asked("model.safetensors") == ["", "", "bytes=100000-", "bytes=100000-"], "redirected each time"
    assert hub.bytes_asked("config.json") == [""]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_bytes_that_are_not_what_the_list_says_are_dropped(hub: Hub, target: Path, name: str) -> None:
    hub.spoilt = name
    last, _ = run(hub, target)
    assert last["error"] == "checksum_mismatch"
    assert not target.exists()
    assert not [path for path in target.parent.rglob("*") if path.name.startswith(name)]
    hub.spoilt = ""
    assert run(hub, target)[0] == {"fetched": True}


def test_the_token_is_shown_to_the_hub_and_not_to_where_it_redirects(hub: Hub, target: Path) -> None:
    hub.token = "hf_secret"
    last, _ = run(hub, target)
    assert last["error"] == "no_such_repository"
    assert "env: {HF_TOKEN: {secret: NAME}}" in last["text"]
    assert run(hub, target, token="hf_secret")[0] == {"fetched": True}
    shown = {path: shown for path, _, shown in hub.asked}
    assert shown["/Org/Name/resolve/" + COMMIT + "/model.safetensors"] == "Bearer hf_secret"
    assert shown["/store/model.safetensors"] == ""


@pytest.mark.parametrize(
    ("switch", "code", "said"),
    [
        ({"gated": True}, "hub_gated", "ask for access on its page"),
        ({"status": 500}, "http_500", "answers 500"),
        ({"file_status": 429}, "http_429", "too many requests"),
        ({"file_status": 403}, "http_403", "HF_TOKEN"),
        ({"file_status": 503}, "http_503", "503"),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(hub: Hub, target: Path, switch, code: str, said: str) -> None:
    for name, value in switch.items():
        setattr(hub, name, value)
    last, _ = run(hub, target)
    assert last["error"] == code
    assert said in last["text"]
    assert not target.exists()


def test_what_is_not_there_is_named(hub: Hub, target: Path) -> None:
    assert run(hub, target, repo="Org/Other")[0]["error"] == "no_such_repository"
    assert run(hub, target, repo="Org/..")[0]["error"] == "no_such_repository"
    assert run(hub, target, commit="0" * 40)[0]["error"] == "no_such_revision"
    hub.url = "http://127.0.0.1:1"
    assert run(hub, target)[0]["error"] == "unreachable"


def test_a_file_that_would_lie_elsewhere_is_refused(hub: Hub, target: Path) -> None:
    hub.files["../../evil"] = b"x"
    assert run(hub, target)[0]["error"] == "hub_broken"
    assert not (target.parent.parent / "evil").exists()


def test_two_at_once_fetch_once(hub: Hub, target: Path) -> None:
    env = {**os.environ, "HF_ENDPOINT": hub.url}
    argv = [
        sys.executable,
        "-m",
        "llmgw.agent.fetch_hub",
        "--repo",
        hub.repo,
        "--commit",
        COMMIT,
        "--target",
        str(target),
    ]
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert there(target) == WANTED
    assert len(hub.bytes_asked("config.json")) == 1


def test_a_file_that_is_named_in_full_must_be_there(hub: Hub, target: Path) -> None:
    last, _ = run(hub, target, "*.json", "q4/m.gguf", "*.txt")
    assert last["error"] == "no_such_file"
    assert "no file q4/m.gguf at c0ffee" in last["text"]
    assert not target.exists()


def test_room_is_asked_for_only_what_is_still_to_come(hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.cut_after = 100_000
    run(hub, target)
    asked: list[int] = []
    monkeypatch.setattr(fetch_hub, "require_room", lambda _, needed: asked.append(needed))
    monkeypatch.setattr(fetch_hub.constants, "ENDPOINT", hub.url)
    fetch_hub.fetch_repository("Org/Name", COMMIT, (), target, Progress(io.StringIO()))
    whole = sum(map(len, WANTED.values()))
    assert asked == [whole - len(WANTED["config.json"]) - 100_000]
