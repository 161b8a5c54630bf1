"""The gateway beside its peers (`gateway`), held to ratios that leave room for a busy machine; the goals are printed."""

import pytest

from tests.bench import gateway
from tests.bench.gateway import LLMGW, MEASURES

pytestmark = pytest.mark.bench

BY_NAME = {measure.name: measure for measure in MEASURES}


def test_the_gateway_keeps_up_with_its_peers() -> None:
    results = gateway.run()
    missing = [measure.title for measure in MEASURES if results.of(LLMGW.name, measure) is None]
    assert not missing
    for name, against, bound in (("rate", "nginx", 0.2), ("rate", "router", 0.8)):
        ratio = results.ratio(BY_NAME[name], against)
        assert ratio is None or ratio >= bound, f"{name}: {ratio:.2f} times that of {against}"
    for name, against, bound in (("event", "nginx", 3.0), ("event", "router", 2.0), ("p50", "nginx", 4.0)):
        ratio = results.ratio(BY_NAME[name], against)
        assert ratio is None or ratio <= bound, f"{name}: {ratio:.2f} times that of {against}"
    direct = results.figures[gateway.DIRECT]
    ours = results.figures[LLMGW.name]
    assert ours["events"] >= 0.5 * direct["events"]
    assert ours["rate"] >= 0.05 * direct["rate"]
