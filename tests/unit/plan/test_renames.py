"""A model that takes another name: its replicas are kept, and clients reach them under the new one at once."""

from dataclasses import replace

from llmgw.fleet.report import Phase
from tests.builders import Desk, model, node, ordered, published, told

A = node("a")


def named(name: str, **fields):
    return model(name, 2, **{"weights": {"path": "/weights/x.gguf"}, **fields})


def renamed() -> Desk:
    desk = Desk.of(A, named("old"))
    desk.settle()
    desk.want(A, named("new", moved_from="old"))
    return desk


def test_a_rename_starts_and_stops_nothing() -> None:
    desk = renamed()
    decided = desk.plan()
    assert told(decided) == []
    assert ordered(decided) == {"a": ["old-1-0", "old-1-1"]}
    assert [(one.id, one.model, one.served_name) for one in decided.table.endpoints] == [
        ("old-1-0", "new", "old"),
        ("old-1-1", "new", "old"),
    ], "its engines know themselves by the old name until they start anew"
    assert {one.spec.model for one in decided.orders["a"].shards} == {"new"}
    assert told(desk.plan()) == []


def test_when_it_is_done_the_line_may_go_and_a_fresh_control_plane_sees_no_difference() -> None:
    desk = renamed()
    desk.plan()
    desk.obey()
    desk.want(A, named("new"))
    assert told(desk.plan()) == []
    desk.take_over()
    decided = desk.plan()
    assert not any(line.startswith(("start", "drain", "stop")) for line in told(decided))
    assert published(decided) == ["old-1-0", "old-1-1"]


def test_an_engine_that_starts_anew_is_asked_by_its_new_name() -> None:
    desk = renamed()
    desk.plan()
    desk.obey()
    name, report = desk.shard("old-1-0")
    assert report.spec.served_name == "new", "what is ordered for its next start"
    view = desk.views[name]
    running = replace(report.spec, served_name="old")
    desk.views[name] = replace(
        view,
        report=replace(
            view.report,
            shards=tuple(replace(one, spec=running) if one is report else one for one in view.report.shards),
        ),
    )
    names = {one.id: one.served_name for one in desk.plan().table.endpoints}
    assert names == {"old-1-0": "old", "old-1-1": "new"}


def test_a_rename_and_a_change_roll_the_old_ones_over() -> None:
    desk = Desk.of(A, named("old"))
    desk.settle()
    desk.want(A, model("new", 2, "--changed", weights={"path": "/weights/x.gguf"}, moved_from="old"))
    decided = desk.plan()
    assert told(decided) == ["start new-1-0 @a"]
    assert published(decided) == ["old-1-0", "old-1-1"]
    desk.obey()
    desk.settle()
    assert ordered(desk.plan()) == {"a": ["new-1-0", "new-1-1"]}


def test_without_the_line_another_name_is_another_model() -> None:
    desk = Desk.of(A, named("old"))
    desk.settle()
    desk.want(A, named("new"))
    desk.plan()
    desk.obey(Phase.STARTING)
    assert [one.replica for one in desk.actions if one.verb == "drain"] == ["old-1-0", "old-1-1"]


def test_a_rename_that_is_undone_starts_and_stops_nothing_either() -> None:
    desk = renamed()
    desk.plan()
    desk.obey()
    desk.want(A, named("old"))
    decided = desk.plan()
    assert told(decided) == []
    assert [(one.id, one.model) for one in decided.table.endpoints] == [("old-1-0", "old"), ("old-1-1", "old")]


def test_a_new_model_of_the_old_name_gets_other_ids_than_those_that_went_with_the_rename() -> None:
    desk = renamed()
    desk.plan()
    desk.obey()
    desk.want(A, named("new"), model("old", 1, weights={"path": "/weights/y.gguf"}))
    decided = desk.plan()
    assert told(decided) == ["start old-1-2 @a"]
    assert {"old-1-0", "old-1-1"} <= set(published(decided))
    desk.obey()
    models = {one.id: one.model for one in desk.plan().table.endpoints}
    assert models == {"old-1-0": "new", "old-1-1": "new", "old-1-2": "old"}
