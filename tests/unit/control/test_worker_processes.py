"""What a gateway worker is started with."""

from pathlib import Path

import pytest

from llmgw.base.time import Instant
from llmgw.control.workers import Workers
from llmgw.fleet.spent import SpentBatch


class _Clock:
    def now(self) -> Instant:
        return Instant(0.0)


async def _nowhere(batch: SpentBatch) -> None:
    pass


def test_a_worker_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_SECRET_HOOK", "hunter2")
    monkeypatch.setenv("LLMGW_STORE", "postgresql://llmgw:hunter2@db/llmgw")
    monkeypatch.setenv("LLMGW_TOKEN", "sk-llmgw-1-hunter2")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "kept")
    said = tmp_path / "said"
    workers = Workers(
        command=["sh", "-c", f"env > {said}"],
        wanted=1,
        socket=tmp_path / "s",
        clock=_Clock(),
        changed=lambda: None,
        survivors=list,
        spent=_nowhere,
    )
    assert workers._spawn().wait(10) == 0
    assert "OTEL_SERVICE_NAME=kept" in said.read_text()
    assert "hunter2" not in said.read_text()
