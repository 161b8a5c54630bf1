"""Values of secrets: where they are looked for, and what is refused without a word of it being shown."""

import logging
from pathlib import Path

import pytest

from llmgw.adapters.secrets import Secrets


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def put(directory: Path, name: str, data: bytes, mode: int = 0o600) -> None:
    (directory / name).write_bytes(data)
    (directory / name).chmod(mode)


def test_the_environment_comes_first_and_names_are_made_to_fit(directory: Path) -> None:
    put(directory, "HF_TOKEN", b"of the file")
    secrets = Secrets({"LLMGW_SECRET_HF_TOKEN": "of the environment", "LLMGW_SECRET_MY_KEY": "k"}, directory)
    assert secrets.get("HF_TOKEN") == "of the environment"
    assert secrets.get("my-key") == "k"


@pytest.mark.parametrize("data", [b"value", b"value\n", b"value\r\n"])
def test_a_file_is_taken_without_its_last_newline(directory: Path, data: bytes) -> None:
    put(directory, "A", data)
    assert Secrets({}, directory).get("A") == "value"


def test_only_the_last_newline_goes(directory: Path) -> None:
    put(directory, "A", b"one\ntwo\n\n")
    assert Secrets({}, directory).get("A") == "one\ntwo\n"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_the_owner_and_its_group_may_read(directory: Path, mode: int) -> None:
    put(directory, "A", b"value", mode)
    assert Secrets({}, directory).get("A") == "value"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_file_that_others_may_read_is_refused_once_with_the_mend(
    directory: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    put(directory, "A", b"hidden", mode)
    secrets = Secrets({}, directory)
    with caplog.at_level(logging.WARNING):
        assert secrets.get("A") is None
        assert secrets.get("A") is None
    assert len(caplog.records) == 1
    assert f"chmod 600 {directory / 'A'}" in caplog.text
    assert "hidden" not in caplog.text
    (directory / "A").chmod(0o600)
    assert secrets.get("A") == "hidden", "and the mend is seen at once"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b", b"x" * 70000], ids=["bytes", "zero", "long"])
def test_what_is_no_text_is_refused(directory: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    put(directory, "A", data)
    with caplog.at_level(logging.WARNING):
        assert Secrets({}, directory).get("A") is None
    assert "secret A is not used" in caplog.text


def test_what_is_not_there_is_not_known(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    (directory / "sub").mkdir()
    put(directory / "sub", "A", b"value")
    secrets = Secrets({}, directory)
    with caplog.at_level(logging.WARNING):
        assert secrets.get("A") is None
        assert secrets.get("sub/A") is None
        assert secrets.get("../A") is None
    assert not caplog.records
    assert Secrets({}, None).get("A") is None
    assert secrets.get("sub") is None, "a directory is no secret"


def test_a_value_that_changed_is_read_anew(directory: Path) -> None:
    put(directory, "A", b"one")
    secrets = Secrets({}, directory)
    assert secrets.get("A") == "one"
    put(directory, "A", b"two")
    assert secrets.get("A") == "two"
