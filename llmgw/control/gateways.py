"""`Gateways`: all gateways of a control plane, as one sink of tables and keys, and one source of usage.

What is not planned is added here, behind the plan and its check: static endpoints, which somebody else runs.
"""

from dataclasses import dataclass

from llmgw.base.time import Clock
from llmgw.control.counting import joined
from llmgw.control.routers import Routers
from llmgw.control.workers import Workers
from llmgw.fleet.access import Access
from llmgw.fleet.static import StaticEndpoint, with_static
from llmgw.fleet.table import EndpointTable
from llmgw.fleet.usage import UsageView


@dataclass(frozen=True, slots=True)
class Gateways:
    """Its own workers, and routers on other hosts. Implements `EndpointSink`, `AccessSink` and `UsageSource`."""

    workers: Workers
    routers: Routers
    clock: Clock
    static: tuple[StaticEndpoint, ...] = ()

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Give the table to all of them, with the static endpoints in it."""
        whole = with_static(table, self.static)
        self.workers.publish(whole, settled=settled)
        self.routers.publish(whole, settled=settled)

    def admit(self, access: Access) -> None:
        """Have all of them go by this."""
        self.workers.admit(access)
        self.routers.admit(access)

    def usage(self) -> UsageView:
        """Return what all of them together have in flight."""
        own = self.workers.words()  # without any, nothing is known, whatever routers say
        words = [*own, *self.routers.words()] if own else []
        return joined(words, self.workers.version or None, self.clock.now())
