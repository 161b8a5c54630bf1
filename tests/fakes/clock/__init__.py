"""A wall clock that jumps, for the processes that are started with its environment; the host's own is not touched."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "clock.c"


class FakeClock:
    """A shift of the wall clock, in a file that the processes share."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("gcc") is None:
            reason = "gcc is not installed; apt-get install gcc"
            if os.environ.get("LLMGW_NO_SKIP"):
                pytest.fail(reason)
            pytest.skip(reason)
        library = directory / "clock.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self._file = directory / "clock.shift"
        self._file.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "FAKE_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Set the wall clock so far off the host's."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
