"""Keys in step with the store: what is published to gateways and when, whose key a credential is, and what cannot be done."""

from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.base.ids import Revision
from llmgw.base.time import Instant
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, compile_tree
from llmgw.catalog.source import SourceTree
from llmgw.control.acts import CannotAct
from llmgw.control.key_book import KeyBook
from llmgw.control.spending import Spendings
from llmgw.fleet.access import Access
from llmgw.fleet.spent import Spent, SpentBatch
from llmgw.ports.sinks import StoreUnavailable
from llmgw.sim.keys import FakeKeys
from llmgw.sim.usage import FakeUsage

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: c\nrouter: {{auth: {auth}}}\n"
TENANT = "apiVersion: llmgw/v1\nkind: Tenant\nname: {name}\nmodels: ['m*']\n"


def catalog(*tenants: str, auth: str = "keys") -> Catalog:
    files = {"c.yaml": CLUSTER.format(auth=auth), **{f"{one}.yaml": TENANT.format(name=one) for one in tenants}}
    outcome = compile_tree(SourceTree(Revision("r"), {path: text.encode() for path, text in files.items()}))
    assert isinstance(outcome, Accepted)
    return outcome.catalog


class Desk:
    """A book with a store that others may write to, and gateways that remember what they were told."""

    def __init__(self, keeper: FakeKeys | None = None, *, loopback: bool = True, copy: Path | None = None) -> None:
        self.time = 10_000.0
        self.number = 0
        self.catalog: Catalog | None = catalog("a", "b")
        self.published: list[Access] = []
        self.keeper = keeper or FakeKeys()
        self.book = KeyBook(
            self.keeper, self, lambda: self.catalog, self, self, self.secret, loopback=loopback, copy=copy
        )

    def now(self) -> Instant:
        return Instant(self.time)

    def new(self) -> str:
        self.number += 1
        return f"{self.number:016x}"[::-1]

    def secret(self) -> str:
        return f"s3cret-{self.number}"

    def admit(self, access: Access) -> None:
        self.published.append(access)

    @property
    def ids(self) -> list[str]:
        return [key.id for key in self.published[-1].keys]


async def test_nothing_is_published_before_it_is_known_who_the_tenants_are() -> None:
    desk = Desk()
    desk.catalog = None
    await desk.book.load()
    assert desk.published == []
    with pytest.raises(CannotAct, match="there is no tenant 'a'; there are: none yet"):
        await desk.book.create("a", None, "", None, "ann")


async def test_a_change_is_published_at_once_and_nothing_twice() -> None:
    desk = Desk()
    await desk.book.load()
    await desk.book.step()
    assert [(one.version, one.required, len(one.keys)) for one in desk.published] == [(1, True, 0)]
    made = await desk.book.create("a", None, "ci", None, "ann")
    assert [(one.version, [key.id for key in one.keys]) for one in desk.published[1:]] == [(2, [made.key.id])]
    assert made.credential == f"sk-llmgw-{made.key.id}-s3cret-1"
    assert "s3cret" not in repr(desk.published) + repr(desk.book.keys)
    await desk.book.step()
    assert len(desk.published) == 2
    assert await desk.book.revoke(made.key.id) == (made.key,)
    assert desk.ids == []
    desk.catalog = catalog("a", "b", "new")
    await desk.book.step()
    assert [one.name for one in desk.published[-1].tenants] == ["a", "b", "new"]


async def test_what_another_control_plane_wrote_is_seen_at_the_next_look() -> None:
    desk = Desk()
    other = Desk(desk.keeper)
    for one in (desk, other):
        await one.book.load()
    made = await other.book.create("a", None, "", None, "ann")
    await desk.book.step()
    assert desk.ids == [made.key.id]


async def test_a_store_that_is_away_locks_nobody_out_and_is_an_alarm() -> None:
    desk = Desk()
    await desk.book.load()
    made = await desk.book.create("a", None, "", None, "ann")
    desk.keeper.available = False
    with pytest.raises(StoreUnavailable):
        await desk.book.step()
    assert desk.ids == [made.key.id]
    with pytest.raises(StoreUnavailable):
        await desk.book.create("a", None, "", None, "ann")


async def test_a_server_that_starts_while_the_store_is_away_goes_by_what_was_read_last(tmp_path: Path) -> None:
    copy = tmp_path / "keys.json"
    desk = Desk(copy=copy)
    await desk.book.load()
    made = await desk.book.create("a", None, "", None, "ann")
    assert "s3cret" not in copy.read_text()
    assert copy.stat().st_mode & 0o77 == 0
    desk.keeper.available = False
    again = Desk(desk.keeper, copy=copy)
    with pytest.raises(StoreUnavailable):
        await again.book.load()
    again.book.recall()
    assert again.ids == [made.key.id]
    desk.keeper.available = True
    await desk.keeper.revoke(made.key.id, desk.now())
    await again.book.step()
    assert again.ids == []


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
async def test_gateways_that_serve_go_on_by_what_they_know_until_somebody_knows_more(
    tmp_path: Path, content: bytes | None
) -> None:
    copy = tmp_path / "keys.json"
    if content is not None:
        copy.write_bytes(content)
    desk = Desk(copy=copy)
    desk.keeper.available = False
    desk.book.recall()
    with pytest.raises(StoreUnavailable):
        await desk.book.step()
    assert desk.published == []
    desk.keeper.available = True
    await desk.book.step()
    assert len(desk.published) == 1
    desk = Desk()
    desk.catalog = catalog(auth="off")
    desk.keeper.available = False
    with pytest.raises(StoreUnavailable):
        await desk.book.step()
    assert [one.required for one in desk.published] == [False], "no key is asked for, so none has to be known"


async def test_keys_of_tenants_that_left_and_keys_that_are_over_open_nothing() -> None:
    desk = Desk()
    await desk.book.load()
    first = await desk.book.create("a", None, "", Instant(desk.time + 60), "ann")
    second = await desk.book.create("b", None, "", None, "ann")
    assert desk.ids == [first.key.id, second.key.id]
    desk.time += 60
    await desk.book.step()
    assert desk.ids == [second.key.id]
    desk.catalog = catalog("a")
    await desk.book.step()
    assert desk.ids == []


async def test_what_other_hosts_reach_asks_for_keys_whatever_a_commit_says() -> None:
    for loopback in (True, False):
        desk = Desk(loopback=loopback)
        desk.catalog = catalog(auth="off")
        await desk.book.load()
        assert desk.published[-1].required is not loopback
        assert bool(desk.book.alarms) is not loopback


async def test_a_rotation_has_both_for_a_while_and_as_long_a_life() -> None:
    desk = Desk()
    await desk.book.load()
    old = await desk.book.create("a", None, "ci", Instant(desk.time + 1000), "ann")
    desk.time += 900
    new = await desk.book.rotate("a", 50.0, "ben")
    assert new.old is not None
    assert (new.old.id, new.key.tenant, new.key.note, new.key.by) == (old.key.id, "a", "ci", "ben")
    assert new.key.expires == desk.time + 1000
    assert desk.ids == [old.key.id, new.key.id]
    with pytest.raises(CannotAct, match=f"tenant a has 2 keys; name one of them: {old.key.id} .ci., {new.key.id}"):
        await desk.book.rotate("a", 50.0, "ben")
    desk.time += 50
    await desk.book.step()
    assert desk.ids == [new.key.id]
    assert [one.id for one in await desk.book.revoke("a", every=True)] == [new.key.id]
    for which in ("a", "", "nobody", old.key.id):
        with pytest.raises(CannotAct):
            await desk.book.revoke(which)


async def test_administrators_keys_are_known_here_and_only_the_highest_at_gateways() -> None:
    desk = Desk()
    await desk.book.load()
    made = {scope: await desk.book.create("", scope, "", None, "ann") for scope in ("read", "apply", "admin")}
    client = await desk.book.create("a", None, "", None, "ann")
    for scope, one in made.items():
        assert desk.book.admin(one.credential) == (one.key.id, scope)
        assert desk.book.admin(one.credential + "x") is None
    assert desk.book.admin(client.credential) is None
    assert desk.book.admin("") is None
    assert desk.ids == [made["admin"].key.id, client.key.id]
    await desk.book.revoke(made["read"].key.id)
    assert desk.book.admin(made["read"].credential) is None


async def test_when_a_key_was_used_is_known_by_what_its_requests_cost_and_written_now_and_then() -> None:
    desk, kept = Desk(), FakeUsage()
    await desk.book.load()
    made = await desk.book.create("a", None, "", None, "ann")
    spendings = Spendings(kept, desk, desk.book.used)
    hour = int(desk.time) // 3600
    await spendings.keep(SpentBatch("w", 1, (Spent("a", made.key.id, "m", hour, 1), Spent("", "", "m", hour, 1))))
    await desk.book.step()
    assert (await desk.keeper.keys()).keys == (made.key,)
    desk.time += 5
    desk.keeper.available = False
    with pytest.raises(StoreUnavailable):
        await desk.book.note_used()
    desk.keeper.available = True
    await desk.book.note_used()
    assert (await desk.keeper.keys()).keys == (replace(made.key, last_used=Instant(10_000.0)),)
    await spendings.keep(SpentBatch("w", 2, (Spent("a", made.key.id, "m", hour - 1, 1),)))  # held back for an hour
    await desk.book.note_used()
    assert (await desk.keeper.keys()).keys[0].last_used == 10_000.0
    assert len(kept.rows) == 3
