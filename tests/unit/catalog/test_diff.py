"""What a person reads of a change: values as the file has them."""

from llmgw.catalog.diff import diff
from tests.builders import catalog, cluster, model, node


def test_durations_and_sizes_are_shown_as_they_are_written() -> None:
    before = catalog(cluster(), node("a"), model("m", 1))
    after = catalog(
        cluster(router={"max_body": "32MiB"}),
        node("a"),
        model("m", 2, rollout={"deadline": "90s", "max_surge": 2, "auto_revert": True}),
    )
    changes = {(field.path, field.before, field.after) for one in diff(before, after) for field in one.fields}
    assert changes == {
        ("router.max_body", "64MiB", "32MiB"),
        ("replicas", "1", "2"),
        ("rollout.deadline", "1h", "90s"),
        ("rollout.max_surge", "1", "2"),
        ("rollout.auto_revert", "false", "true"),
    }
