"""LoRA adapters of a running engine: the engine is asked what it has, and is given the difference."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw.agent.events import Adapt, Adapted, Probe, Probed
from llmgw.agent.lora import UNLOAD_AFTER, AdapterLook, change, compare
from llmgw.engines.shard import LoraAdapter, LoraPaths
from tests.fakes.engine import FakeEngine, Manners, Sglang, Vllm, running_engine
from tests.unit.agent.brain import KEY, SPEC, Brain

PATHS = LoraPaths("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
SQL = LoraAdapter("sql", "sql", "lora/sql")
SQL_2 = replace(SQL, weights="lora/sql-2")
FR = LoraAdapter("fr", "fr", "/elsewhere/fr")
NONE = replace(SPEC, lora=PATHS)
WITH = replace(NONE, adapters=(SQL, FR))


def listed(**adapters: str) -> object:
    base = {"id": "m", "root": "/weights/m", "parent": None}
    return {"data": [base, *({"id": name, "root": path, "parent": "m"} for name, path in adapters.items())]}


def test_an_adapter_is_known_by_its_path_and_the_model_itself_is_none() -> None:
    look = compare(listed(sql="/weights/lora/sql", fr="/old/fr", odd="/x"), (SQL, FR), Path("/weights"))
    assert (look.there, look.lacking, look.surplus) == ({"sql", "fr", "odd"}, (FR,), ("odd",))
    for nonsense in (None, [], {"data": 1}, {"data": [1, {"parent": "m"}]}):
        assert compare(nonsense, (SQL,), None) == AdapterLook((SQL,), frozenset(), (SQL,), ())


class ManneredVllm(Vllm):
    lora = "/v1"


class OlderVllm(ManneredVllm):
    """One that does not know `load_inplace`."""

    def replaces(self, body: dict[str, object]) -> bool:
        return False


class ManneredSglang(Sglang):
    lora = "/"


async def told(engine: FakeEngine, paths: LoraPaths, load: dict[LoraAdapter, Path], *unload: str) -> Mapping[str, str]:
    async with aiohttp.ClientSession() as http:
        return await change(http, f"http://127.0.0.1:{engine.port}", paths, tuple(load.items()), unload)


@pytest.mark.parametrize(
    ("manners", "paths"),
    [
        (ManneredVllm(), PATHS),
        (OlderVllm(), PATHS),
        (ManneredSglang(), LoraPaths("/load_lora_adapter", "/unload_lora_adapter")),
    ],
)
async def test_an_engine_takes_replaces_and_drops_adapters(tmp_path: Path, manners: Manners, paths: LoraPaths) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(), new.mkdir()
    async with running_engine("m") as engine:
        engine.manners = manners
        assert await told(engine, paths, {SQL: old, FR: old}) == {}
        assert await told(engine, paths, {SQL: new}, "fr", "not-there") == {}
        assert engine.adapters == {"sql": str(new)}
        failed = await told(engine, paths, {FR: tmp_path / "none"})
        assert failed == {"fr": f"{tmp_path / 'none'} does not exist on this node; put it there"}


async def test_what_an_engine_complains_of_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    async with running_engine("m") as engine:
        engine.manners = ManneredVllm()
        failed = await told(engine, PATHS, {SQL: file})
        assert failed["sql"].startswith("the engine answers 404: ")
        assert "No adapter found for <path>" in failed["sql"]
    assert await told(engine, PATHS, {SQL: file}) == {
        "sql": "the engine answers not at all (ClientConnectorError)",
    }


def look(
    *there: str, wanted: tuple[LoraAdapter, ...] = (SQL, FR), lacking: tuple[LoraAdapter, ...] = ()
) -> AdapterLook:
    names = {one.name for one in wanted}
    return AdapterLook(wanted, frozenset(there), lacking, tuple(sorted(set(there) - names)))


class Tuned(Brain):
    """A brain whose only engine takes adapters and is ready."""

    def __init__(self, first: AdapterLook | None) -> None:
        super().__init__()
        self.ordered(WITH)
        self.starts(WITH)
        (probe,) = self.passes(0.25)
        assert (probe.proof, probe.adapters) == (True, (SQL, FR))
        self.out = self.happens(Probed(KEY, 1, True, "", adapters=first))

    def sees(self, found: AdapterLook) -> list[Any]:
        return self.happens(Probed(KEY, 1, True, "", adapters=found))

    @property
    def says(self) -> dict[str, tuple[bool, str]]:
        return {one.name: (one.loaded, one.reason) for one in self.report.adapters}


def proving(*wanted: LoraAdapter) -> Probe:
    return Probe(WITH, 1, 1001, proof=True, figures=True, adapters=wanted)


def test_what_it_lacks_is_given_to_an_engine_once_and_then_looked_for() -> None:
    brain = Tuned(look(lacking=(SQL, FR)))
    assert brain.out == [Adapt(WITH, 1, (SQL, FR), ())]
    assert brain.says == {"sql": (False, "it is being loaded"), "fr": (False, "it is being loaded")}
    assert brain.passes(4.0) == [], "one change at a time"
    assert brain.happens(Adapted(KEY, 1, {})) == [proving(SQL, FR)]
    assert brain.sees(look("sql", "fr")) == []
    assert brain.says == {"sql": (True, ""), "fr": (True, "")}


def test_what_failed_is_told_and_tried_again_later_each_time_and_the_rest_serves() -> None:
    brain = Tuned(look(lacking=(SQL, FR)))
    for wait in (2.0, 4.0, 8.0):
        brain.happens(Adapted(KEY, 1, {"fr": "the engine answers 404: no such"}))
        assert brain.sees(look("sql", lacking=(FR,))) == []
        assert brain.says == {"sql": (True, ""), "fr": (False, "the engine answers 404: no such")}
        assert not any(isinstance(one, Adapt) for one in brain.passes(wait - 0.1))
        assert Adapt(WITH, 1, (FR,), ()) in brain.passes(0.2)


def test_a_changed_order_is_looked_for_at_once_and_its_adapter_serves_on_until_the_new_one_does() -> None:
    brain = Tuned(look("sql", "fr"))
    changed = replace(WITH, adapters=(SQL_2, FR))
    assert brain.ordered(changed) == [proving(SQL_2, FR)]
    assert brain.says["sql"] == (True, "it is being loaded")
    assert brain.sees(look("sql", "fr")) == [proving(SQL_2, FR)], "a look for what was wanted before proves nothing"
    out = brain.sees(look("sql", "fr", wanted=changed.adapters, lacking=(SQL_2,)))
    assert out == [Adapt(WITH, 1, (SQL_2,), ())]


def test_what_is_not_wanted_any_more_is_taken_away_when_no_gateway_asks_for_it() -> None:
    brain = Tuned(look("sql", "fr"))
    brain.ordered(replace(WITH, adapters=(SQL,)))
    assert brain.sees(look("sql", "fr", wanted=(SQL,))) == []
    assert "fr" not in brain.says
    began, out = brain.now, []
    while not any(isinstance(one, Adapt) for one in out):
        assert brain.now - began < 2 * UNLOAD_AFTER
        out = brain.passes(1.0)
        if any(isinstance(one, Probe) for one in out):
            brain.sees(look("sql", "fr", wanted=(SQL,)))
    assert Adapt(WITH, 1, (), ("fr",)) in out
    assert brain.now - began >= UNLOAD_AFTER


def test_an_engine_that_does_not_say_what_it_has_is_asked_again_and_not_in_a_hurry() -> None:
    brain = Tuned(None)
    assert brain.out == []
    assert brain.says["sql"] == (False, "the engine was not asked yet")
    assert brain.passes(4.9) == []
    assert brain.passes(0.1) == [proving(SQL, FR)]


def test_an_engine_without_adapters_is_not_looked_at_for_any() -> None:
    assert Brain().serves().passes(5.0)[0].adapters is None
