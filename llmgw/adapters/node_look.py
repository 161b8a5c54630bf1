"""Looking at a node for `node_check`: over SSH, or on this machine for a node with `local: true`. Changes nothing."""

import asyncio
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import asyncssh

from llmgw.adapters.node_check import Need, Seen, Stage, needs
from llmgw.adapters.node_install import PREFIXES, look
from llmgw.adapters.node_plan import Found, Manager
from llmgw.adapters.node_shell import GREETING_LIMIT, NodeShell, converse
from llmgw.adapters.ssh_login import DIAL_LIMIT, login_of
from llmgw.ports.links import LinkBroken, SecretSource


async def see(blank: Seen, secrets: SecretSource, managers: Mapping[Manager, str]) -> Seen:
    """Return what there is to see of `blank.node`; `managers` says whose units to look for, and the prefix of each."""
    if blank.node.local:
        return await _here(blank)
    trouble = await _dial(blank)
    if trouble:
        return replace(blank, failed=Stage.REACHABLE, trouble=trouble)
    try:
        shell = await NodeShell.connect(blank.node, blank.catalog.cluster, secrets)
    except LinkBroken as error:
        return replace(blank, failed=_stage(error), trouble=str(error))
    try:
        return await _inside(shell, blank, managers)
    except LinkBroken as error:
        return replace(blank, failed=Stage.LOGIN, trouble=str(error))
    finally:
        shell.close()


async def _inside(shell: NodeShell, blank: Seen, managers: Mapping[Manager, str]) -> Seen:
    looks: list[tuple[Manager, Found]] = []
    for manager, prefix in managers.items():
        looks.append((manager, await look(shell, prefix or PREFIXES[manager], manager)))
    # the one that has something, else the first asked for
    manager, found = max(looks, key=lambda one: (bool(one[1].unit_digest), bool(one[1].current)))
    seen = replace(blank, manager=manager, found=found)
    try:
        answer = await shell.greet(blank.socket, blank.node.name, blank.catalog.cluster.name)
    except LinkBroken as error:
        return replace(seen, silence=str(error))
    wanted = needs(blank.catalog, blank.node, blank.node.weights_dir or answer.report.facts.weights_dir)
    done = await shell.run("\n".join(f"{_there(one)} && echo yes || echo no" for one in wanted))
    said = done.out.split()
    if len(said) != len(wanted):
        raise LinkBroken(f"the node's shell did not run what it was given: {done.complaint}")
    return replace(seen, answer=answer, there={one: word == "yes" for one, word in zip(wanted, said, strict=True)})


def _there(need: Need) -> str:
    path = shlex.quote(need.path)
    return f"command -v {path} >/dev/null" if need.kind == "engine" else f"[ -e {path} ]"


async def _here(blank: Seen) -> Seen:
    try:
        async with asyncio.timeout(GREETING_LIMIT):
            reader, writer = await asyncio.open_unix_connection(blank.socket)
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        return replace(blank, silence=f"no agent listens on {blank.socket} ({reason})")
    try:
        answer = await converse(reader, writer, blank.node.name, blank.catalog.cluster.name)
    except (LinkBroken, OSError) as error:
        return replace(blank, silence=str(error))
    finally:
        writer.close()
    wanted = needs(blank.catalog, blank.node, blank.node.weights_dir or answer.report.facts.weights_dir)
    there = {
        one: bool(shutil.which(one.path)) if one.kind == "engine" else await asyncio.to_thread(Path(one.path).exists)
        for one in wanted
    }
    return replace(blank, answer=answer, there=there)


async def _dial(blank: Seen) -> str:
    """Return why the first machine on the way takes no connection; empty if it does."""
    first = login_of(blank.node, blank.catalog.cluster.ssh).stops[0]
    try:
        async with asyncio.timeout(DIAL_LIMIT):
            _, writer = await asyncio.open_connection(first.host, first.port)
    except TimeoutError:
        return f"{first} does not answer within {DIAL_LIMIT:.0f} s"
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        return f"{first}: {os.strerror(number) if isinstance(number, int) and number > 0 else error}"
    writer.close()
    return ""


def _stage(error: LinkBroken) -> Stage:
    match error.__cause__:
        case asyncssh.HostKeyNotVerifiable():
            return Stage.HOST_KEY
        case asyncssh.ChannelOpenError():
            return Stage.REACHABLE
        case _:
            return Stage.LOGIN
