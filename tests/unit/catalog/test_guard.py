"""What a revision may not remove without saying so."""

import pytest

from llmgw.base.ids import Revision
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.diff import diff
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.guard import allowed_by, guarded, refusals
from llmgw.catalog.source import SourceTree
from tests.builders import Object, catalog, cluster, model, node, tree

ALL = ["a", "b", "c", "d"]


def _catalog(*models: str, guard: Object | None = None, protect: tuple[str, ...] = ()) -> Catalog:
    marked = {"protect": True}
    objects = [model(name, **(marked if name in protect else {})) for name in models]
    return catalog(cluster(guard=guard or {}), node("n"), *objects)


def _rules(before: Catalog, after: Catalog, *allowed: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.rule, one.objects) for one in refusals(guarded(before), after, frozenset(allowed))]


def test_without_rules_everything_may_go() -> None:
    assert _rules(_catalog(*ALL), _catalog()) == []


def test_at_most_so_many_objects_may_go() -> None:
    before = _catalog(*ALL, guard={"max_removed": 2})
    assert _rules(before, _catalog("a", "b")) == []
    assert _rules(before, _catalog("a")) == [("max_removed", ("model/b", "model/c", "model/d"))]


def test_nodes_count_as_objects_and_not_as_models() -> None:
    before = catalog(cluster(guard={"max_removed": 0, "max_removed_share": "0%"}), node("n"), node("o"), model("a"))
    after = catalog(cluster(), node("n"), model("a"))
    assert _rules(before, after) == [("max_removed", ("node/o",))]


def test_at_most_a_share_of_the_models_may_go() -> None:
    before = _catalog(*ALL, guard={"max_removed_share": "50%"})
    assert _rules(before, _catalog("a", "b")) == []
    assert _rules(before, _catalog("a")) == [("max_removed_share", ("model/b", "model/c", "model/d"))]


def test_what_is_named_is_not_counted_so_the_last_one_can_go() -> None:
    before = _catalog("a", guard={"max_removed": 0, "max_removed_share": "0%"}, protect=("a",))
    assert len(_rules(before, _catalog())) == 3
    assert _rules(before, _catalog(), "model/a") == []
    assert _rules(_catalog(*ALL, guard={"max_removed": 1}), _catalog(), "model/a", "model/b", "model/c") == []


@pytest.mark.parametrize("named", ["model/b", "a", "Model/a", "model/*", "node/a"])
def test_the_override_names_exactly_the_object(named: str) -> None:
    assert _rules(_catalog("a", protect=("a",)), _catalog(), named) == [("protect", ("model/a",))]


def test_a_protected_object_stays_even_if_the_guard_is_deleted_with_it() -> None:
    before = _catalog("a", "b", guard={"protect": ["model/a*", "node/*"]}, protect=("b",))
    after = catalog(cluster(name="test"), node("other"))
    broken = refusals(guarded(before), after)
    assert [one.objects for one in broken] == [("model/a", "model/b", "node/n")]
    assert "model/a (guard.protect: model/a*), model/b (protect: true)" in broken[0].text


def test_protection_is_given_up_by_a_revision_that_says_so_first() -> None:
    before = _catalog("a", protect=("a",))
    between = _catalog("a")
    assert _rules(before, between) == []
    assert _rules(between, _catalog()) == []


def test_a_moved_file_removes_nothing() -> None:
    moved = tree(cluster(guard={"max_removed": 0}), node("n"), model("a", protect=True))
    files = {f"elsewhere/{path.replace('/', '-')}": data for path, data in moved.files.items()}
    before = _catalog("a", guard={"max_removed": 0}, protect=("a",))
    from llmgw.catalog.compile import Accepted, compile_tree

    outcome = compile_tree(SourceTree(Revision("r2"), files))
    assert isinstance(outcome, Accepted)
    assert _rules(before, outcome.catalog) == []


def test_another_kind_of_the_same_name_is_another_object() -> None:
    before = catalog(cluster(), node("a"), node("x"), model("a", protect=True))
    after = catalog(cluster(), node("a"), node("x"))
    assert _rules(before, after) == [("protect", ("model/a",))]


def test_a_refusal_has_the_exact_words_that_allow_it() -> None:
    broken = refusals(guarded(_catalog("a", "b", protect=("a", "b"))), _catalog())[0]
    assert broken.trailer == "LLMGW-Allow-Remove: model/a, model/b"
    assert broken.options == "--allow-remove model/a --allow-remove model/b"
    assert allowed_by((broken.trailer,)) == {"model/a", "model/b"}


def test_trailers_of_other_keys_allow_nothing() -> None:
    trailers = (
        "Signed-off-by: model/x",
        "llmgw-allow-remove: model/a",
        "LLMGW-Allow-Remove: model/b,model/c  node/n",
        "",
    )
    assert allowed_by(trailers) == {"model/a", "model/b", "model/c", "node/n"}


def test_many_objects_are_cut_in_the_sentence_and_whole_in_the_data() -> None:
    names = [f"m{number:02}" for number in range(40)]
    broken = refusals(guarded(_catalog(*names, guard={"max_removed": 1})), _catalog())[0]
    assert "and 35 more" in broken.text
    assert len(broken.objects) == 40
    assert broken.trailer.count("model/") == 40


def test_the_digest_is_of_paths_and_contents_alone() -> None:
    one = SourceTree(Revision("r1"), {"a.yaml": b"x", "b.yaml": b"y"})
    assert tree_digest(one) == tree_digest(
        SourceTree(Revision("r2"), {"b.yaml": b"y", "a.yaml": b"x"}, subject="other")
    )
    others = [{"a.yaml": b"xy", "b.yaml": b""}, {"a.yaml": b"x", "c.yaml": b"y"}, {"a.yaml": b"x"}]
    assert len({tree_digest(SourceTree(Revision("r"), files)) for files in others} | {tree_digest(one)}) == 4
    assert tree_digest(SourceTree(Revision("r1"), one.files, {"l.yaml": "symlink"})) != tree_digest(one)


def test_a_model_that_takes_another_name_is_not_removed() -> None:
    before = guarded(catalog(cluster(guard={"max_removed": 0, "protect": ["model/*"]}), model("old")))
    moved = catalog(cluster(), model("new", weights={"path": "/weights/old.gguf"}, moved_from="old"))
    assert refusals(before, moved) == ()
    assert refusals(before, catalog(cluster(), model("new"))) != ()
    (change,) = [one for one in diff(catalog(model("old")), moved) if one.kind == "Model"]
    assert (change.action, change.name, [one.path for one in change.fields]) == (
        "update",
        "new",
        ["name", "moved_from"],
    )


@pytest.mark.parametrize("guard", [{"max_removed": 0}, {"max_removed_share": "0%"}, {"protect": ["model/a"]}])
def test_a_model_that_was_there_is_not_the_new_name_of_one_that_goes(guard: Object) -> None:
    before = _catalog("a", "b", guard=guard)
    taken = catalog(cluster(), node("n"), model("b", moved_from="a"))
    assert [objects for _, objects in _rules(before, taken)] == [("model/a",)]
    renamed = catalog(cluster(), node("n"), model("b"), model("c", moved_from="a"))
    assert _rules(before, renamed) == []
    again = guarded(renamed)
    assert refusals(again, renamed) == (), "the line may stay for a while"
