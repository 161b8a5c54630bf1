"""`Brain`: the agent's state with a test in the place of its runner, who keeps the time and says what came of what."""

from dataclasses import replace
from typing import Any

from llmgw.agent.events import (
    Event,
    Exited,
    Gone,
    OrderStored,
    Probe,
    Probed,
    Say,
    Started,
    Tick,
)
from llmgw.agent.state import AgentState
from llmgw.base.ids import BootId, NodeName
from llmgw.base.time import Instant
from llmgw.engines.shard import RestartPolicy, ShardSpec
from llmgw.fleet.order import ShardOrder
from llmgw.fleet.report import Phase, Reason, ShardReport
from tests.builders import catalog, facts, model, order, spec_of

SPEC = replace(spec_of(catalog(model("m")), "m"), start_timeout=60.0, restarts=RestartPolicy(2.0, 60.0, 4, 600.0))
KEY = SPEC.shard
OTHER = replace(SPEC, hash="0000000000000000")
LOADING = Probe(SPEC, 1, 1001)
SERVING = Probe(SPEC, 1, 1001, proof=False, figures=True)
"""Who answers is proven before an engine counts as ready, and then now and then."""
PROVING = Probe(SPEC, 1, 1001, proof=True, figures=True)
NO_WEIGHTS = Reason("weights_missing", "no file /weights/m.gguf")


class Brain:
    """A state, a time, and what was last to be done."""

    def __init__(self) -> None:
        self.state = AgentState(BootId("boot"))
        self.now = 100.0
        self.generation = 0

    def happens(self, event: Event, after: float = 0.0) -> list[Any]:
        """Let time pass and something happen; return the instructions without `Say`."""
        self.now += after
        self.said = self.state.handle(event, Instant(self.now))
        return [one for one in self.said if not isinstance(one, Say)]

    def ordered(self, *specs: ShardSpec, draining: bool = False, after: float = 0.0) -> list[Any]:
        """Let a newer order with these shards arrive."""
        self.generation += 1
        wanted = [ShardOrder(spec, draining) for spec in specs]
        return self.happens(OrderStored(order("a", *wanted, generation=self.generation)), after)

    def passes(self, seconds: float) -> list[Any]:
        """Let time pass."""
        return self.happens(Tick(), seconds)

    def starts(self, spec: ShardSpec = SPEC, attempt: int = 1) -> list[Any]:
        """Let the process of an attempt run."""
        return self.happens(Started(spec, attempt, 1000 + attempt))

    def is_ready(self, attempt: int = 1) -> list[Any]:
        """Let a probe find the engine ready."""
        self.passes(0.25)
        return self.happens(Probed(KEY, attempt, True, ""))

    def crashes(self, attempt: int = 1) -> list[Any]:
        """Let the main process end."""
        return self.happens(Exited(KEY, attempt, "exit", "exit status 1", ("last words",)))

    def is_gone(self, attempt: int = 1) -> list[Any]:
        """Let it be verified that nothing of an attempt runs."""
        return self.happens(Gone(KEY, attempt))

    def serves(self) -> "Brain":
        """Order the shard and bring it to serve."""
        self.ordered(SPEC)
        self.starts()
        self.is_ready()
        return self

    @property
    def report(self) -> ShardReport:
        """What the next report says of the shard."""
        found = self.state.report(NodeName("a"), facts(), Instant(self.now)).shard(KEY)
        assert found is not None
        return found

    @property
    def phase(self) -> Phase:
        """The shard's phase as reported."""
        return self.report.phase

    @property
    def empty(self) -> bool:
        """Whether nothing is reported."""
        return self.state.report(NodeName("a"), facts(), Instant(self.now)).shards == ()
