"""What the parts of `sql_store` need of it: its thread, in which everything that touches the database runs."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Run(Protocol):
    """Does a piece of work in the store's thread. Raises StoreUnavailable."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return what the work returns."""
        ...
