"""Rules of the house that no linter knows: sizes, names, docstrings, what every field must say, what must be fresh."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from llmgw.adapters.dir_source import read_directory
from llmgw.catalog.compile import Accepted, compile_tree
from llmgw.catalog.source import SourceTree
from llmgw.spec.common import impact_of
from llmgw.spec.kinds import KINDS
from llmgw.spec.schema import schema_files

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "llmgw").rglob("*.py"))
LONGEST_MODULE = 500
LONGEST_FUNCTION = 60
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "common_utils", "misc"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_is_small_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= LONGEST_MODULE
    assert path.stem not in EMPTY_NAMES
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(tree), "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            first = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
            assert node.end_lineno - first <= LONGEST_FUNCTION, f"{node.name} is too long"


def _models(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    if model.__name__ not in found:
        found[model.__name__] = model
        for field in model.model_fields.values():
            for part in re.findall(r"\b[A-Z]\w+", str(field.annotation)):
                for candidate in BaseModel.__subclasses__() + [
                    grandchild for child in BaseModel.__subclasses__() for grandchild in child.__subclasses__()
                ]:
                    if candidate.__name__ == part and candidate.__module__.startswith("llmgw.spec"):
                        _models(candidate, found)
    return found


SPEC: dict[str, type[BaseModel]] = {}
for kind in KINDS.values():
    _models(kind, SPEC)


@pytest.mark.parametrize("model", SPEC.values(), ids=list(SPEC))
def test_every_field_says_what_it_is_and_what_a_change_costs(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} has no description"
        impact_of(model, name)
    assert model.model_config.get("frozen")
    assert model.model_config.get("strict")
    assert model.model_config.get("extra") == "forbid"


def test_the_fields_that_are_checked_are_more_than_the_kinds() -> None:
    assert len(SPEC) > len(KINDS) + 4


@pytest.mark.parametrize("name", list(schema_files()))
def test_schemas_are_fresh(name: str) -> None:
    assert (ROOT / "schemas" / name).read_text() == schema_files()[name], "run `make schemas`"


def test_no_schema_file_is_left_over() -> None:
    assert {path.name for path in (ROOT / "schemas").iterdir()} == set(schema_files())


CLUSTERS = sorted(path.parent for path in (ROOT / "examples").glob("*/cluster.yaml"))
EXAMPLES = sorted(path for directory in CLUSTERS for path in directory.rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_an_example_points_editors_at_its_schema(path: Path) -> None:
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
    assert match, "no modeline"
    assert (path.parent / match[1]).resolve().is_file()


def _compiled(directory: Path) -> Accepted:
    tree = read_directory(directory)
    assert isinstance(tree, SourceTree)
    outcome = compile_tree(tree)
    assert isinstance(outcome, Accepted), outcome
    return outcome


@pytest.mark.parametrize("directory", CLUSTERS, ids=_name)
def test_an_example_cluster_is_valid_and_warns_of_nothing_but_what_is_to_come(directory: Path) -> None:
    assert {warning.code for warning in _compiled(directory).warnings} <= {"not-acted-on", "unpinned"}


def test_the_cluster_of_the_demo_has_no_warning_at_all() -> None:
    assert _compiled(ROOT / "examples/cluster").warnings == ()


def test_the_examples_show_every_kind() -> None:
    shown = {kind for directory in CLUSTERS for kind, _ in _compiled(directory).catalog.paths}
    assert shown == set(KINDS)


def test_the_readme_names_tests_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert named
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or re.search(rf"(def|class) {test}\b", (ROOT / path).read_text()), f"{path}::{test}"


def test_the_readme_names_every_package() -> None:
    text = (ROOT / "README.md").read_text()
    for package in sorted(
        path.name for path in (ROOT / "llmgw").iterdir() if path.is_dir() and path.name[0] not in "_."
    ):
        assert f"`{package}`" in text, package
