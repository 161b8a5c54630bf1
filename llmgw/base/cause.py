"""Why something happened, in a form that one grep can follow across processes."""

from dataclasses import dataclass

from llmgw.base.ids import Revision, short


@dataclass(frozen=True, slots=True)
class Cause:
    """The revision and the reconcile round that led to an order, an event, or a log line."""

    revision: Revision
    reconcile: int

    def __str__(self) -> str:
        return f"{short(self.revision)}#{self.reconcile}"
