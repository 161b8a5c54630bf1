"""Cluster directories from a few words: what a person would write, as the values that YAML would give.

They are compiled from text like any other, so nothing is simulated that could not be pushed.
"""

import json
from typing import Any

from llmgw.base.ids import Revision
from llmgw.catalog.source import SourceTree

Object = dict[str, Any]


def cluster(**fields: Any) -> Object:
    """Return a `Cluster`; `control` and `router` as in YAML."""
    return {"apiVersion": "llmgw/v1", "kind": "Cluster", "name": "test", **fields}


def node(name: str, **fields: Any) -> Object:
    """Return a `Node` that is reached by SSH, or locally with `local=True`."""
    reach = {} if fields.get("local") else {"ssh": {"host": f"{name}.test", "host_key": "ssh-ed25519 AAAA"}}
    return {"apiVersion": "llmgw/v1", "kind": "Node", "name": name, **reach, **fields}


def cordoned(name: str, reason: str = "new memory") -> Object:
    """Return a `Node` that gives up what it runs."""
    return node(name, cordoned={"reason": reason})


def model(name: str, replicas: int = 1, *args: str, profile: Object | None = None, **fields: Any) -> Object:
    """Return a `Model` with one profile; `args` are the engine's, `profile` has further fields of it."""
    base: Object = {"engine": "llamacpp", **({"args": list(args)} if args else {})}
    body = {
        "replicas": replicas,
        "weights": {"path": f"/weights/{name}.gguf"},
        "profiles": [{**base, **(profile or {})}],
    }
    return {"apiVersion": "llmgw/v1", "kind": "Model", "name": name, **body, **fields}


def endpoint(name: str, url: str, *models: str, **fields: Any) -> Object:
    """Return an `Endpoint`."""
    body = {"url": url, "models": list(models)}
    return {"apiVersion": "llmgw/v1", "kind": "Endpoint", "name": name, **body, **fields}


def tree(*objects: Object, revision: str = "r1", subject: str = "") -> SourceTree:
    """Return a source tree of these objects; a `Cluster` is added if none is among them."""
    if not any(each["kind"] == "Cluster" for each in objects):
        objects = (cluster(), *objects)
    files = {f"{each['kind'].lower()}/{each['name']}.yaml": json.dumps(each).encode() for each in objects}
    return SourceTree(Revision(revision), files, subject=subject)
