"""Rules about names that refer to other objects: GPU classes, pools, fabrics, policies, other models, tenants' globs.

A reference to what must exist is an error. One to what may come later (a pool without nodes yet) is a warning, so that a
directory can be written in any order.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from llmgw.catalog.document import Document, Path
from llmgw.catalog.problems import Problem
from llmgw.catalog.read import Read, of_kind
from llmgw.catalog.wording import listing, quoted, suggestion
from llmgw.spec.cluster import Cluster
from llmgw.spec.endpoint import Endpoint
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.tenant import Tenant

BUILT_IN_POLICY = "least-load"


def reference_rules(objects: list[Read]) -> Iterator[Problem]:
    """Return what refers to nothing. Only of use when every object is valid: a broken one may be what is meant."""
    yield from _gpu_classes(objects)
    yield from _policies(objects)
    yield from _pools(objects)
    yield from _fabrics(objects)
    yield from _other_models(objects)
    yield from _tenants(objects)


def _gpu_classes(objects: list[Read]) -> Iterator[Problem]:
    classes = [one.name for _, cluster in of_kind(objects, Cluster) for one in cluster.gpu_classes]
    for document, model in of_kind(objects, Model):
        for index, profile in enumerate(model.profiles):
            if profile.gpu is not None and profile.gpu.gpu_class not in classes:
                yield _class(document, ("profiles", index, "gpu", "class"), profile.gpu.gpu_class, classes)
    for document, node in of_kind(objects, Node):
        if node.expect is not None and node.expect.gpu_class is not None and node.expect.gpu_class not in classes:
            yield _class(document, ("expect", "gpu_class"), node.expect.gpu_class, classes)


def _class(document: Document, path: Path, name: str, classes: list[str]) -> Problem:
    known = f"; the Cluster has {listing(classes)}" if classes else "; the Cluster's `gpu_classes` is empty"
    message = f"GPU class {quoted(name)} is not declared{suggestion(name, classes) or known}"
    return document.problem(path, "unknown-gpu-class", message)


def _policies(objects: list[Read]) -> Iterator[Problem]:
    policies = [
        BUILT_IN_POLICY,
        *(one.name for _, cluster in of_kind(objects, Cluster) for one in cluster.router.policies),
    ]
    used: list[tuple[Document, Path, str]] = [
        (document, ("router", "default_policy"), cluster.router.default_policy)
        for document, cluster in of_kind(objects, Cluster)
    ]
    used += [
        (document, ("routing", "policy"), model.routing.policy)
        for document, model in of_kind(objects, Model)
        if model.routing.policy is not None
    ]
    for document, path, name in used:
        if name not in policies:
            advice = suggestion(name, policies) or f"; there are {listing(policies)}"
            yield document.problem(path, "unknown-policy", f"there is no policy {quoted(name)}{advice}")


def _pools(objects: list[Read]) -> Iterator[Problem]:
    pools = sorted({node.pool for _, node in of_kind(objects, Node)})
    for document, model in of_kind(objects, Model):
        for index, profile in enumerate(model.profiles):
            if profile.pool is not None and profile.pool not in pools:
                advice = suggestion(profile.pool, pools) or "; the profile cannot be placed until one is"
                message = f"no node is in pool {quoted(profile.pool)}{advice}"
                yield document.problem(("profiles", index, "pool"), "empty-pool", message, "warning")


def _fabrics(objects: list[Read]) -> Iterator[Problem]:
    """A replica of several nodes needs them all on one fabric."""
    sizes: dict[str, int] = {}
    for _, node in of_kind(objects, Node):
        if node.fabric is not None:
            sizes[node.fabric] = sizes.get(node.fabric, 0) + 1
    largest = max(sizes.values(), default=0)
    for document, model in of_kind(objects, Model):
        for index, profile in enumerate(model.profiles):
            if profile.nodes > 1 and profile.nodes > largest:
                has = f"the largest fabric has {largest}" if sizes else "no node names a `fabric`"
                message = f"needs {profile.nodes} nodes on one fabric, but {has}; the profile cannot be placed"
                yield document.problem(("profiles", index, "nodes"), "no-fabric", message, "warning")


def _other_models(objects: list[Read]) -> Iterator[Problem]:
    names = sorted(model.name for _, model in of_kind(objects, Model))
    for document, model in of_kind(objects, Model):
        others: list[tuple[Path, str]] = [
            (("routing", "split", index, "model"), split.model) for index, split in enumerate(model.routing.split)
        ]
        if model.routing.mirror is not None:
            others.append((("routing", "mirror"), model.routing.mirror))
        for path, name in others:
            if name == model.name:
                yield document.problem(path, "refers-to-itself", "a model cannot refer to itself; name another one")
            elif name not in names:
                advice = suggestion(name, names) or "; add it, or remove this"
                yield document.problem(path, "unknown-model", f"there is no model {quoted(name)}{advice}")
        if sum(split.share for split in model.routing.split) > 1:
            yield document.problem(("routing", "split"), "split-over-all", "the shares add up to more than 100%")


def _tenants(objects: list[Read]) -> Iterator[Problem]:
    served = [name for _, model in of_kind(objects, Model) for name in (model.name, *model.aliases)]
    served += [adapter.name for _, model in of_kind(objects, Model) for adapter in model.adapters]
    served += [name for _, endpoint in of_kind(objects, Endpoint) for name in endpoint.models]
    for document, tenant in of_kind(objects, Tenant):
        for index, glob in enumerate(tenant.models):
            if not any(fnmatchcase(name, glob) for name in served):
                advice = suggestion(glob, served) or ""
                message = f"{quoted(glob)} matches no model{advice}"
                yield document.problem(("models", index), "matches-nothing", message, "warning")
