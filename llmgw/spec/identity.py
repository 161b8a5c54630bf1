"""The restart hash: what makes a running replica the one that is wanted.

It covers only what was **set** and what **restarts** (impact `restart` or `redownload`). So a new release of llmgw
that adds a field with a default, or writes a command line differently, restarts nothing; and a renamed profile, a new
alias or a longer timeout does not either. Rejected: hashing the command line (every upgrade would restart the fleet)
and hashing the whole object (so would every comment-like change).
"""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from llmgw.base.ids import RestartHash
from llmgw.spec.cluster import EngineDefinition
from llmgw.spec.common import RESTARTING, impact_of
from llmgw.spec.model import Model
from llmgw.spec.profile import Profile


def restart_hash(model: Model, profile: Profile, engine: EngineDefinition | None) -> RestartHash:
    """Return 16 hexadecimal digits that change exactly when a replica must be replaced by a new one.

    The model's name is no part of it: replicas are compared within a model, and a renamed model keeps its own.

    `engine` is the cluster's own definition of the profile's engine, if it has one.
    """
    parts = {
        "weights": _restarting(model.weights),
        "profile": _restarting(profile),
        "engine": _restarting(engine) if engine is not None else {},
    }
    if model.adapters:
        parts["lora"] = {"enabled": True}  # which ones is changed while it runs
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return RestartHash(hashlib.sha256(text.encode()).hexdigest()[:16])


def _restarting(value: BaseModel) -> dict[str, Any]:
    """Return the set fields whose change restarts, as JSON values.

    A field set to its default, or to something empty, counts as not set: writing a default down restarts nothing.
    """
    kept: dict[str, Any] = {}
    written = value.model_dump(mode="json", by_alias=True, include=value.model_fields_set)
    for name in sorted(value.model_fields_set):
        field = type(value).model_fields[name]
        here = getattr(value, name)
        if impact_of(type(value), name) not in RESTARTING or here in (None, [], {}):
            continue
        if not field.is_required() and here == field.get_default(call_default_factory=True, validated_data={}):
            continue
        key = field.alias or name
        kept[key] = _restarting(here) if isinstance(here, BaseModel) else written[key]
    return kept
