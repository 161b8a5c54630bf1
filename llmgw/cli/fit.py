"""`llmgw fit`: the sum of what one card needs for a model, by each of its profiles, from files on this machine.

Only headers are read: a GGUF file's (all parts of a split one), or `config.json` and the safetensors headers beside it; with
a `config.json` alone the weights are counted from it. Nothing is fetched and no server is asked. Exit code 1 if the sum is
known for every profile and none fits.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmgw.agent.shapes import shape_of
from llmgw.catalog.addresses import BadAddress, NoSuchObject, locate
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.problems import Problem
from llmgw.catalog.render import render_text
from llmgw.catalog.source import SourceTree
from llmgw.catalog.validation import validate
from llmgw.cli.directory import tree_of
from llmgw.cli.outcomes import Failed, WrongUsage
from llmgw.engines.fit import GIB, Fit, fit, smallest
from llmgw.engines.shape import Shape, Unsized
from llmgw.engines.sizing import too_small
from llmgw.spec.cluster import Cluster
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


def show_fit(
    directory: Path,
    address: str,
    weights: Path | None,
    weights_dir: Path | None,
    asked: tuple[int, int],
    *,
    as_json: bool,
) -> None:
    """Print the sum for each profile of a model; `asked` are context and requests at once, 0 for the profile's.

    Raises Failed if the sizes cannot be read, and if none of the profiles fits.
    """
    tree = tree_of(directory)
    model, classes = _model(tree, address), _classes(tree)
    path = weights or _path(model, weights_dir)
    try:
        shape = shape_of(path)
    except Unsized as error:
        raise Failed(f"{path}: {error}") from error
    except OSError as error:
        raise Failed(
            f"cannot read {error.filename or path}: {error.strerror}; name a copy of it by --weights"
        ) from error
    rows = [_row(shape, profile, classes, asked) for profile in model.profiles]
    if as_json:
        print(json.dumps({"model": model.name, "weights": str(path), "notes": shape.notes, "profiles": rows}, indent=2))
    else:
        print("\n".join(line for row in rows for line in _text(model.name, row)))
        print("".join(f"not counted: {note}\n" for note in shape.notes), end="")
    if all(row.get("fits") is False for row in rows):
        raise Failed(f"{model.name} fits by none of its profiles; shorten its context, or give it more or larger cards")


def too_small_here(tree: SourceTree, catalog: Catalog) -> tuple[Problem, ...]:
    """Return a warning for each profile whose weights lie on this machine and cannot run on a card of its class.

    Where they lie elsewhere the nodes that have them say so, and the plan has the reason.
    """
    memory = {each.name: each.memory for each in catalog.cluster.gpu_classes if each.memory}
    roots = {Path(node.weights_dir) for node in catalog.nodes.values() if node.local and node.weights_dir}
    found = []
    for name, model in catalog.models.items():
        for index, profile in enumerate(model.profiles):
            card = memory.get(profile.gpu.gpu_class, 0) if profile.gpu else 0
            seen = _seen(model, roots) if card else None
            why = too_small(profile, card, seen.weights, seen) if seen is not None else ""
            if why:
                document = locate(tree, f"model/{name}").document
                found.append(document.problem(("profiles", index), "too-small", why, "warning"))
    return tuple(found)


def _seen(model: Model, roots: set[Path]) -> Shape | None:
    """Return the shape of a model's weights if they lie on this machine and can be read."""
    said = Path(model.weights.path or "")
    if not model.weights.path:
        return None
    for path in [said] if said.is_absolute() else [root / said for root in sorted(roots)]:
        try:
            return shape_of(path)
        except (Unsized, OSError):
            continue
    return None


def _model(tree: SourceTree, address: str) -> Model:
    try:
        found = locate(tree, address)
    except BadAddress as error:
        raise WrongUsage(str(error)) from error
    except NoSuchObject as error:
        raise Failed(str(error)) from error
    if found.document.kind != "Model":
        raise WrongUsage(f"{address} is no model; write model/NAME")
    spec, problems = validate(found.document, Model)
    if not isinstance(spec, Model) or problems:
        print(render_text(sorted(problems)), end="")
        raise Failed(f"{address} is not valid; mend {found.path}")
    return spec


def _classes(tree: SourceTree) -> dict[str, int]:
    """Return the memory of the cards of each class, where the cluster says it."""
    try:
        found = locate(tree, "cluster")
    except NoSuchObject:
        return {}
    spec, problems = validate(found.document, Cluster)
    if not isinstance(spec, Cluster) or problems:
        return {}
    return {each.name: each.memory for each in spec.gpu_classes if each.memory}


def _path(model: Model, weights_dir: Path | None) -> Path:
    said = model.weights.path
    if said is None:
        raise Failed(
            f"the weights of {model.name} are not on this machine; name a copy, or a config.json, by --weights"
        )
    if not Path(said).is_absolute() and weights_dir is None:
        raise Failed(
            f"{said} is relative to a node's weights directory; name it by --weights-dir, or the file by --weights"
        )
    return (weights_dir or Path()) / said


def _row(shape: Shape, profile: Profile, classes: dict[str, int], asked: tuple[int, int]) -> dict[str, Any]:
    wanted = profile.gpu.gpu_class if profile.gpu else ""
    about = {"profile": profile.name, "engine": profile.engine, "class": wanted or None}
    card = classes.get(wanted, 0) if wanted else profile.memory or 0
    try:
        found = fit(shape, profile, card, context=asked[0], concurrency=asked[1])
    except Unsized as error:
        return {**about, "why": str(error)}
    would_do = None
    if wanted:
        would_do = smallest(shape, profile, classes, context=found.context, concurrency=found.concurrency)
    return {
        **about,
        **asdict(found),
        "needed": found.needed,
        "fits": found.fits,
        "smallest_class": would_do,
        "verdict": _verdict(found, wanted, would_do, classes),
    }


def _verdict(found: Fit, wanted: str, would_do: str | None, classes: dict[str, int]) -> str:
    if not found.card:
        if wanted:
            return f"whether it fits is not known: the cluster's class {wanted} has no `memory`"
        return "whether it fits is not known: the profile has no `memory`"
    of = f"{_gib(found.usable)} of {_gib(found.card)}"
    said = f"fits in {of}" if found.fits else f"does not fit in {of}"
    said += f"; longest context {found.longest}" if found.longest else "; no context fits"
    if not wanted:
        return said
    none = f"none of {', '.join(sorted(classes))}"
    return f"{said}; smallest class that would do: {would_do or none}"


def _text(model: str, row: dict[str, Any]) -> list[str]:
    head = f"{model}, profile {row['profile']}: {row['engine']}" + (f", each {row['class']}" if row["class"] else "")
    if "why" in row:
        return [head, f"  not known: {row['why']}"]
    lines = [f"  {line['what']:<15}{_gib(line['size']):>12}  {line['how']}" for line in row["lines"]]
    return [head, *lines, f"  {'needed':<15}{_gib(row['needed']):>12}", f"  {row['verdict']}"]


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.2f} MiB"
