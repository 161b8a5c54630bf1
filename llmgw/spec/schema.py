"""JSON Schemas (draft-07, which editors understand best) of every kind, generated from the pydantic models.

What pydantic emits is adapted: `$schema` and `$id` are added, noise titles dropped, and a `$ref` beside other keys is
wrapped in `allOf`, since draft-07 validators ignore the neighbours of a `$ref`.
"""

import json
from typing import Any

from llmgw.spec.kinds import KINDS

BASE_ID = "https://llmgw.invalid/schemas/v1"
"""Names the schemas; nothing is ever fetched from it (`.invalid` is reserved for that)."""
DIRECTORY_SCHEMA = "cluster-directory.schema.json"


def schema_files() -> dict[str, str]:
    """Return every schema file by name, as the text to write to `schemas/`."""
    files = {f"{kind.lower()}.schema.json": _kind_schema(kind) for kind in KINDS}
    files[DIRECTORY_SCHEMA] = _directory_schema()
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in files.items()}


def _kind_schema(kind: str) -> dict[str, Any]:
    raw = KINDS[kind].model_json_schema()
    adapted = _adapt(raw)
    assert isinstance(adapted, dict)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"{BASE_ID}/{kind.lower()}.schema.json",
        **adapted,
    }


def _directory_schema() -> dict[str, Any]:
    """One schema for any file of a cluster directory: it looks at `kind` and applies that kind's schema."""
    branches = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"$ref": f"{kind.lower()}.schema.json"},
        }
        for kind in KINDS
    ]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"{BASE_ID}/{DIRECTORY_SCHEMA}",
        "description": "Any object of a cluster directory.",
        "type": "object",
        "properties": {"kind": {"enum": list(KINDS)}},
        "required": ["apiVersion", "kind", "name"],
        "allOf": branches,
    }


def _adapt(node: Any, *, in_properties: bool = False) -> Any:
    if isinstance(node, list):
        return [_adapt(item) for item in node]
    if not isinstance(node, dict):
        return node
    adapted = {
        key: _adapt(value, in_properties=key in ("properties", "$defs"))
        for key, value in node.items()
        if in_properties or not (key == "title" and isinstance(value, str))
    }
    if adapted.get("default", ...) is None and isinstance(adapted.get("anyOf"), list):
        # a field that may be left out may not be written as null: `key:` with nothing behind it is a slip
        kept = [branch for branch in adapted.pop("anyOf") if branch != {"type": "null"}]
        del adapted["default"]
        adapted = {**kept[0], **adapted} if len(kept) == 1 else {"anyOf": kept, **adapted}
    if "$ref" in adapted and len(adapted) > 1 and not in_properties:
        return {"allOf": [{"$ref": adapted.pop("$ref")}], **adapted}
    return adapted
