"""The node's wheel: the agent's modules and no others, with the requirements that these import."""

import base64
import hashlib
import io
import zipfile
from pathlib import Path

import grimp
import pytest

import llmgw
from llmgw.adapters.node_wheel import CannotPack, agent_wheel, closure, pack, requirements

ROOT = Path(llmgw.__file__).parent


def test_it_holds_what_the_import_graph_says() -> None:
    graph = grimp.build_graph("llmgw", include_external_packages=True)
    roots = {"llmgw.app.node", "llmgw.agent", *graph.find_descendants("llmgw.agent")}
    reached = roots | set().union(*(graph.find_upstream_modules(one) for one in roots))
    modules, foreign = closure(ROOT)
    found = {".".join(("llmgw", *path.relative_to(ROOT).with_suffix("").parts)) for path in modules}
    found = {one.removesuffix(".__init__") for one in found}
    ours = {one for one in reached if one.startswith("llmgw")}
    assert ours <= found
    assert {one.partition(".")[0] for one in found - ours} == {"llmgw"}, "only the packages' own __init__ come on top"
    assert all((ROOT / Path(*one.split(".")[1:]) / "__init__.py").exists() for one in found - ours)
    external = {one for one in reached if graph.is_module_squashed(one)}
    assert foreign >= {one for one in external if not one.startswith("llmgw")} - _standard()


def _standard() -> set[str]:
    import sys

    return set(sys.stdlib_module_names)


def test_the_control_plane_stays_at_home() -> None:
    wheel = agent_wheel()
    names = zipfile.ZipFile(io.BytesIO(wheel.data)).namelist()
    for part in ("cli", "control", "gateway", "adapters", "plan", "catalog", "routing"):
        assert not [name for name in names if name.startswith(f"llmgw/{part}/")], part
    allowed = {"aiohttp", "huggingface-hub", "nvidia-ml-py", "psutil", "pydantic"}
    assert {one.partition(">")[0].partition("<")[0] for one in wheel.requirements} <= allowed


def test_every_file_is_in_its_record() -> None:
    archive = zipfile.ZipFile(io.BytesIO(agent_wheel().data))
    record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
    rows = dict(line.split(",", 1) for line in archive.read(record).decode().splitlines())
    assert set(rows) == set(archive.namelist())
    for name, row in rows.items():
        if name != record:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert row == f"sha256={digest},{len(data)}"


def test_the_release_is_named_by_the_contents() -> None:
    files = {"llmgw/__init__.py": b"", "llmgw/a.py": b"1"}
    first = pack(files, "1.0", ("psutil<8,>=7",))
    assert pack(dict(reversed(files.items())), "1.0", ("psutil<8,>=7",)) == first
    others = {
        pack({**files, "llmgw/a.py": b"2"}, "1.0", ("psutil<8,>=7",)).release,
        pack(files, "1.0", ("psutil<9,>=7",)).release,
        pack(files, "1.1", ("psutil<8,>=7",)).release,
    }
    assert len(others | {first.release}) == 4


def test_an_import_that_nothing_declares_is_a_fault() -> None:
    with pytest.raises(CannotPack, match="pytest"):
        requirements(["psutil", "pytest_asyncio"])
    assert requirements(["psutil", "xllamacpp"]) == requirements(["psutil"]), "what an extra brings is not the agent's"
