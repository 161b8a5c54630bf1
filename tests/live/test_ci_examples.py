"""The shell steps of `examples/ci`, run as a runner does: against a live server, with a stub where the forge is.

The apply step needs `POST /v1/apply`; it runs against a fake of it everywhere, and against the live server where that has it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.fakes.apply_server import Fake, serving
from tests.live.conftest import program
from tests.live.lab import Lab, fake_yaml
from tests.unit.cli.test_applying import row

CI = Path(__file__).parents[2] / "examples/ci"
COMMENTS = "/api/repos/acme/cluster/issues"
NOTES = "/api/projects/7/merge_requests/5/notes"
MARK = "<!-- llmgw plan -->"
GITHUB_SHELL = ("bash", "-e")
"""As GitHub runs `run:` on Linux where no shell is named."""


def github() -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load(CI / "github.yml")
    return data


def gitlab() -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load(CI / "gitlab.yml")
    return data


def step(job: str, name: str) -> str:
    found = next(one for one in github()["jobs"][job]["steps"] if one.get("name") == name)
    return str(found["run"])


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Path]:
    """A directory to be first in PATH, with `llmgw` as it is here."""
    for name in ("git", "curl", "jq", "bash"):
        program(name)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    command = binaries / "llmgw"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmgw "$@"\n')
    command.chmod(0o755)
    yield binaries
    shutil.rmtree(binaries)


def run(script: str, lab: Lab, tools: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the lab's repository, with the variables that the files set for it and these."""
    with_all = {
        **lab.environment,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CLUSTER": ".",
        "LLMGW_SERVER": str(lab.admin),
        **environment,
    }
    return subprocess.run(
        [*GITHUB_SHELL, "-c", script], cwd=lab.cluster, env=with_all, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def as_gitlab(scripts: list[str], lab: Lab, tools: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("set -eo pipefail\n" + "\n".join(scripts), lab, tools, **environment)


def on_github(url: str, lab: Lab) -> dict[str, str]:
    return {
        "GITHUB_API_URL": f"{url}/api", "GITHUB_REPOSITORY": "acme/cluster", "GITHUB_TOKEN": "t0ken",
        "PULL_REQUEST": "5", "GITHUB_OUTPUT": str(lab.root / "output"), "GITHUB_SHA": lab.git("rev-parse", "HEAD"),
    }  # fmt: skip


def on_gitlab(url: str, lab: Lab) -> dict[str, str]:
    return {
        "CI_API_V4_URL": f"{url}/api", "CI_PROJECT_ID": "7", "CI_MERGE_REQUEST_IID": "5", "LLMGW_COMMENT_TOKEN": "t0ken",
        "CI_COMMIT_SHA": lab.git("rev-parse", "HEAD"),
    }  # fmt: skip


@pytest.fixture
def served(lab: Lab) -> Lab:
    """A lab where one model runs, and whose work tree has a second one."""
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit("the first")
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "one replica")
    lab.write("models/n.yaml", fake_yaml("n"))
    return lab


def test_github_validates_plans_comments_and_comments_again_in_place(served: Lab, tools: Path) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET {COMMENTS}/5/comments": [
            (200, [{"id": 1, "body": "looks good"}]),
            (200, [{"id": 1, "body": "looks good"}, {"id": 12, "body": f"{MARK}\nold"}]),
        ],
        f"POST {COMMENTS}/5/comments": [(201, {"id": 12})],
        f"PATCH {COMMENTS}/comments/12": [(200, {"id": 12})],
    }
    assert run(step("validate", "Validate"), served, tools).returncode == 0
    with serving(answers) as forge:
        environment = on_github(forge.url, served)
        for _ in range(2):
            planned = run(step("plan", "Plan"), served, tools, **environment)
            assert planned.returncode == 0, planned.stderr
            said = run(step("plan", "Comment"), served, tools, **environment)
            assert said.returncode == 0, said.stderr
    assert (served.root / "output").read_text() == "code=0\n" * 2
    assert run(step("plan", "Fail if the plan failed"), served, tools, CODE="0").returncode == 0
    assert forge.routes() == [
        f"GET {COMMENTS}/5/comments",
        f"POST {COMMENTS}/5/comments",
        f"GET {COMMENTS}/5/comments",
        f"PATCH {COMMENTS}/comments/12",
    ]
    for route in forge.routes()[1::2]:
        (body,) = forge.bodies(route)
        assert body["body"].startswith(MARK)
        assert "+ model/n (models/n.yaml)" in body["body"]
    assert all(headers["Authorization"] == "Bearer t0ken" for _, _, headers in forge.asked)


def test_github_comments_a_directory_that_is_not_valid_and_fails(served: Lab, tools: Path) -> None:
    served.write("models/n.yaml", "kind: Model\nname: [\n")
    refused = run(step("validate", "Validate"), served, tools)
    assert refused.returncode == 1
    assert "::error file=models/n.yaml,line=" in refused.stdout
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET {COMMENTS}/5/comments": [(200, [])],
        f"POST {COMMENTS}/5/comments": [(201, {"id": 12})],
    }
    with serving(answers) as forge:
        environment = on_github(forge.url, served)
        assert run(step("plan", "Plan"), served, tools, **environment).returncode == 0
        assert run(step("plan", "Comment"), served, tools, **environment).returncode == 0
    assert (served.root / "output").read_text() == "code=1\n"
    assert run(step("plan", "Fail if the plan failed"), served, tools, CODE="1").returncode == 1
    (body,) = forge.bodies(f"POST {COMMENTS}/5/comments")
    assert "models/n.yaml:" in body["body"]


def test_a_comment_that_the_forge_refuses_fails_the_step(served: Lab, tools: Path) -> None:
    (served.cluster / "plan.md").write_text(f"{MARK}\n")
    for answers in (
        {f"GET {COMMENTS}/5/comments": [(401, {"message": "bad token"})]},
        {f"GET {COMMENTS}/5/comments": [(200, [])], f"POST {COMMENTS}/5/comments": [(403, {"message": "no"})]},
    ):
        with serving(answers) as forge:
            assert run(step("plan", "Comment"), served, tools, **on_github(forge.url, served)).returncode != 0


def test_gitlab_validates_plans_and_comments(served: Lab, tools: Path) -> None:
    assert as_gitlab(gitlab()["validate"]["script"], served, tools).returncode == 0
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET {NOTES}": [(200, []), (200, [{"id": 31, "body": f"{MARK}\nold"}, {"id": 30, "body": "hm"}])],
        f"POST {NOTES}": [(201, {"id": 31})],
        f"PUT {NOTES}/31": [(200, {"id": 31})],
    }
    with serving(answers) as forge:
        for _ in range(2):
            done = as_gitlab(gitlab()["plan"]["script"], served, tools, **on_gitlab(forge.url, served))
            assert done.returncode == 0, done.stderr
    assert forge.routes() == [f"GET {NOTES}", f"POST {NOTES}", f"GET {NOTES}", f"PUT {NOTES}/31"]
    for route in (f"POST {NOTES}", f"PUT {NOTES}/31"):
        (body,) = forge.bodies(route)
        assert "+ model/n (models/n.yaml)" in body["body"]
        assert body["body"].startswith(MARK)
    assert all(headers["PRIVATE-TOKEN"] == "t0ken" for _, _, headers in forge.asked)
    served.write("models/n.yaml", "kind: Model\nname: [\n")
    assert as_gitlab(gitlab()["validate"]["script"], served, tools).returncode == 1
    with serving({**answers, f"GET {NOTES}": [(200, [])]}) as forge:
        assert as_gitlab(gitlab()["plan"]["script"], served, tools, **on_gitlab(forge.url, served)).returncode == 1
    assert "models/n.yaml:" in forge.bodies(f"POST {NOTES}")[0]["body"]


def applied_by(fake: Fake, lab: Lab, tools: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run both files' apply steps against a server."""
    return [
        run(step("apply", "Apply"), lab, tools, **{**on_github("", lab), "LLMGW_SERVER": fake.url}),
        as_gitlab(gitlab()["apply"]["script"], lab, tools, **{**on_gitlab("", lab), "LLMGW_SERVER": fake.url}),
    ]


def test_what_is_merged_is_applied_as_that_commit(lab: Lab, tools: Path) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    commit = lab.commit("merged")
    lab.write("models/m.yaml", "kind: [")
    with serving({"POST /v1/apply": [(200, row("applied", revision=commit))]}) as fake:
        for done in applied_by(fake, lab, tools):
            assert done.returncode == 0, done.stderr
            assert f"Revision {commit[:10]} is applied" in done.stdout
        for body in fake.bodies("POST /v1/apply"):
            assert body["tree"]["revision"] == commit
            assert body["tree"]["subject"] == "merged"
    with serving({"POST /v1/apply": [(403, {"error": "a guard refuses it"})]}) as fake:
        assert [done.returncode for done in applied_by(fake, lab, tools)] == [4, 4]


def test_what_is_merged_is_applied_by_a_live_server(served: Lab, tools: Path) -> None:
    served.commit("merged")
    done = run(step("apply", "Apply"), served, tools, **on_github("", served))
    assert done.returncode == 0, done.stderr
    assert served.ready("n")
    assert served.ready("m")


def test_the_files_say_what_runs_where_and_for_whom() -> None:
    jobs = github()["jobs"]
    assert jobs["apply"]["concurrency"]["cancel-in-progress"] is False
    assert "head.repo.full_name == github.repository" in jobs["plan"]["if"]
    assert jobs["plan"]["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert github()["permissions"] == {"contents": "read"}
    assert gitlab()["apply"]["resource_group"]
    assert "CI_MERGE_REQUEST_SOURCE_PROJECT_ID == $CI_PROJECT_ID" in gitlab()["plan"]["rules"][0]["if"]
    assert "t0ken" not in json.dumps([github(), gitlab()], default=str)
