"""What keys and counting cost: records a second on SQLite, and a request with both beside one with neither."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.adapters.sql_store import SqlStore
from llmgw.base.time import Instant
from llmgw.fleet.access import OPEN, Access, KnownKey, TenantRight, hash_of
from llmgw.fleet.spent import SpentBatch
from llmgw.gateway.outcome import Outcome
from llmgw.gateway.records import Ledger
from llmgw.gateway.usage import Tokens
from llmgw.routing.access import Caller
from llmgw.routing.request import RequestShape
from llmgw.runtime.clock import SystemClock
from tests.unit.gateway.support import CHAT, Client, Serving, serving, table

pytestmark = pytest.mark.bench

RECORDS = 2000
"""A second."""
KEYS = 1000
SHAPE = RequestShape("chat", "m", stream=True, prompt_bytes=400)
ACCESS = Access(
    1,
    True,
    tuple(KnownKey(f"k{number}", hash_of(f"s{number}"), "t") for number in range(KEYS)),
    (TenantRight("t", ("m*",)),),
)
SHOWN = f"authorization: Bearer sk-llmgw-k{KEYS - 1}-s{KEYS - 1}\r\n"


def second_of(ledger: Ledger, keys: int) -> SpentBatch:
    """Have a second's requests counted, and take what is to be sent of them."""
    model, outcome = table().models[0], Outcome(200, tokens=Tokens(10, 20, 5), worked=True)
    for number in range(RECORDS):
        ledger.add(model, SHAPE, Caller("t", f"k{number % keys}"), outcome)
    batch = ledger.batch("w")
    assert batch is not None
    ledger.kept(batch.sequence)
    return batch


@asynccontextmanager
async def store_in(directory: Path) -> AsyncIterator[SqlStore]:
    store = SqlStore(f"sqlite:///{directory / 'store.sqlite'}")
    await store.open()
    yield store
    await store.close()


async def test_records_a_second_on_sqlite(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        for keys in (10, RECORDS):  # the latter is the worst: each record is a row of its own
            ledger = Ledger(SystemClock())
            second_of(ledger, keys)
            begun = time.perf_counter()
            batches = [second_of(ledger, keys) for _ in range(10)]
            counted = time.perf_counter()
            for batch in batches:
                await store.usage.keep(batch, Instant(0.0))
            kept = time.perf_counter()
            rate = RECORDS * len(batches) / (kept - begun)
            print(
                f"\n{keys:5} keys: {(counted - begun) / len(batches) / RECORDS * 1e6:.2f} us to count a record, "
                f"{(kept - counted) / len(batches) * 1e3:.1f} ms to keep a second's {RECORDS}; {rate:,.0f} records/s"
            )
            assert rate >= RECORDS


async def test_a_request_with_keys_and_counting_beside_one_without(tmp_path: Path) -> None:
    async with serving() as s, store_in(tmp_path) as store:
        client = await s.client()
        ledger = Ledger(SystemClock())

        async def busy() -> None:
            """Keep as many records a second as there may be, while requests run."""
            while True:
                await asyncio.gather(store.usage.keep(second_of(ledger, RECORDS), Instant(0.0)), asyncio.sleep(1.0))

        plain, keyed = [], []
        await round_of(s, client, OPEN, [])
        for _ in range(12):
            await round_of(s, client, OPEN, plain)
            writing = asyncio.get_running_loop().create_task(busy())
            await round_of(s, client, ACCESS, keyed)
            writing.cancel()
        without, with_both = statistics.median(plain), statistics.median(keyed)
        print(
            f"\na request of a tenant among {KEYS} keys, counted, while {RECORDS} records/s are kept: "
            f"{with_both * 1e6:.0f} us; without keys and that: {without * 1e6:.0f} us; ratio {with_both / without:.2f}"
        )
        assert with_both / without < 1.5  # the goal is 1.1, on a machine that does nothing else


async def round_of(s: Serving, client: Client, access: Access, times: list[float]) -> None:
    s.gateway.set_access(access)
    for _ in range(60):
        begun = time.perf_counter()
        client.post(CHAT, headers=SHOWN)
        response = await client.response()
        times.append(time.perf_counter() - begun)
        assert response.status == 200
