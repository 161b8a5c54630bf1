"""The list of kinds: what the loader dispatches on and what `schemas/` is generated for."""

from llmgw.spec.cluster import Cluster
from llmgw.spec.common import SpecModel
from llmgw.spec.endpoint import Endpoint
from llmgw.spec.model import Model
from llmgw.spec.node import Node
from llmgw.spec.tenant import Tenant

KINDS: dict[str, type[SpecModel]] = {
    "Cluster": Cluster,
    "Node": Node,
    "Model": Model,
    "Endpoint": Endpoint,
    "Tenant": Tenant,
}
"""Every kind by its name, in the order that documentation lists them."""
