"""How many events are kept, and which for longer."""

import pytest

from llmgw.adapters import sql_events
from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import Instant
from llmgw.ports.sinks import Event


async def test_the_newest_are_kept_and_of_starts_more(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_events, "KEPT_EVENTS", 10)
    monkeypatch.setattr(sql_events, "KEPT_STARTS", 100)
    store = SqlStore(sql_url)
    await store.open()
    for number in range(150):
        kind = {0: "start", 1: "publish"}.get(number % 50, "engine_ended")
        store.record(Event(Instant(float(number)), kind, "replica/m-1-0", "", ""))
        if number % 10 == 0:
            await store.events(1)  # what was recorded before is written by then
    store.record(Event(Instant(150.0), "engine_ended", "replica/m-1-0", "", ""))
    kept = await store.events(1000)
    lasting = [one.at for one in kept if one.kind != "engine_ended"]
    assert lasting == [101.0, 100.0, 51.0]
    assert 10 <= len(kept) - len(lasting) <= 12
    await store.close()
