"""Each engine's own answers, as recorded or as its source gives them, against what the agent makes of them."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from llmgw.agent.lora import compare
from llmgw.agent.probe import Prober
from llmgw.engines.shard import LoraAdapter, ShardSpec
from tests.unit.engines.test_command_lines import shards

RECORDED = Path(__file__).with_name("recorded")
CASES = [(file.stem, state) for file in sorted(RECORDED.iterdir()) for state in json.loads(file.read_text())["states"]]
SERVES = ("ready", "adapted")


@asynccontextmanager
async def engine(answers: dict[str, Any]) -> AsyncIterator[int]:
    """Answer as recorded, at the port that is given."""

    async def answer(request: web.Request) -> web.Response:
        status, body = answers.get(request.path, (404, ""))
        return web.json_response(body, status=status) if body else web.Response(status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def spec_of(name: str, port: int) -> ShardSpec:
    case = name.partition("_")[0]
    found = shards("tei_on_a_cpu" if case == "tei" else case)[0]
    return replace(found, port=port, host="127.0.0.1")


@pytest.mark.parametrize(("name", "state"), CASES)
async def test_what_an_engine_answers_is_understood(name: str, state: str) -> None:
    answers = json.loads((RECORDED / f"{name}.json").read_text())["states"][state]
    prober = Prober()
    try:
        async with engine(answers) as port:
            spec = spec_of(name, port)
            verdict = await prober.probe(spec, os.getpid(), proof=True)
    finally:
        await prober.close()
    assert verdict.lost is None, "no answer of the engine that was started is taken for a stranger's"
    assert verdict.ready == (state in SERVES)
    if not verdict.ready:
        assert verdict.text == "/health answers 503"
    if spec.lora is not None or state == "adapted":
        sql = LoraAdapter("sql", "sql", "lora/sql")
        look = compare(verdict.models, (sql,), Path("/weights"))
        assert (look.lacking == ()) == (state == "adapted")


@pytest.mark.parametrize(("name", "state"), [case for case in CASES if case[1] == "ready" and case[0][:3] != "tei"])
async def test_an_engine_that_serves_another_model_is_not_the_one_that_was_started(name: str, state: str) -> None:
    answers = json.loads((RECORDED / f"{name}.json").read_text())["states"][state]
    prober = Prober()
    try:
        async with engine(answers) as port:
            verdict = await prober.probe(replace(spec_of(name, port), served_name="n"), os.getpid(), proof=True)
    finally:
        await prober.close()
    assert verdict.lost is not None
    assert verdict.text == "the engine serves m, not n"
