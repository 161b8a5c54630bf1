"""What the status says of replicas, beyond what their nodes say."""

from typing import Any

from llmgw.base.ids import NodeName
from llmgw.base.time import Instant
from llmgw.control.catalogs import CatalogState
from llmgw.control.status import Control, status
from llmgw.fleet.report import Phase
from llmgw.fleet.view import Reporting
from llmgw.plan.result import Plan
from tests.builders import Desk, model, node

CONTROL = Control("1", 1, "here", "http://x/v1", "/s", leading=True, epoch=1, workers=(), alarms=())


def shown(desk: Desk, last: Plan) -> dict[str, Any]:
    """Return the status of a desk as it is now."""
    return status(CONTROL, CatalogState(), desk.snapshot(), last, Instant(desk.now))


def test_a_replica_that_is_ready_without_a_way_to_it_says_so() -> None:
    desk = Desk.of(model("m"), node("a"))
    last = desk.settle()
    (replica,) = shown(desk, last)["replicas"]
    assert (replica["phase"], replica["reason"]) == (Phase.READY, None)
    view = desk.views[NodeName("a")]
    assert isinstance(view, Reporting)
    desk.views[NodeName("a")] = Reporting(view.report, view.at, {})
    last = desk.plan()
    found = shown(desk, last)
    (replica,) = found["replicas"]
    assert replica["reason_code"] == "no_way"
    assert "no tunnel or connection reaches it" in replica["reason"]
    (row,) = found["models"]
    assert row["ready"] == 0
    assert "no tunnel or connection reaches it" in row["waits_for"][0]
