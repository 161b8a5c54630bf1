"""Log lines for people and grep: time, level, a constant message, then the fields as `name=value`."""

import logging
import sys
import time

from llmgw.base.redact import redact

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """Appends a record's extra fields."""

    def __init__(self, program: str) -> None:
        super().__init__(f"%(asctime)sZ %(levelname)-8s {program}: %(message)s", "%Y-%m-%dT%H:%M:%S")

    @staticmethod
    def converter(seconds: float | None = None) -> time.struct_time:
        """Return the time in UTC."""
        return time.gmtime(seconds)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback below it, without credentials of URLs."""
        return redact(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Return the line."""
        fields = [f"{name}={_value(value)}" for name, value in record.__dict__.items() if name not in _STANDARD]
        return " ".join([super().formatMessage(record), *fields])


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text


def configure(program: str, level: str) -> None:
    """Log to standard error at this level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter(program))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("alembic", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
