"""The fetch of one file, against a real web server on loopback."""

import errno
import fcntl
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import fetch as program
from llmgw.agent.fetch import NotFetched, Progress, fetch
from tests.fakes.files import FileServer, serving_file

CONTENT = random.Random(7).randbytes(700_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def files() -> Iterator[FileServer]:
    with serving_file(CONTENT) as server:
        yield server


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "w" / f"{DIGEST[:16]}-file.gguf"


def get(files: FileServer, target: Path, digest: str = DIGEST) -> list[dict[str, object]]:
    out = io.StringIO()
    fetch(files.url, digest, target, Progress(out))
    return [json.loads(line) for line in out.getvalue().splitlines()]


def fails(files: FileServer, target: Path, digest: str = DIGEST) -> str:
    with pytest.raises(NotFetched) as caught:
        get(files, target, digest)
    assert not target.exists(), "a file with the final name is whole and right"
    return f"{caught.value.code}: {caught.value.text}"


def left(target: Path) -> list[str]:
    return sorted(path.name.removeprefix(target.name) for path in target.parent.iterdir())


def partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def begun(target: Path, data: bytes) -> None:
    target.parent.mkdir(exist_ok=True)
    partial(target).write_bytes(data)


def test_a_file_is_fetched_whole_and_nothing_else_is_left(files, target) -> None:
    said = get(files, target)
    assert target.read_bytes() == CONTENT
    assert left(target) == [""]
    assert said[0]["total"] == len(CONTENT)


def test_what_is_there_is_not_asked_for(files, target) -> None:
    target.parent.mkdir()
    target.write_bytes(b"as it is")
    get(files, target)
    assert (files.asked, target.read_bytes()) == ([], b"as it is")


def test_a_missing_file_is_said_with_its_status(files, target) -> None:
    files.status = 404
    assert fails(files, target) == f"http_404: {files.url} answers 404 Not Found"
    assert left(target) == []


def test_wrong_content_is_dropped(files, target) -> None:
    assert fails(files, target, "0" * 64).startswith("checksum_mismatch: ")
    assert left(target) == []


def test_a_broken_download_is_kept_and_gone_on_from(files, target) -> None:
    files.cut_after = 300_000
    assert fails(files, target) == f"truncated: {files.url} ended after 300000 of 700000 bytes"
    assert partial(target).read_bytes() == CONTENT[:300_000]
    files.cut_after = None
    get(files, target)
    assert files.asked == ["", "bytes=300000-"]
    assert target.read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_is_asked_for_all_of_it(files, target) -> None:
    begun(target, CONTENT[:300_000])
    files.ranges = False
    get(files, target)
    assert target.read_bytes() == CONTENT


def test_what_was_begun_with_other_bytes_is_noticed_and_dropped(files, target) -> None:
    begun(target, b"x" * 300_000)
    assert fails(files, target).startswith("checksum_mismatch: ")
    get(files, target)
    assert files.asked == ["bytes=300000-", ""]


@pytest.mark.parametrize("more", [b"", b"x"], ids=["whole", "too long"])
def test_what_needs_no_more_bytes_is_checked(files, target, more) -> None:
    begun(target, CONTENT + more)
    if more:
        assert fails(files, target).startswith("checksum_mismatch: ")
        assert left(target) == []
    else:
        get(files, target)
        assert target.read_bytes() == CONTENT


def test_a_body_of_unknown_length_is_known_by_its_digest(files, target) -> None:
    files.without_length = True
    assert get(files, target)[0]["total"] is None
    files.cut_after = 300_000
    assert fails(files, target.with_name("other")).startswith("checksum_mismatch: ")


def test_redirects_are_followed_but_not_to_files_of_the_node(files, target, tmp_path) -> None:
    files.redirect = "/moved.gguf"
    get(files, target)
    assert target.read_bytes() == CONTENT
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    files.redirect = f"file://{secret}"
    assert fails(files, target.with_name("other")).startswith("http_302: ")


def test_nobody_there_is_unreachable(files, target) -> None:
    files.url = "http://127.0.0.1:9/file.gguf"
    assert fails(files, target) == f"unreachable: cannot reach {files.url}: [Errno 111] Connection refused"


def test_a_server_that_falls_silent_is_unreachable_and_what_came_is_kept(files, target, monkeypatch) -> None:
    monkeypatch.setattr(program, "SILENCE", 0.2)
    files.pace = 1.0
    assert fails(files, target).startswith("unreachable: the connection broke after 65536 bytes: nothing came for")
    assert partial(target).read_bytes() == CONTENT[:65536]


def test_a_disk_without_room_is_said_before_anything_is_written(files, target, monkeypatch) -> None:
    monkeypatch.setattr(program, "RESERVE", shutil.disk_usage("/").total * 10)
    assert fails(files, target).startswith(f"disk_full: {target.parent} needs ")
    assert left(target) == []


def test_a_disk_that_is_full_in_the_middle_is_said_and_freed_again(files, target) -> None:
    files.without_length = True  # so that the room it needs is not known before
    target.parent.mkdir()
    small = "import llmgw.agent.fetch as f; f.RESERVE = 0; f.main()"
    arguments = [sys.executable, "-c", small, "--url", files.url, "--sha256", DIGEST, "--target", str(target)]
    script = 'mount -t tmpfs -o size=256k tmpfs "$0" && "$@"; ls -A "$0"'
    # a disk of its own, in a mount namespace that goes with the shell
    argv = ["unshare", "-m", "sh", "-c", script, str(target.parent), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"error": "disk_full", "text": f"the disk of {target.parent} is full"}, "and nothing is left there"


def test_a_directory_that_cannot_be_made_is_said(files, tmp_path) -> None:
    (tmp_path / "w").write_text("a file")
    with pytest.raises(NotFetched) as caught:
        get(files, tmp_path / "w" / "m.gguf")
    assert caught.value.code == "disk_unwritable"
    assert os.strerror(errno.EEXIST) in caught.value.text


def test_many_that_want_one_file_ask_for_it_once(files, target) -> None:
    files.pace = 0.03
    threads = [threading.Thread(target=get, args=(files, target)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files.asked == [""]
    assert left(target) == [""]


def test_the_lock_of_a_killed_fetch_is_no_lock(files, target) -> None:
    target.parent.mkdir()
    lock = target.with_name(target.name + ".lock")
    holds = "import fcntl,sys,time; f=open(sys.argv[1],'a'); fcntl.flock(f,2); print(flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", holds, str(lock)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
        with lock.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        thread = threading.Thread(target=get, args=(files, target))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive(), "it waits while the other lives"
        holder.kill()
        holder.wait()
        thread.join()
    assert target.read_bytes() == CONTENT
    assert left(target) == [""]


def test_the_program_says_how_it_went(files, target) -> None:
    argv = [sys.executable, "-m", "llmgw.agent.fetch", "--url", files.url, "--sha256", DIGEST, "--target", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"fetched": True}
    files.status = 503
    done = subprocess.run([*argv[:-1], f"{target}2"], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]) == (1, "http_503")
