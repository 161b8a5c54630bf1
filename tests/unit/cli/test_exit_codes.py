"""What is misused ends with 64, what cannot be done with 1; each in one line."""

from pathlib import Path

import pytest

from llmgw.cli.main import app, exit_code

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: c\n"
MODEL = "apiVersion: llmgw/v1\nkind: Model\nname: m\nweights: {path: /m.gguf}\nprofiles:\n- engine: llamacpp\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cluster directory that only LLMGW_CLUSTER names; no server answers."""
    place = tmp_path / "cluster"
    place.mkdir()
    (place / "cluster.yaml").write_text(CLUSTER)
    (place / "m.yaml").write_text(MODEL)
    monkeypatch.setenv("LLMGW_CLUSTER", str(place))
    monkeypatch.setenv("LLMGW_SERVER", str(tmp_path / "nobody.sock"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return place


def _run(*arguments: str) -> int:
    return exit_code(lambda: app(list(arguments), standalone_mode=False))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("rollback", ""), 64, "REV is empty"),
        (("rollback", " "), 64, "REV is empty"),
        (("apply", "--rev", ""), 64, "--rev is empty"),
        (("apply", "--rev", " "), 64, "--rev is empty"),
        (("plan", "--rev", ""), 64, "--rev is empty"),
        (("set", "smollm2", "a=1"), 64, "there is no kind"),
        (("set", "model/", "a=1"), 64, "names no object"),
        (("set", "model/m"), 64, "nothing to change was named"),
        (("set", "model/m", "=1"), 64, ""),
        (("set", "model/other", "replicas=1"), 1, "there is no model 'other'"),
        (("show", "smollm2"), 64, "there is no kind"),
        (("get", "nodes", "--json", "-o", "wide"), 64, "exclude each other"),
        (("sim", "nonexist"), 1, "cannot read nonexist: No such file or directory"),
        (("plan", "--fleet", "/nonexist"), 1, "cannot read /nonexist: No such file or directory"),
        (("get", "nodes", "--json"), 1, "no llmgw server answers"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_each_end_has_its_code(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, text: str
) -> None:
    assert _run(*arguments) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert text in said
    assert "Errno" not in said


def test_the_cluster_directory_may_be_named_once_for_all_commands(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("show", "model/m") == 0
    assert "m.yaml" in capsys.readouterr().out
    assert _run("set", "model/m", "replicas=3") == 0
    assert "replicas: 3" in (cluster / "m.yaml").read_text()
    (cluster / "m.yaml").write_text("kind: [\n")
    assert _run("validate") == 1
    assert "m.yaml" in capsys.readouterr().out


@pytest.mark.usefixtures("cluster")
def test_apply_takes_that_directory_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_CLUSTER", "/nonexist")
    assert _run("apply") == 1
    assert "there is no directory and no saved plan /nonexist" in capsys.readouterr().err
