"""Rules about what an engine can do and what a profile asks of it. Each refusal says why, from the engine's facts."""

from collections.abc import Iterator

from llmgw.catalog.document import Document, Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read
from llmgw.catalog.wording import listing, quoted, suggestion
from llmgw.engines.facts import FACTS, EngineFacts
from llmgw.engines.weights import named_file, unpinned
from llmgw.spec.cluster import Cluster, EngineDefinition
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


def engine_rules(objects: list[Read]) -> Iterator[Problem]:
    """Return what profiles ask of engines that those cannot do."""
    definitions = {
        definition.name: definition
        for each in objects
        if isinstance(each.spec, Cluster)
        for definition in each.spec.engines
    }
    for each in objects:
        if isinstance(each.spec, Model):
            for index, profile in enumerate(each.spec.profiles):
                facts = FACTS.get(profile.engine)
                if facts is not None:
                    definition = definitions.get(profile.engine)
                    yield from _profile(each.document, ("profiles", index), profile, facts, definition)
                    if each.spec.weights.url is not None and facts.no_url:
                        message = f"{facts.title} cannot serve one file, because {facts.no_url}"
                        yield each.document.problem(("weights", "url"), "engine-cannot", message)
                    if each.spec.weights.hf is not None and facts.needs_file and not named_file(each.spec.weights):
                        message = f"{facts.title} serves one GGUF file; name it in `files`, without `*`"
                        yield each.document.problem(("weights", "hf"), "engine-cannot", message)
                    if each.spec.adapters and facts.no_lora:
                        message = f"{facts.title} serves no LoRA adapters by name, because {facts.no_lora}"
                        yield each.document.problem(("adapters",), "engine-cannot", message)
            missing = unpinned(each.spec.weights)
            if missing:
                yield each.document.problem(("weights", "hf"), "unpinned", missing, "warning")
            for index, adapter in enumerate(each.spec.adapters):
                if adapter.weights.hf is not None:
                    message = "this version of llmgw fetches no adapters; give a `path` on the node"
                    yield each.document.problem(
                        ("adapters", index, "weights", "hf"), "not-acted-on", message, "warning"
                    )
                if adapter.weights.url is not None:
                    message = "an adapter is a directory, and a URL names one file; give a `path`"
                    yield each.document.problem(("adapters", index, "weights", "url"), "engine-cannot", message)


def unknown_engine(name: str) -> str:
    """Say that an engine is not known, with the one that may be meant."""
    return f"unknown engine {quoted(name)}{suggestion(name, FACTS) or '; known: ' + listing(sorted(FACTS))}"


def _profile(
    document: Document, path: Path, profile: Profile, facts: EngineFacts, definition: EngineDefinition | None
) -> Iterator[Problem]:
    if facts.needs_command:
        yield from _command(document, path, profile, facts, definition)
    if profile.gpu is None:
        yield from _without_gpu(document, path, profile, facts)
    else:
        yield from _shape(document, path, profile)
    yield from _impossible(document, path, profile, facts)
    yield from _own_flags(document, path, profile, facts)
    yield from _image(document, path, profile)


def _command(
    document: Document, path: Path, profile: Profile, facts: EngineFacts, definition: EngineDefinition | None
) -> Iterator[Problem]:
    """A program of the operator's own must exist, and be told the port that was chosen for it.

    An image starts a program by itself, and a path on nodes, which is what the cluster's definition names, is none in it.
    """
    contained = profile.runtime != "process"
    command = profile.command or (definition.command if definition is not None and not contained else None)
    if command is None and not contained:
        message = f"engine {quoted(facts.name)} has no program of its own; add `command`"
        yield document.problem((*path, "engine"), "no-command", message)
        return
    env = [*profile.env.values(), *(definition.env.values() if definition is not None else ())]
    if not any("{port}" in text for text in [*(command or ()), *profile.args, *env] if isinstance(text, str)):
        message = (
            "nothing tells the program its port, which llmgw chooses; put `{port}` into `command`, `args` or `env`"
        )
        key = "command" if profile.command is not None else "engine"
        yield document.problem((*path, key), "no-port", message)


def _image(document: Document, path: Path, profile: Profile) -> Iterator[Problem]:
    """What a tag means may change: two nodes that pulled at different times then run different engines."""
    if profile.image is None or "@" in profile.image:
        return
    tag = profile.image.rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        message = (
            f"image {quoted(profile.image)} may be another one tomorrow, or on the next node; name a release, or a digest "
            "(`@sha256:…`)"
        )
        yield document.problem((*path, "image"), "image-not-pinned", message, "warning")


def _own_flags(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    for index, argument in enumerate(profile.args):
        flag = argument.partition("=")[0]
        # vLLM takes `--tensor_parallel_size` for the same
        if flag in facts.own_flags or (flag.startswith("--") and flag.replace("_", "-") in facts.own_flags):
            message = f"{quoted(flag)} is set by llmgw, which has to know it; remove it"
            yield document.problem((*path, "args", index), "own-flag", message)


def _without_gpu(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    """A program that the profile names by itself may be a build for CPUs; that is no slip. It serves as one process."""
    parts = profile.nodes * profile.tensor_parallel * profile.pipeline_parallel * profile.data_parallel
    if not facts.serves_without_gpu and (profile.command is None or parts > 1):
        message = (
            f"{facts.title} cannot serve without a GPU; add `gpu: {{class: …, count: …}}`, or name its build for CPUs as "
            "`command` (otherwise a slip would place a replica on a machine with no hardware for it)"
        )
        yield document.problem((*path, "engine"), "needs-gpu", message)


def _refused(facts: EngineFacts, field: str) -> str:
    return {
        "nodes": facts.no_nodes,
        "tensor_parallel": facts.no_tensor_parallel,
        "pipeline_parallel": facts.no_pipeline_parallel,
        "data_parallel": facts.no_data_parallel,
    }.get(field, "")


def _impossible(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    for field in ("nodes", "tensor_parallel", "pipeline_parallel", "data_parallel"):
        reason = _refused(facts, field)
        if reason and getattr(profile, field) > 1:
            yield document.problem(
                (*path, field), "engine-cannot", f"{facts.title} cannot do {field} above 1, because {reason}"
            )
    if profile.distributed == "ray":
        message = f"{facts.title} cannot be run with Ray here, because {facts.no_ray}; remove it"
        yield document.problem((*path, "distributed"), "engine-cannot", message)
    if profile.nodes > 1 and profile.data_parallel > 1:
        yield from _copies_over_nodes(document, path, profile, facts)


def _copies_over_nodes(document: Document, path: Path, profile: Profile, facts: EngineFacts) -> Iterator[Problem]:
    """Copies over several nodes: each node holds whole ones, since how to cut one that is spread further is not known."""
    if _refused(facts, "nodes") or _refused(facts, "data_parallel"):
        return
    reason = facts.no_data_parallel_over_nodes
    if not reason and profile.data_parallel % profile.nodes:
        copies = f"{profile.data_parallel} copies over {profile.nodes} nodes"
        reason = f"every node must hold as many whole copies, and {copies} leaves some in pieces"
    if reason:
        message = f"{facts.title} cannot do data_parallel above 1 with nodes above 1, because {reason}"
        yield document.problem((*path, "data_parallel"), "engine-cannot", message)


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
