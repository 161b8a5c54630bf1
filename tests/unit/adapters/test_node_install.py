"""What an installation brings to a node, against a shell that only remembers files."""

from llmgw.adapters.node_install import Request, _Work
from llmgw.adapters.node_shell import Done
from llmgw.adapters.node_wheel import Wheel
from tests.unit.adapters.test_node_plan import BARE, WANTED


class Files:
    """A `NodeShell` whose node keeps what is there at full size, as the real one does."""

    def __init__(self, there: dict[str, bytes]) -> None:
        self.there = there

    async def run(self, script: str, limit: float = 60.0, *, root: bool = False) -> Done:
        del limit, root
        for name in list(self.there):
            if f"rm -f {name}" in script:
                del self.there[name]
        return Done(0, "", "")

    async def upload(self, directory: str, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = f"{directory}/{name}"
            if len(self.there.get(path, b"")) != len(data):
                self.there[path] = data


async def test_another_release_of_the_same_version_and_size_is_brought_anew() -> None:
    wheel = Wheel("2", "2-b", "llmgw_agent-2-py3-none-any.whl", b"new", ())
    place = f"{WANTED.prefix}/incoming"
    shell = Files({f"{place}/{wheel.filename}": b"old", f"{place}/dep-1.whl": b"dep"})
    request = Request("user", wheelhouse={"dep-1.whl": b"dep"})
    await _Work(shell, BARE, WANTED, request, wheel, "c")._upload()  # type: ignore[arg-type]
    assert shell.there == {f"{place}/{wheel.filename}": b"new", f"{place}/dep-1.whl": b"dep"}
