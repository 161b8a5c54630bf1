"""The endpoint table that follows from the replicas: what is ready, reachable, and not on its way out."""

from collections.abc import Mapping
from dataclasses import replace

from llmgw.base.ids import ModelName
from llmgw.catalog.catalog import Catalog
from llmgw.engines.context import max_model_len
from llmgw.fleet.report import Phase
from llmgw.fleet.static import StaticEndpoint, is_static, with_static
from llmgw.fleet.table import Address, Endpoint, EndpointTable, GatewaySettings, RoutedModel, TcpAddress
from llmgw.plan.replicas import Replica
from llmgw.plan.snapshot import Snapshot
from llmgw.spec.model import Model
from llmgw.spec.router import Router
from llmgw.spec.upstream_url import place_of

RETRY_SOON = 2
RETRY_UNKNOWN = 10
"""Seconds a client is told to wait: while a replica starts, and when nothing says how long it will take."""


def table_of(
    snapshot: Snapshot, models: Mapping[ModelName, Model], replicas: list[Replica]
) -> tuple[EndpointTable, list[Endpoint], list[Endpoint]]:
    """Return (table, published, withdrawn), the latter two against the previous table and of replicas alone.

    A replica whose drain was just called off is in it at once, although its node still reports it as draining. A table
    with the same contents keeps its version, and publishing it is skipped.
    """
    before = snapshot.previous.table
    endpoints = tuple(
        _endpoint(snapshot.catalog, one, one.address)
        for one in sorted(replicas, key=lambda one: one.id)
        if one.address is not None and one.serves and not one.draining and not one.leaving
    )
    phases: dict[ModelName, set[Phase]] = {}
    for one in replicas:
        if not one.leaving:
            phases.setdefault(one.model, set()).add(one.phase)
    router = snapshot.catalog.cluster.router
    routed = tuple(
        RoutedModel(
            name,
            tuple(model.aliases),
            model.replicas,
            _retry_after(snapshot, model, phases.get(name, set())),
            _keep_alive(router, model),
            max_model_len(model),
            model.limits.inflight,
            model.limits.queue,
        )
        for name, model in models.items()
    )
    routed += tuple(
        replace(base, name=ModelName(one.name), aliases=(), adapts=base.name)
        for base in routed
        for one in models[base.name].adapters
    )
    table = EndpointTable(before.version, routed, endpoints, _settings(router))
    table = with_static(table, statics_of(snapshot.catalog))
    if table != before:
        table = replace(table, version=before.version + 1)
    had = {endpoint.id for endpoint in before.endpoints}
    has = {endpoint.id for endpoint in endpoints}
    published = [endpoint for endpoint in endpoints if endpoint.id not in had]
    withdrawn = [endpoint for endpoint in before.endpoints if endpoint.id not in has and not is_static(endpoint.id)]
    return table, published, withdrawn


def statics_of(catalog: Catalog) -> tuple[StaticEndpoint, ...]:
    """Return the upstreams that the catalog names. They are there as long as their objects are: nobody probes them."""
    found = []
    for name, one in catalog.endpoints.items():
        place = place_of(one.url)  # cannot fail: the catalog has checked it
        address = TcpAddress(place.host, place.port, place.tls)
        key = one.api_key.secret if one.api_key is not None else ""
        found.append(StaticEndpoint(name, address, place.prefix, tuple(one.models), key))
    return tuple(found)


def _endpoint(catalog: Catalog, one: Replica, address: Address) -> Endpoint:
    # the engine that runs, not the next one: a renamed model's still goes by the old name
    spec = one.report.spec if one.report else one.spec
    process = f"{one.report.attempt}.{one.report.pid}" if one.report else ""
    most = _max_inflight(catalog, one)
    return Endpoint(
        one.id, one.model, address, spec.served_name, process, max_inflight=most, adapters=_adapters(catalog, one)
    )


def _adapters(catalog: Catalog, one: Replica) -> tuple[tuple[str, str], ...]:
    """Return the adapters that a replica's engine has, of those that its model wants."""
    model, report = catalog.models.get(one.model), one.report
    if model is None or report is None or not model.adapters:
        return ()
    asked_as = {each.name: each.asked_as for each in one.spec.adapters}
    wanted = [each.name for each in model.adapters if each.name in asked_as]
    return tuple((name, asked_as[name]) for name in wanted if report.has_adapter(name))


def _max_inflight(catalog: Catalog, one: Replica) -> int | None:
    """Return how many requests a replica is given at once; one of a past profile, as many as the most of its model."""
    model = catalog.models.get(one.model)
    if model is None or all(profile.max_inflight is None for profile in model.profiles):
        return None
    its = [profile for profile in model.profiles if catalog.hash_of(model, profile) == one.spec.hash]
    limits = [profile.max_inflight for profile in its or model.profiles]
    return max((limit for limit in limits if limit is not None), default=None) if None not in limits else None


def _settings(router: Router) -> GatewaySettings:
    limits, admission = router.timeouts, router.admission
    return GatewaySettings(
        limits.connect,
        limits.headers,
        limits.first_byte,
        limits.inter_chunk,
        max_body=router.max_body,
        queue=limits.queue,
        waiting=admission.queue,
        inflight=admission.inflight,
    )


def _keep_alive(router: Router, model: Model) -> float | None:
    wanted = model.routing.policy or router.default_policy
    return next((policy.keep_alive for policy in router.policies if policy.name == wanted), None)


def _retry_after(snapshot: Snapshot, model: Model, phases: set[Phase]) -> int:
    """Return the seconds after which asking again makes sense, from what the model's replicas are doing."""
    if phases & {Phase.STARTING, Phase.READY}:
        return RETRY_SOON
    backoff = snapshot.catalog.cluster.control.backoff
    if Phase.BACKOFF in phases or (Phase.WAITING in phases and model.replicas):
        return max(RETRY_SOON, round(backoff.base))
    return RETRY_UNKNOWN
