"""`llmgw apply` as a process: its exit codes, Ctrl-C, a terminal; on a fake of the server's side."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.apply_server import Fake, serving
from tests.unit.cli.test_applying import LOADING, row
from tests.unit.control.test_plan_file import a_desk, saved

EXAMPLE = Path(__file__).parents[2] / "examples/cluster"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("LLMGW_", "GIT_"))}
MODELS = [{"model": "m", "ready": 1, "wanted": 1}]


def apply(fake: Fake, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmgw", "apply", *arguments, "--server", fake.url]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_done_is_0_and_the_last_line_says_so() -> None:
    answers = {"POST /v1/apply": [(200, row("planning"))], "GET /v1/apply/i1": [(200, row("applied", models=MODELS))]}
    with serving(answers) as fake:
        done = apply(fake, str(EXAMPLE), "--allow-remove", "model/x", "--allow-remove", "model/y")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "0123456789 planning",
        "0123456789 applied: 1 of 1 replicas serve",
        "Revision 0123456789 is applied: nothing is left to do, and 1 replica(s) serve.",
    ]
    (body,) = fake.bodies("POST /v1/apply")
    assert body["allow_remove"] == ["model/x", "model/y"]
    assert "@" in body["by"]
    assert "cluster.yaml" in body["tree"]["files"]


def test_json_is_the_last_row_and_nothing_else_also_where_it_failed() -> None:
    failed = row("failed", note="model/m: no memory", evidence=[])
    with serving({"POST /v1/apply": [(200, row())], "GET /v1/apply/i1": [(200, failed)]}) as fake:
        done = apply(fake, str(EXAMPLE), "--json")
    assert (done.returncode, json.loads(done.stdout)) == (5, failed)
    assert "model/m: no memory" in done.stderr


TAKEN_UP: tuple[int, object] = (200, row())
LATE = row(todo=[LOADING])
OTHER = row("superseded", note="by r2")
GUARD = {
    "error": "would remove model/m; run x --allow-remove model/m",
    "guard": [{"rule": "protect", "objects": ["model/m"], "text": "it removes model/m"}],
}
STALE = {"error": "stale", "stale": ["node/a has changed"]}


@pytest.mark.parametrize(
    ("taken", "then", "arguments", "code", "said"),
    [
        ((403, GUARD), {}, [], 4, "--allow-remove model/m"),
        ((400, {"error": "the request must be this"}), {}, [], 64, "the request must be this"),
        ((422, {"error": "revision r is not valid: a.yaml:1:1 no"}), {}, [], 1, "a.yaml:1:1 no"),
        ((409, STALE), {}, [], 3, "node/a has changed"),
        (TAKEN_UP, LATE, ["--timeout", "1s"], 5, "the server goes on with it"),
        (TAKEN_UP, OTHER, [], 1, "was superseded by r2"),
        (TAKEN_UP, LATE, ["--timeout", "soon"], 64, "--timeout 'soon' is not understood"),
        (TAKEN_UP, LATE, ["--nope"], 64, "No such option"),
    ],
)
def test_each_other_end_has_its_code_and_one_line(
    taken: tuple[int, object], then: object, arguments: list[str], code: int, said: str
) -> None:
    with serving({"POST /v1/apply": [taken], "GET /v1/apply/i1": [(200, then)]}) as fake:
        done = apply(fake, str(EXAMPLE), *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert said in done.stderr


def test_no_wait_ends_when_it_is_taken_up_and_nobody_there_is_1() -> None:
    with serving({"POST /v1/apply": [(200, row("planning"))]}) as fake:
        done = apply(fake, str(EXAMPLE), "--no-wait")
        assert (done.returncode, fake.routes()) == (0, ["POST /v1/apply"])
        assert "taken up revision 0123456789 (apply i1)" in done.stdout
    gone = apply(fake, str(EXAMPLE))
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert "no llmgw server answers" in gone.stderr


def test_a_stale_plan_is_3_and_nothing_was_asked_for(tmp_path: Path) -> None:
    from llmgw.control.plan_file import dump_plan

    file = tmp_path / "plan.json"
    file.write_text(dump_plan(saved(a_desk())))
    with serving({"POST /v1/plan/verify": [(200, {"stale": ["it expired 5s ago"], "holds": False})]}) as fake:
        done = apply(fake, str(file))
    assert (done.returncode, fake.routes()) == (3, ["POST /v1/plan/verify"])
    assert "it expired 5s ago" in done.stderr


def test_ctrl_c_says_that_the_server_goes_on_and_how_to_look() -> None:
    with serving({"POST /v1/apply": [(200, row())], "GET /v1/apply/i1": [(200, row(todo=[LOADING]))]}) as fake:
        command = [sys.executable, "-m", "llmgw", "apply", str(EXAMPLE), "--server", fake.url]
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert fake.seen.wait(30)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == (
        "llmgw: no longer looking on; the server goes on with revision 0123456789 (apply i1): "
        "`llmgw status` shows how far it is, `llmgw rollback` goes back"
    )


def test_on_a_terminal_it_is_drawn_in_place_and_the_end_stays() -> None:
    answers = {
        "POST /v1/apply": [(200, row())],
        "GET /v1/apply/i1": [(200, row(models=MODELS, todo=[LOADING])), (200, row("applied", models=MODELS))],
    }
    with serving(answers) as fake:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "apply", str(EXAMPLE), "--server", fake.url],
            env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120"}, stdout=slave, stderr=slave, stdin=slave,
        )  # fmt: skip
        os.close(slave)
        said = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:
                break
            if not more:
                break
            said += more
        os.close(master)
        assert process.wait(30) == 0
    assert b"replica/m-1-1: to serve, waits for it is starting" in said
    assert b"Ctrl-C ends only this display" in said
    assert b"is applied: nothing is left to do" in said
