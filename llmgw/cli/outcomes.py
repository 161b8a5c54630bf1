"""How a command ends otherwise than done: what it raises, and the exit codes that follow."""

from typing import Any

FAILED = 1
STALE = 3
GUARDED = 4
NOT_HEALTHY = 5
WRONG_USAGE = 64
INTERRUPTED = 130


class Failed(Exception):
    """A command cannot do what was asked. The message is one line that says what to do next."""


class WrongUsage(Failed):
    """What was asked cannot be understood."""


class GuardRefused(Failed):
    """A guard of what is in force refuses what was asked; the message has the exact override, `guard` each rule as data."""

    def __init__(self, text: str, guard: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(text)
        self.guard = guard


class StalePlan(Failed):
    """What a saved plan relied on has changed; the message says what."""


class NotHealthy(Failed):
    """What was applied failed, or was not healthy in time; the message says what is known of it."""


class NoServer(Failed):
    """No server answers there."""


class ConnectionLost(NoServer):
    """One was asked and did not answer: whether it has done what it was asked is not known."""


class ServerRefused(Failed):
    """The server refused a request: with this status, and data beside the message."""

    def __init__(self, text: str, status: int, data: dict[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.data = data
