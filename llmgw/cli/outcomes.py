"""How a command ends otherwise than done: what it raises, and the exit codes that follow."""

FAILED = 1
GUARDED = 4
WRONG_USAGE = 64
INTERRUPTED = 130


class Failed(Exception):
    """A command cannot do what was asked. The message is one line that says what to do next."""


class WrongUsage(Failed):
    """What was asked cannot be understood."""


class GuardRefused(Failed):
    """A guard of what is in force refuses what was asked; the message has the exact override."""
