"""`Gateways`: all gateways of a control plane, as one sink of tables and keys, and one source of usage.

What is not planned is added here, behind the plan and its check: the static endpoints of the command line, and the keys of
upstreams. A key is looked up at every round, so that one that was changed is used at once, and kept nowhere else; a table,
a plan and a status name it only.
"""

import re
from dataclasses import dataclass, field

from llmgw.base.time import Clock
from llmgw.control.counting import joined
from llmgw.control.routers import Routers
from llmgw.control.workers import Workers
from llmgw.fleet.access import Access
from llmgw.fleet.static import StaticEndpoint, ids_of, with_static
from llmgw.fleet.table import EMPTY_TABLE, EndpointTable
from llmgw.fleet.usage import UsageView
from llmgw.ports.links import NoSecrets, SecretSource

_SENDABLE = re.compile(r"[!-~]{1,8192}")
"""What a header takes, and no key lacks."""


@dataclass(slots=True)
class Gateways:
    """Its own workers, and routers on other hosts. Implements `EndpointSink`, `AccessSink` and `UsageSource`."""

    workers: Workers
    routers: Routers
    clock: Clock
    static: tuple[StaticEndpoint, ...] = ()
    secrets: SecretSource = field(default_factory=NoSecrets)
    _planned: EndpointTable = EMPTY_TABLE
    _unknown: tuple[str, ...] = ()

    def publish(self, table: EndpointTable, *, settled: bool) -> None:
        """Give the table to all of them, with the command line's static endpoints in it."""
        self._planned = table
        whole = with_static(table, self.static)
        keys, unknown = {}, []
        for name in sorted({one.key for one in whole.endpoints if one.key}):
            value = self.secrets.get(name)
            if value is not None and _SENDABLE.fullmatch(value):
                keys[name] = value
            else:
                unknown.append(_why_not(name, value))
        self._unknown = tuple(unknown)
        self.workers.publish(whole, settled=settled, keys=keys)
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

    @property
    def alarms(self) -> tuple[str, ...]:
        """What people must know: upstreams that are named and not routed to."""
        there = {one.id for one in self._planned.endpoints}
        twice = [one.id for one in self.static if there & set(ids_of(one))]
        hidden = (
            f"--endpoint {name}: an Endpoint of the cluster directory has that name; rename one" for name in twice
        )
        return (*self._unknown, *hidden)


def _why_not(name: str, value: str | None) -> str:
    """Return why upstreams whose key this is are not routed to. Says nothing of the value."""
    if value is None:
        mend = f"set LLMGW_SECRET_{name}, or put a file {name} (mode 0600) into --secrets-dir"
        return f"endpoints whose api_key is {name} are not routed to: there is no such secret; {mend}"
    what = "is empty" if not value else "has a space, a line end or another character that no header takes"
    return f"endpoints whose api_key is {name} are not routed to: the secret {what}; correct it"
