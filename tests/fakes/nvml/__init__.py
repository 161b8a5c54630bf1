"""A machine with NVIDIA cards: a library that the real nvidia-ml-py loads, and the cards as lines of a file.

The shapes are those that the real cards give: what a data centre card says and a desktop card does not support.
"""

import subprocess
from pathlib import Path

H100 = """
card
  uuid {uuid}
  name NVIDIA H100 80GB HBM3
  bus {bus}
  total 81559
  used 4
  reserved 551
  ecc 0
  pending 0
  recovery 0
  mig 0
  fabric 3
"""

A100 = """
card
  uuid {uuid}
  name NVIDIA A100-SXM4-80GB
  bus {bus}
  total 81920
  used 4
  reserved 617
  ecc 0
  pending 0
  retired 0
  mig 0
  fabric 0
"""

RTX_4090 = """
card
  uuid {uuid}
  name NVIDIA GeForce RTX 4090
  bus {bus}
  total 24564
  used 18
  reserved 436
"""

V100 = """
card
  uuid {uuid}
  name Tesla V100-SXM2-32GB
  bus {bus}
  total 32768
  used 0
  reserved 274
  ecc 0
  retired 0
"""

SWITCHES = ("00000000:05:00.0", "00000000:06:00.0", "00000000:07:00.0", "00000000:08:00.0")


def uuid(number: int) -> str:
    """Return the UUID of the machine's card of that number."""
    return f"GPU-{number:08d}-1627-f8ff-2ba3-c05c5a8e9e67"


def bus(number: int) -> str:
    """Return its bus address, as NVML writes it."""
    return f"00000000:{0x19 + 0x11 * number:02X}:00.0"


class Machine:
    """What the library says; `lines` of each card are changed by a test, then written by `say`."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._file = directory / "cards"
        self.library = library
        self.head = ["driver 570.86.15"]
        self.cards: list[list[str]] = []
        self.say()

    @property
    def environment(self) -> dict[str, str]:
        """What the process that loads the library needs."""
        return {"FAKE_NVML": str(self._file), "LD_LIBRARY_PATH": str(self.library.parent)}

    def add(self, shape: str, *more: str, count: int = 1) -> None:
        """Put in so many cards of a shape."""
        for _ in range(count):
            number = len(self.cards)
            lines = shape.format(uuid=uuid(number), bus=bus(number)).strip().splitlines()
            self.cards.append([*lines, *more])
        self.say()

    def change(self, number: int, line: str) -> None:
        """Replace what a card says under the first word of `line`, or add it."""
        key = line.split(maxsplit=1)[0]
        kept = [one for one in self.cards[number] if one.split()[0] != key]
        self.cards[number] = [*kept, line]
        self.say()

    def say(self) -> None:
        """Have the library answer so from its next look on."""
        lines = [*self.head, *(line for card in self.cards for line in card)]
        temporary = self._file.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.rename(self._file)


def build(directory: Path, *, old: bool = False) -> Path:
    """Compile the library and return its path; `old` is one of a driver before R510."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    flags = ["-DOLD"] if old else []
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
    return library
