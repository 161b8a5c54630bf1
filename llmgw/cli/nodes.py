"""`llmgw node install` and `llmgw node check`: the agent on a node, over SSH, from what the cluster directory says."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import typer

from llmgw.adapters.document_cache import documents_of
from llmgw.adapters.node_check import Finding, Seen, State, judge
from llmgw.adapters.node_install import CannotInstall, Outcome, Request, install
from llmgw.adapters.node_look import see
from llmgw.adapters.node_plan import Manager
from llmgw.adapters.node_shell import NodeShell
from llmgw.adapters.node_wheel import CannotPack, Wheel, agent_wheel
from llmgw.adapters.secrets import Secrets
from llmgw.agent.main import ROOTS_SOCKET, default_socket
from llmgw.base.ids import NodeName
from llmgw.catalog.catalog import Catalog
from llmgw.catalog.compile import Accepted, Compiler
from llmgw.cli.directory import tree_of
from llmgw.cli.outcomes import FAILED, Failed, WrongUsage
from llmgw.cli.tables import table
from llmgw.ports.links import LinkBroken
from llmgw.spec.node import Node

AT_ONCE = 16
"""Nodes that are looked at side by side."""


def manager_of(*, user_unit: bool | None, no_unit: bool) -> Manager | None:
    """Return the manager that flags ask for; None to go by the login user. Raises WrongUsage."""
    if no_unit and user_unit is not None:
        raise WrongUsage("--no-unit goes with neither --user-unit nor --system")
    if no_unit:
        return "none"
    return None if user_unit is None else ("user" if user_unit else "system")


def install_node(
    name: str,
    directory: Path,
    *,
    manager: Manager | None,
    prefix: str,
    offline: bool,
    wheelhouse: Path | None,
    secrets_dir: Path | None,
    as_json: bool,
) -> None:
    """Bring the agent to a node."""
    if offline != (wheelhouse is not None):
        raise WrongUsage("--offline and --wheelhouse DIR go together")
    if prefix and not prefix.startswith(("/", "~/")):
        raise WrongUsage(f"--prefix {prefix} is not an absolute path on the node")
    catalog = catalog_of(directory)
    node = _node(catalog, name, directory)
    if node.local:
        raise Failed(f"node {name} is this machine (`local: true`); run `llmgw agent` here, or give it an `ssh:` block")
    wheel = _wheel()
    request = Request(
        manager or _usual_manager(catalog, node), prefix, _wheels(wheelhouse, wheel) if wheelhouse else None
    )

    def say(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr if as_json else sys.stdout, flush=True)

    outcome = asyncio.run(_install(catalog, node, request, wheel, Secrets(os.environ, secrets_dir), say))
    if as_json:
        print(json.dumps({**asdict(outcome), "changed": bool(outcome.done)}, indent=2))
        return
    print("\n".join(f"{name}: {line}" for line in _told(outcome)))


async def _install(
    catalog: Catalog, node: Node, request: Request, wheel: Wheel, secrets: Secrets, say: Callable[[str], None]
) -> Outcome:
    shell = None
    try:
        shell = await NodeShell.connect(node, catalog.cluster, secrets)
        return await install(shell, node, catalog.cluster.name, request, wheel, str(ROOTS_SOCKET), say)
    except (LinkBroken, CannotInstall) as error:
        raise Failed(str(error)) from error
    finally:
        if shell is not None:
            shell.close()


def _told(outcome: Outcome) -> list[str]:
    if not outcome.done:
        return [f"nothing to do: {outcome.release} is installed" + (" and runs" if outcome.manager != "none" else "")]
    if outcome.manager == "none":
        return [f"{outcome.release} is installed; run it there: {outcome.command}"]
    return [f"{outcome.release} is installed" + (f", and answers on {outcome.socket}" if outcome.agent else "")]


def check_nodes(
    names: list[str],
    directory: Path,
    *,
    every: bool,
    manager: Manager | None,
    prefix: str,
    secrets_dir: Path | None,
    as_json: bool,
) -> None:
    """Print what nodes lack; end with 1 if one lacks something."""
    if every == bool(names):
        raise WrongUsage("name the nodes to check, or all of them with --all")
    catalog = catalog_of(directory)
    nodes = [_node(catalog, name, directory) for name in names] or list(catalog.nodes.values())
    release = _wheel().release
    secrets = Secrets(os.environ, secrets_dir)

    async def look_at_all() -> list[Seen]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def look_at(node: Node) -> Seen:
            async with gate:
                socket = node.agent_socket or str(default_socket() if node.local else ROOTS_SOCKET)
                usual = _usual_manager(catalog, node)
                order: list[Manager] = [manager] if manager else [usual, "user" if usual == "system" else "system"]
                blank = Seen(node, catalog, str(directory), release, socket, order[0])
                return await see(blank, secrets, dict.fromkeys(order, prefix))

        return await asyncio.gather(*(look_at(node) for node in nodes))

    found = {seen.node.name: judge(seen) for seen in asyncio.run(look_at_all())}
    well = all(one.state is State.OK for findings in found.values() for one in findings)
    if as_json:
        shown = {name: [asdict(one) for one in findings] for name, findings in found.items()}
        print(json.dumps({"well": well, "nodes": shown}, indent=2))
    else:
        blocks = [f"{name}\n{report(findings)}" for name, findings in found.items()]
        print("\n\n".join(blocks) or "there are no nodes; add a file with `kind: Node`")
    if not well:
        raise typer.Exit(FAILED)


def report(findings: list[Finding]) -> str:
    """Return the findings for people, a line each, and below what is missing the way to mend it."""
    lines = table(("", "", ""), [("  " + _mark(one.state), one.check, one.text) for one in findings])[1:]
    told: list[str] = []
    for line, one in zip(lines, findings, strict=True):
        told.append(line)
        if one.mend:
            told.append(f"       → {one.mend}")
    return "\n".join(told)


def _mark(state: State) -> str:
    return {State.OK: "ok", State.MISSING: "MISSING", State.NOT_LOOKED_AT: "-"}[state]


def catalog_of(directory: Path) -> Catalog:
    """Return the directory's catalog. Raises Failed if it is not valid."""
    tree = tree_of(directory)
    with documents_of(directory) as memory:
        outcome = Compiler(memory).compile(tree)
    if not isinstance(outcome, Accepted):
        count = len(outcome.problems)
        raise Failed(f"{directory} is not valid ({count} problem(s)); see `llmgw validate {directory}`")
    return outcome.catalog


def _node(catalog: Catalog, name: str, directory: Path) -> Node:
    node = catalog.nodes.get(NodeName(name.removeprefix("node/")))
    if node is None:
        known = ", ".join(catalog.nodes) or "none"
        raise Failed(f"there is no node {name} in {directory}; there are: {known}")
    return node


def _usual_manager(catalog: Catalog, node: Node) -> Manager:
    user = (node.ssh.user if node.ssh else None) or catalog.cluster.ssh.user
    return "system" if user == "root" else "user"


def _wheel() -> Wheel:
    try:
        return agent_wheel()
    except CannotPack as error:
        raise Failed(str(error)) from error


def _wheels(wheelhouse: Path, wheel: Wheel) -> dict[str, bytes]:
    names = " ".join(f"'{one}'" for one in wheel.requirements)
    try:
        found = {path.name: path.read_bytes() for path in sorted(wheelhouse.glob("*.whl"))}
    except OSError as error:
        raise Failed(f"cannot read {wheelhouse}: {error.strerror}") from error
    if not found:
        raise Failed(f"{wheelhouse} holds no wheels; fill it: pip download --only-binary=:all: -d {wheelhouse} {names}")
    return found
