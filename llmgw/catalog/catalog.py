"""`Catalog`: a whole, validated, immutable cluster directory at a revision. An invalid one is not constructed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.base.ids import ModelName, NodeName, RestartHash, Revision
from llmgw.spec.cluster import Cluster, EngineDefinition
from llmgw.spec.endpoint import Endpoint
from llmgw.spec.identity import restart_hash
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.profile import Profile
from llmgw.spec.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is wanted. Mappings are sorted by name; only `catalog.compile` makes one."""

    revision: Revision
    cluster: Cluster
    nodes: Mapping[NodeName, Node]
    models: Mapping[ModelName, Model]
    endpoints: Mapping[str, Endpoint]
    tenants: Mapping[str, Tenant]
    paths: Mapping[tuple[str, str], str]
    """Where each object was written: (kind, name) to path."""
    _hashes: dict[tuple[str, str], RestartHash] = field(default_factory=dict, compare=False, repr=False)
    """Restart hashes by model and profile; a plan asks for each many times."""

    def engine(self, name: str) -> EngineDefinition | None:
        """Return the cluster's own definition of an engine, or None."""
        return next((engine for engine in self.cluster.engines if engine.name == name), None)

    def hash_of(self, model: Model, profile: Profile) -> RestartHash:
        """Return the restart hash of a replica of this model, which is one of this catalog, by this profile."""
        key = (model.name, profile.name)
        if key not in self._hashes:
            self._hashes[key] = restart_hash(model, profile, self.engine(profile.engine))
        return self._hashes[key]
