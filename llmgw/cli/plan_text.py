"""The text of a plan: what changed outside, one block an object, what is held back, one line that sums it up.

Made from the published JSON, never from the planner, so that whoever reads the JSON knows all that the text says. Signs are
those of other planning tools: `+` created, `-` deleted, `~` changed in place, `+/-` replaced with the new before the old,
`-/+` with the old before the new.
"""

from dataclasses import dataclass
from typing import Any

from llmgw.base.ids import short
from llmgw.base.time import age
from llmgw.cli.overview import act_line

SIGNS = {
    ("create",): "+",
    ("update",): "~",
    ("delete",): "-",
    ("create", "delete"): "+/-",
    ("delete", "create"): "-/+",
}
_REPLICA_SIGNS = {
    "start": "+",
    "keep": "~",
    "drain": "-",
    "stop": "-",
    "withdraw": "-",
    "move port": "~",
    "restart": "~",
}
_REPLACED = {
    "new first": "its replicas are replaced, new before old",
    "old first": "its replicas are replaced, old before new",
}
_COLOURS = {"+": "32", "-": "31", "~": "33", "!": "31;1"}


@dataclass(frozen=True, slots=True)
class Block:
    """One object: a title with its sign, and lines of what changes in it and in its replicas."""

    sign: str
    title: str
    lines: tuple[str, ...]


def text(shown: dict[str, Any]) -> str:
    """Return the plan for people."""
    if not shown["valid"]:
        return "\n".join(["This directory is not valid, so nothing would change:", "", *_problems(shown)])
    parts = [
        [f"If {'; and if '.join(shown['supposed'])}:"] if shown["supposed"] else [],
        _titled("Changed outside:", [f"! {line}" for line in drift_lines(shown)]),
        [f"! {line}" for line in warnings(shown)],
        [f"Against revision {short(shown['based_on'])}, which is in force:"]
        if shown["based_on"] and shown["changes"]
        else [],
        *([f"{one.sign} {one.title}", *(f"    {line}" for line in one.lines)] for one in blocks(shown)),
        _titled("Held back:", [f"  {line}" for line in held_lines(shown)]),
        _titled("Asked for by operators:", [f"  {act_line(one)}" for one in shown["acts"]]),
        [summary(shown)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def blocks(shown: dict[str, Any]) -> list[Block]:
    """Return a block for every object that changes, and for every other model whose replicas are touched."""
    found: list[Block] = []
    rest = list(shown["replicas"])
    for one in shown["objects"]:
        how = _REPLACED.get(one.get("replaces") or "", "")
        title = f"{one['kind'].lower()}/{one['name']} ({one['path']}){': ' + how if how else ''}"
        lines = [one["reason"]] if one.get("reason") else []
        lines += [field_line(field) for field in one["fields"]]
        if one["kind"] == "Model":
            lines += [line for each in rest if each["model"] == one["name"] for line in replica_lines(each)]
            rest = [each for each in rest if each["model"] != one["name"]]
        found.append(Block(SIGNS[tuple(one["actions"])], title, tuple(lines)))
    for model in dict.fromkeys(each["model"] for each in rest):
        lines = [line for each in rest if each["model"] == model for line in replica_lines(each)]
        found.append(Block("~", f"model/{model}: not edited; its replicas change", tuple(lines)))
    return found


def field_line(field: dict[str, str]) -> str:
    """Return one changed field with what its change costs."""
    return f"{field['path']}: {field['before'] or '(not set)'} -> {field['after'] or '(not set)'} [{field['impact']}]"


def replica_lines(one: dict[str, Any]) -> list[str]:
    """Return what is done to a replica and why, and what is known of it."""
    verb = one["actions"][0]
    lines = [f"{_REPLICA_SIGNS[verb]} {verb} {one['replica']} on {one['node']}: {one['reason']}"]
    about = []
    if verb == "start":
        about += _cards(one.get("cards", []), many=len(one.get("nodes", [])) > 1)
        took = one.get("last_cold_start")
        about += [f"the last cold start of this model took {age(took)}"] if took is not None else []
    elif verb in ("drain", "stop"):
        about += _streams(one)
    return [*lines, *([f"    {'; '.join(about)}"] if about else [])]


def drift_lines(shown: dict[str, Any]) -> list[str]:
    """Return what changed outside."""
    return [one["text"] for one in shown.get("drift", [])]


def warnings(shown: dict[str, Any]) -> list[str]:
    """Return what stands against the plan, or must be known before it is applied."""
    suspended = shown.get("suspended")
    return [
        *shown["alarms"],
        *(one["text"] for one in shown["problems"] if one["severity"] != "error"),
        *([f"suspended by {suspended['text']}: nothing is changed until then"] if suspended else []),
        *(f"a guard refuses this: {one['text']}; {one['options']}" for one in shown.get("guard", [])),
        *(f"this plan breaks a rule of safety and would not be carried out: {one}" for one in shown["violations"]),
    ]


def held_lines(shown: dict[str, Any]) -> list[str]:
    """Return what is not done now, and what it waits for."""
    return [f"{one['subject']}: {one['what']}, waits for {one['waits_for']}" for one in shown["held"]]


def summary(shown: dict[str, Any]) -> str:
    """Return the plan in one line."""
    if not shown["valid"]:
        return "Not valid."
    if not shown["changes"]:
        return "No changes." if not shown["held"] else "No changes; see what is held back."
    counts: dict[str, int] = {}
    for one in shown["objects"]:
        sign = SIGNS[tuple(one["actions"])]
        counts[sign] = counts.get(sign, 0) + 1
    replaced = counts.get("+/-", 0) + counts.get("-/+", 0)
    objects = f"{counts.get('+', 0)} to create, {counts.get('~', 0)} to update, {counts.get('-', 0)} to delete"
    objects += f", {replaced} to replace" if replaced else ""
    verbs: dict[str, int] = {}
    for one in shown["replicas"]:
        verbs[one["actions"][0]] = verbs.get(one["actions"][0], 0) + 1
    replicas = ", ".join(f"{count} to {verb}" for verb, count in verbs.items()) or "none touched"
    held = f"; held back: {len(shown['held'])}" if shown["held"] else ""
    return f"Plan: objects: {objects}; replicas: {replicas}{held}."


def coloured(plain: str) -> str:
    """Return the text with each line in the colour of its sign, for terminals."""
    return "\n".join(_line(line) for line in plain.split("\n"))


def _line(line: str) -> str:
    sign = line.lstrip()[:1]
    follows = line.lstrip()[1:2]
    colour = _COLOURS.get("~" if line.lstrip().startswith(("+/-", "-/+")) else sign)
    return f"\x1b[{colour}m{line}\x1b[0m" if colour and follows in (" ", "/") else line


def _problems(shown: dict[str, Any]) -> list[str]:
    return [f"  {one['text']}" for one in shown["problems"] if one["severity"] == "error"]


def _titled(title: str, lines: list[str]) -> list[str]:
    return [title, *lines] if lines else []


def _cards(cards: list[dict[str, Any]], *, many: bool) -> list[str]:
    by_node: dict[str, list[dict[str, Any]]] = {}
    for card in cards:
        by_node.setdefault(card["node"], []).append(card)
    return [_cards_of(node if many else "", found) for node, found in by_node.items()]


def _cards_of(node: str, cards: list[dict[str, Any]]) -> str:
    shown = ", ".join(str(card["index"]) if card["index"] is not None else card["uuid"] for card in cards)
    kinds = ", ".join(dict.fromkeys(card["name"] for card in cards if card["name"]))
    where = f" of {node}" if node else ""
    return f"{'card' if len(cards) == 1 else 'cards'} {shown}{where}{f' ({kinds})' if kinds else ''}"


def _streams(one: dict[str, Any]) -> list[str]:
    if one.get("streams_unknown"):
        return [f"how many streams it has is not known: {one['streams_unknown']}"]
    count = one.get("streams")
    if count is None:
        return []
    return ["no stream now" if count == 0 else "1 stream now" if count == 1 else f"{count} streams now"]
