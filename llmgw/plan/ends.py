"""How replicas end: those of models that left, the stop of what has drained, other ports for what cannot have its own.

And how a replica of several shards begins anew: its shards start together and end together (see `ShardSpec.incarnation`).
"""

from dataclasses import replace

from llmgw.base.time import age
from llmgw.engines.placed import Seat
from llmgw.fleet.report import Phase
from llmgw.fleet.usage import Active, Idle, Unknown, is_quiet
from llmgw.fleet.view import report_of
from llmgw.plan.replicas import Part, Replica
from llmgw.plan.result import Verb
from llmgw.plan.work import Work


def remove_unwanted(work: Work) -> None:
    """Drain the replicas of models that left the catalog."""
    for one in list(work.replicas.values()):
        if one.model not in work.models and not one.draining and not one.leaving:
            work.drain(one, f"model/{one.model} is no longer in the catalog")


def finish_drains(work: Work) -> None:
    """Stop what has drained: out of every gateway's table with nothing in flight, or past its deadline."""
    previous = work.snapshot.previous
    published = {endpoint.id for endpoint in previous.table.endpoints}
    limit = work.catalog.cluster.router.timeouts.drain
    for one in list(work.replicas.values()):
        if not one.draining or one.leaving:
            continue
        usage = work.snapshot.usage.of(one.id)
        elsewhere = one.id in work.snapshot.usage.routed
        if elsewhere:
            work.draining[one.id] = work.now  # the deadline is for what is in flight, from when nothing more comes
        waited = work.now - work.draining[one.id]
        # what another control plane knows, it knows from the agent: before that says so, it may begin to send requests here
        said = one.report is None or one.report.draining
        withdrawn = said and one.id not in published and one.id in previous.draining and not elsewhere
        # an agent that has not heard of the stop may start it again, and a gateway behind the times may then find it
        unreachable = one.phase is Phase.FAILED or (work.snapshot.usage.current and said)
        if not one.serves and not one.has_process and one.id not in published and unreachable:
            work.stop(one, "it has no process")
        elif withdrawn and is_quiet(usage):
            work.stop(one, "withdrawn everywhere and nothing is in flight")
        elif waited >= limit and withdrawn and work.snapshot.usage.current:
            work.stop(one, f"its drain deadline of {age(limit)} passed ({in_words(usage)})")
        elif not said and is_quiet(usage):
            work.hold(f"replica/{one.id}", "stop", f"node {one.node} to say that it drains")
        elif elsewhere:
            work.hold(f"replica/{one.id}", "stop", "gateways of another control plane to drop it")
        else:
            work.hold(f"replica/{one.id}", "stop", f"its requests to finish: {in_words(usage)}")


def move_ports(work: Work) -> None:
    """Give other ports to what cannot start because something else holds its own."""
    for one in list(work.replicas.values()):
        if one.leaving:
            continue
        for part in one.parts:
            if _port_is_taken(work, part):
                _move(work, work.replicas[one.id], part.spec.rank)


def restart_gangs(work: Work) -> None:
    """Raise the incarnation of every replica of which a shard ended, so that all of its agents start theirs anew.

    The condition is looked at, not the event: the incarnation must be newer than all that ended anywhere, which holds
    whether a report was lost, two shards ended, or this control plane is new. One that gave up stays as it is.
    """
    for one in list(work.replicas.values()):
        if len(one.parts) == 1 or one.draining or one.leaving or one.phase is Phase.FAILED:
            continue
        if one.spent < one.incarnation:
            continue
        work.renew(one, one.spent + 1)
        ended = next(part for part in one.parts if part.report is not None and part.report.spent == one.spent)
        work.act(Verb.RESTART, one, f"its shard on {ended.node} ended{_words_of(ended)}; all of them start anew")


def _words_of(part: Part) -> str:
    end = part.report.last_end if part.report is not None else None
    return f" ({end.text})" if end is not None else ""


def _port_is_taken(work: Work, part: Part) -> bool:
    reason = part.report.reason if part.report else None
    if part.phase is not Phase.WAITING or reason is None or reason.code != "port_taken":
        return False
    view = work.snapshot.nodes.get(part.node)
    report = report_of(view) if view is not None and part.node in work.catalog.nodes else None
    block = range(part.spec.port, part.spec.port + part.spec.ports)
    return report is not None and any(port in report.facts.foreign_ports for port in block)


def _move(work: Work, one: Replica, rank: int) -> None:
    part = next(each for each in one.parts if each.spec.rank == rank)
    found = work.profile_of(one)
    if found is None or not one.whole:
        return
    port = work.ledger.machines[part.node].port(work.ledger.ports, part.spec.ports)
    if port is None:
        work.hold(f"replica/{one.id}", "move to another port", "a free port in control.ports")
        return
    seats = tuple(
        Seat(
            each.node,
            port if each is part else each.spec.port,
            each.spec.host,
            work.address(each.node),
            each.spec.gpus,
        )
        for each in one.parts
    )
    # the others of a gang are told the port in their arguments, which they read only at a start
    incarnation = one.incarnation + 1 if len(one.parts) > 1 else 0
    specs = work.spec(*found, one.id, seats, incarnation)
    work.put(replace(one, parts=tuple(replace(each, spec=spec) for each, spec in zip(one.parts, specs, strict=True))))
    reason = part.report.reason.text if part.report and part.report.reason else "its port is taken"
    work.act(Verb.MOVE_PORT, one, f"{reason}; gets port {port}")


def in_words(usage: Active | Idle | Unknown) -> str:
    """Say what is in flight."""
    match usage:
        case Active(in_flight=n):
            return f"{n} in flight"
        case Idle():
            return "nothing in flight"
        case Unknown(quiet=True):
            return "a word from every gateway about the table without it"
        case Unknown(why=why):
            return why


def why_withdrawn(one: Replica | None) -> str:
    """Say why an endpoint leaves the table."""
    if one is None:
        return "it is gone"
    if one.draining or one.leaving:
        return "it is being drained"
    if one.address is None and one.phase is Phase.READY:
        return "there is no way to it now"
    return f"it is {one.phase}"
