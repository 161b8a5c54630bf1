"""Rules about what an engine can do and what a profile asks of it. Each refusal says why, from the engine's facts."""

from collections.abc import Iterator

from llmgw.catalog.document import Document, Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read
from llmgw.catalog.wording import listing, quoted, suggestion
from llmgw.engines.facts import FACTS, EngineFacts
from llmgw.spec.cluster import Cluster
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


def engine_rules(objects: list[Read]) -> Iterator[Problem]:
    """Return what profiles ask of engines that those cannot do."""
    commands = {
        definition.name
        for each in objects
        if isinstance(each.spec, Cluster)
        for definition in each.spec.engines
        if definition.command
    }
    for each in objects:
        if isinstance(each.spec, Model):
            for index, profile in enumerate(each.spec.profiles):
                facts = FACTS.get(profile.engine)
                if facts is not None:
                    yield from _profile(each.document, ("profiles", index), profile, facts, commands)


def unknown_engine(name: str) -> str:
    """Say that an engine is not known, with the one that may be meant."""
    return f"unknown engine {quoted(name)}{suggestion(name, FACTS) or '; known: ' + listing(sorted(FACTS))}"


def _profile(
    document: Document, path: Path, profile: Profile, facts: EngineFacts, commands: set[str]
) -> Iterator[Problem]:
    if facts.needs_command and profile.command is None and profile.engine not in commands:
        yield document.problem(
            (*path, "engine"), "no-command", f"engine {quoted(facts.name)} has no program of its own; add `command`"
        )
    if profile.gpu is None:
        yield from _without_gpu(document, path, profile, facts)
    else:
        yield from _shape(document, path, profile)
    yield from _impossible(document, path, profile, facts)
    yield from _own_flags(document, path, profile, facts)


def _own_flags(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    for index, argument in enumerate(profile.args):
        flag = argument.partition("=")[0]
        if flag in facts.own_flags:
            message = f"{quoted(flag)} is set by llmgw, which has to know it; remove it"
            yield document.problem((*path, "args", index), "own-flag", message)


def _without_gpu(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    if not facts.serves_without_gpu:
        message = (
            f"{facts.title} cannot serve without a GPU; add `gpu: {{class: …, count: …}}` "
            "(otherwise a slip would place a replica on a machine with no hardware for it)"
        )
        yield document.problem((*path, "engine"), "needs-gpu", message)
        return
    for field in ("nodes", "tensor_parallel", "pipeline_parallel"):
        if getattr(profile, field) > 1 and not _refused(facts, field):
            yield document.problem((*path, field), "needs-gpu", f"{field} above 1 needs `gpu:`")


def _refused(facts: EngineFacts, field: str) -> str:
    return {
        "nodes": facts.no_nodes,
        "tensor_parallel": facts.no_tensor_parallel,
        "data_parallel": facts.no_data_parallel,
    }.get(field, "")


def _impossible(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    for field in ("nodes", "tensor_parallel", "data_parallel"):
        reason = _refused(facts, field)
        if reason and getattr(profile, field) > 1:
            yield document.problem(
                (*path, field), "engine-cannot", f"{facts.title} cannot do {field} above 1, because {reason}"
            )


def _shape(document: Document, path: Path, profile: Profile) -> Iterator[Problem]:
    """Every card that is claimed is used: otherwise one sits idle and nobody notices."""
    assert profile.gpu is not None
    cards = profile.gpu.count * profile.nodes
    used = profile.tensor_parallel * profile.pipeline_parallel * profile.data_parallel
    parallel = (profile.tensor_parallel, profile.pipeline_parallel, profile.data_parallel) != (1, 1, 1)
    by_itself = profile.engine in ("llamacpp", "command")
    if used == cards or (by_itself and not parallel):
        return
    what = f"tensor_parallel {profile.tensor_parallel} x pipeline_parallel {profile.pipeline_parallel}"
    if profile.data_parallel > 1:
        what += f" x data_parallel {profile.data_parallel}"
    have = f"gpu.count {profile.gpu.count} x nodes {profile.nodes}"
    key = "tensor_parallel" if "tensor_parallel" in profile.model_fields_set else "gpu"
    yield document.problem(
        (*path, key), "gpus-and-parallelism", f"{what} = {used}, but {have} = {cards}; make the two equal"
    )
