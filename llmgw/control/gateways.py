"""`Gateways`: all gateways of a control plane, as the one sink of tables and source of usage that the reconciler knows.

What is not planned is added here, behind the plan and its check: static endpoints, which somebody else runs.
"""

from dataclasses import dataclass

from llmgw.control.workers import Workers
from llmgw.fleet.static import StaticEndpoint, with_static
from llmgw.fleet.table import EndpointTable
from llmgw.fleet.usage import UsageView


@dataclass(frozen=True, slots=True)
class Gateways:
    """Its own workers. Implements `EndpointSink` and `UsageSource`."""

    workers: Workers
    static: tuple[StaticEndpoint, ...] = ()

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Give the table to all of them, with the static endpoints in it."""
        self.workers.publish(with_static(table, self.static), settled=settled)

    def usage(self) -> UsageView:
        """Return what all of them together have in flight."""
        return self.workers.usage()
