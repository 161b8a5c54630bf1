"""The wheel that a node gets: the agent and what it imports of llmgw, packed from the files of the running llmgw.

Packed and not built: building needs a build backend, which a control plane without an index does not have, and a checkout,
an editable install and a wheel all have the same files at the same places. The contents and the requirements are found
by following the import statements from the agent's modules, so that there is no list to keep; a test installs the wheel
into an empty environment. Versions of requirements are those that llmgw itself declares.

The archive is the same, byte for byte, for the same files: its digest names the release, also in a checkout whose
version does not change between two edits.
"""

import ast
import base64
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import llmgw

ENTRY = "llmgw.app.node"
"""The module that a node's unit runs."""
DISTRIBUTION = "llmgw-agent"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class CannotPack(Exception):
    """The running llmgw cannot be packed; the message says why."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in memory."""

    version: str
    release: str
    """Version and digest; the name of its virtual environment on a node."""
    filename: str
    data: bytes
    requirements: tuple[str, ...]


def agent_wheel() -> Wheel:
    """Pack the running llmgw's agent. Raises CannotPack."""
    root = Path(llmgw.__file__).parent
    modules, foreign = closure(root)
    return pack(
        {f"llmgw/{path.relative_to(root).as_posix()}": path.read_bytes() for path in modules},
        llmgw.__version__,
        requirements(foreign),
    )


def closure(root: Path) -> tuple[list[Path], frozenset[str]]:
    """Return the modules that the agent reaches below the package's root, and the top-level names it imports besides.

    Imports inside functions count, and every module of the agent's own package is reached: it may run one by name.
    """
    waiting = [ENTRY, *(_module(root, path) for path in (root / "agent").rglob("*.py"))]
    found: dict[str, Path] = {}
    foreign: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = _file(root, name)
        if path is None or name in found:
            continue
        found[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        for imported in _imports(path):
            if imported.split(".")[0] == "llmgw":
                waiting.append(imported)
            elif imported.split(".")[0] not in sys.stdlib_module_names:
                foreign.add(imported.split(".")[0])
    return sorted(found.values()), frozenset(foreign)


def requirements(imported: Iterable[str]) -> tuple[str, ...]:
    """Return llmgw's own declared requirements that provide these top-level names. Raises CannotPack.

    What only an extra brings (an engine as a Python package) is not the agent's, and is left out here as there.
    """
    try:
        declared = metadata.requires("llmgw") or []
    except metadata.PackageNotFoundError as error:
        raise CannotPack("llmgw is not installed here, only imported; install it with `pip install .`") from error
    optional = {_normal(one) for one in declared if "extra ==" in one and "'dev'" not in one}
    by_name = {_normal(one): one for one in declared if "extra ==" not in one}
    # what comes with a requirement in any case, as pydantic_core does with pydantic, needs no line of its own
    brought = {_normal(one) for name in by_name for one in metadata.requires(name) or [] if "extra ==" not in one}
    providers = metadata.packages_distributions()
    needed: set[str] = set()
    for name in imported:
        provider = [_normal(one) for one in providers.get(name, [name])]
        known = [by_name[one] for one in provider if one in by_name]
        if not known and optional.isdisjoint(provider) and brought.isdisjoint(provider):
            raise CannotPack(f"the agent imports {name}, which llmgw's requirements do not name")
        needed.update(known)
    return tuple(sorted(needed))


def pack(files: dict[str, bytes], version: str, needs: tuple[str, ...]) -> Wheel:
    """Return a wheel of these files (archive path -> bytes)."""
    info = f"llmgw_agent-{version}.dist-info"
    described = "".join(f"Requires-Dist: {one}\n" for one in needs)
    contents = {
        **files,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\nSummary: The agent of an llmgw node.\n"
            f"Requires-Python: >=3.11\n{described}"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: llmgw\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_urlsafe(data)},{len(data)}\n" for path, data in sorted(contents.items()))
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(contents):
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[path])
    # of the contents and not of the archive: another zlib packs the same files into other bytes
    digest = hashlib.sha256(contents[f"{info}/RECORD"]).hexdigest()[:10]
    return Wheel(version, f"{version}-{digest}", f"llmgw_agent-{version}-py3-none-any.whl", buffer.getvalue(), needs)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(root: Path, path: Path) -> str:
    parts = ("llmgw", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _file(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split(".")[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _normal(requirement: str) -> str:
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
