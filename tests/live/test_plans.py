"""Plans of a live server: of files and of commits, saved and verified, and the same plan offline from its snapshot."""

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.live.lab import Lab, fake_yaml


def running(lab: Lab) -> None:
    lab.write("models/m.yaml", fake_yaml("m"))
    lab.commit("the first")
    lab.start_agent()
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "one replica")


def without_saved(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_commit_is_planned_as_it_is_in_the_repository_and_not_as_the_files_are(lab: Lab) -> None:
    running(lab)
    first = lab.git("rev-parse", "HEAD")
    lab.git("checkout", "-q", "-b", "topic")
    lab.git("checkout", "-q", "--detach")
    lab.write("models/n.yaml", fake_yaml("n"))
    lab.git("add", "-A")
    tree = lab.git("write-tree")
    commit = lab.git("commit-tree", tree, "-p", first, "-m", "on the side")
    lab.git("update-ref", "refs/heads/topic", commit)
    lab.git("reset", "-q", "--hard", first)
    lab.write("models/half.yaml", "kind: [")
    for name in ("topic", commit, commit[:12]):
        shown = without_saved(lab.llmgw("plan", str(lab.cluster), "--rev", name, "--json"))
        assert [(one["actions"], one["name"]) for one in shown["objects"]] == [(["create"], "n")]
        assert shown["revision"] == commit
    assert lab.llmgw("plan", str(lab.cluster)).returncode == 1
    for name in ("nowhere", "--upload-pack=touch x", "HEAD:cluster.yaml"):
        refused = lab.llmgw("plan", str(lab.cluster), f"--rev={name}")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert f"has no commit {name!r}" in refused.stderr


def test_a_plan_says_cards_streams_and_how_long_the_last_cold_start_took(lab: Lab) -> None:
    running(lab)
    lab.until(lambda: "publish" in lab.llmgw("get", "events", "--filter", "subject=model/m").stdout, "the event")
    lab.write("models/m.yaml", fake_yaml("m", replicas=2))
    said = lab.llmgw("plan", str(lab.cluster)).stdout
    assert "    replicas: 1 -> 2 [live]\n    + start m-1-1 on local: 2 wanted, 1 there;" in said
    assert "the last cold start of this model took " in said
    assert "\x1b" not in said
    lab.write("models/m.yaml", fake_yaml("m", "--never-seen-flag"))
    assert (
        "+/- model/m (models/m.yaml): its replicas are replaced, new before old"
        in lab.llmgw("plan", str(lab.cluster)).stdout
    )
    shown = lab.llmgw("plan", str(lab.cluster), "--markdown").stdout
    assert shown.startswith("<!-- llmgw plan -->\n### llmgw: Plan: objects:")
    assert "<details><summary><code>+/- model/m (models/m.yaml)" in shown
    assert lab.llmgw("plan", str(lab.cluster), "--markdown", "--json").returncode == 64


def test_there_is_colour_on_a_terminal_only(lab: Lab) -> None:
    running(lab)
    lab.write("models/n.yaml", fake_yaml("n"))
    said = {}
    for name, more in (("plain", {"NO_COLOR": "1"}), ("colour", {})):
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "plan", str(lab.cluster)],
            env={**lab.environment, "TERM": "xterm", **more}, stdout=slave, stdin=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        read = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            read += chunk
        os.close(master)
        assert process.wait(30) == 0
        said[name] = read
    assert b"\x1b[32m+ model/n" in said["colour"]
    assert b"\x1b" not in said["plain"]


def test_a_saved_plan_holds_until_what_it_relied_on_changes(lab: Lab, tmp_path: Path) -> None:
    running(lab)
    lab.write("models/n.yaml", fake_yaml("n"))
    file = tmp_path / "plan.json"
    made = lab.llmgw("plan", str(lab.cluster), "--out", str(file))
    assert made.returncode == 0, made.stderr
    assert f"Saved as {file}, good for 60m" in made.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    saved = json.loads(file.read_text())
    assert set(saved["observed"]) == {
        "cluster suspended", "model/n replicas", "node/local answers", "node/local cards", "node/local placed",
    }  # fmt: skip
    for _ in range(3):
        held = lab.llmgw("plan", "--verify", str(file))
        assert (held.returncode, held.stderr) == (0, "")
    assert "still holds" in held.stdout

    lab.llmgw("cordon", f"node/{lab.node()['name']}", "--reason", "noise")
    stale = lab.llmgw("plan", "--verify", str(file))
    assert (stale.returncode, stale.stderr.count("\n")) == (3, 1)
    assert "closed by cordon node/local" in stale.stderr
    lab.llmgw("uncordon", f"node/{lab.node()['name']}")
    assert lab.llmgw("plan", "--verify", str(file)).returncode == 0

    lab.write("models/n.yaml", fake_yaml("n", "--other"))
    commit = lab.commit("another one")
    lab.until(lambda: lab.ready("n"), "the other commit")
    answer = lab.llmgw("plan", "--verify", str(file), "--json")
    assert answer.returncode == 3
    shown = json.loads(answer.stdout)
    assert shown["holds"] is False
    assert any(f"revision {commit[:10]} is in force now" in one for one in shown["stale"])
    assert any("model/n has changed" in one for one in shown["stale"])

    file.write_text(json.dumps({**saved, "observed": {}}))
    touched = lab.llmgw("plan", "--verify", str(file))
    assert (touched.returncode, touched.stderr.count("\n")) == (1, 1)
    assert "not as it was written" in touched.stderr


def test_a_plan_expires_and_is_void_once_the_server_is_another(lab: Lab, tmp_path: Path) -> None:
    running(lab)
    file = tmp_path / "plan.json"
    assert lab.llmgw("plan", str(lab.cluster), "--out", str(file), "--valid-for", "300ms").returncode == 0
    done = lab.until(
        lambda: (found := lab.llmgw("plan", "--verify", str(file))).returncode == 3 and found, "the plan to expire"
    )
    assert "it expired" in done.stderr
    assert lab.llmgw("plan", str(lab.cluster), "--out", str(file)).returncode == 0
    lab.server = lab.processes[-1]
    lab.server.terminate()
    lab.server.wait(30)
    lab.start_server()
    lab.until(lambda: lab.ready("m"), "the replica again")
    done = lab.llmgw("plan", "--verify", str(file))
    assert done.returncode == 3
    assert "another control plane decides now" in done.stderr
    for bad in ("soon", "0s", "30d"):
        assert lab.llmgw("plan", str(lab.cluster), "--out", str(file), "--valid-for", bad).returncode == 64


def test_the_same_plan_is_made_offline_from_a_snapshot(lab: Lab, tmp_path: Path) -> None:
    lab.environment["LLMGW_SECRET_HF_TOKEN"] = "s3cr3t-value"
    running(lab)
    snapshot = tmp_path / "fleet.json"
    done = lab.llmgw("get", "snapshot", "--out", str(snapshot))
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(snapshot.stat().st_mode) == 0o600
    env = "    env: {TOKEN: {secret: HF_TOKEN}}\n"
    lab.write("models/m.yaml", fake_yaml("m", "--new", replicas=2, extra=env))
    lab.write("models/n.yaml", fake_yaml("n"))
    live = without_saved(lab.llmgw("plan", str(lab.cluster), "--json"))
    file = tmp_path / "plan.json"
    live_text = lab.llmgw("plan", str(lab.cluster), "--out", str(file)).stdout
    lab.processes[-1].terminate()
    lab.processes[-1].wait(30)

    gone = lab.llmgw("plan", str(lab.cluster))
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert "start one with `llmgw server DIR`" in gone.stderr
    assert "`llmgw plan --fleet FILE` plans from what `llmgw get snapshot --out FILE` saved" in gone.stderr

    offline = without_saved(lab.llmgw("plan", str(lab.cluster), "--json", "--fleet", str(snapshot)))
    for one in (live, offline):
        for replica in one["replicas"]:
            # events and the count of rounds are not part of a snapshot's moment
            del replica["cause"]
            replica.pop("last_cold_start", None)
    assert offline == live
    assert [one["name"] for one in offline["objects"]] == ["m", "n"]
    text = lab.llmgw("plan", str(lab.cluster), "--fleet", str(snapshot))
    assert "+ model/n" in text.stdout
    for said in (snapshot.read_text(), file.read_text(), live_text, text.stdout, json.dumps(offline)):
        assert "s3cr3t-value" not in said
    assert "HF_TOKEN" in live_text

    for content, word in (
        ("{}", "format_version is missing"),
        ("x", "not JSON"),
        ('{"format_version": "1.0"}', "damaged"),
    ):
        snapshot.write_text(content)
        bad = lab.llmgw("plan", str(lab.cluster), "--fleet", str(snapshot))
        assert (bad.returncode, bad.stderr.count("\n")) == (1, 1)
        assert word in bad.stderr
    assert lab.llmgw("plan", str(lab.cluster), "--fleet", str(tmp_path / "no")).stderr.endswith(
        "No such file or directory\n"
    )
