"""Values of secrets: the environment first, then a directory of files.

`NAME` is the environment variable `LLMGW_SECRET_NAME`, or the file `NAME` in the directory. A file that others may read
is refused, not warned about: a warning about a key that everybody can copy is read weeks too late, and the mend is one
`chmod`. A group may read, since that is how service managers hand files to a service. Each refusal is said once, until
it has another reason. Values are read again each time they are asked for, so that one that was changed is used at once.
"""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

PREFIX = "LLMGW_SECRET_"
LARGEST = 64 << 10
"""Bytes of a file that is still taken for a secret."""


class Secrets:
    """A `SecretSource`. Its values appear in no message."""

    def __init__(self, environment: Mapping[str, str], directory: Path | None) -> None:
        self._environment = environment
        self._directory = directory
        self._said: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """Return the value without its trailing newline, or None if there is none that can be used."""
        value = self._environment.get(PREFIX + name.upper().replace("-", "_"))
        if value is not None:
            return value
        if self._directory is None or "/" in name or name.startswith("."):
            return None
        try:
            value = _read(self._directory / name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if self._said.get(name) != reason:
                self._said[name] = reason
                log.warning("secret %s is not used: %s", name, reason, extra={"file": self._directory / name})
            return None
        self._said.pop(name, None)
        return value


def _read(path: Path) -> str:
    """Return the file's text. Raises OSError; raises ValueError, whose message holds nothing of it, if it will not do."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a plain file")
        if found.st_mode & 0o037:
            raise ValueError(f"others may read or change it (mode {found.st_mode & 0o777:04o}); run `chmod 600 {path}`")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("it holds a zero byte")
    return text.removesuffix("\n").removesuffix("\r")
