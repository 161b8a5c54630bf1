"""From ruamel.yaml's events to a tree of nodes with places, in one pass and with a stack of its own.

The library's composer is not used: it recurses (600 nested lists end in a RecursionError), warns where a reused anchor
should be an error, and would need the events twice, since depth must be checked before it runs. Scanning is what costs,
and here it is done once. A new `YAML` object for every file: its classes share state, and one object used by two
threads fails at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from llmgw.catalog.document import Place, SourceText, shortened
from llmgw.catalog.problems import Problem
from llmgw.catalog.syntax import bad_escape, explain

MAX_DEPTH = 64
MAX_VALUES = 10_000

Span = tuple[int, int]
"""Where a node starts in the text, its anchor included, and where it ends: after its last character, without the blanks,
comments and line ends that follow. What `edit` replaces."""
NOWHERE: Span = (0, 0)


@dataclass(slots=True)
class Scalar:
    """One text as written; `plain` means without quotes and not as a block."""

    place: Place
    text: str
    plain: bool
    span: Span = NOWHERE


@dataclass(slots=True)
class Sequence:
    """A list; `flow` means in brackets."""

    place: Place
    flow: bool = False
    items: list["Node"] = field(default_factory=list)
    size: int = 1
    height: int = 1
    span: Span = NOWHERE


@dataclass(slots=True)
class Mapping:
    """Keys and values in the order written; odd `children` are keys, each followed by its value."""

    place: Place
    flow: bool
    children: list["Node"] = field(default_factory=list)
    size: int = 1
    height: int = 1
    span: Span = NOWHERE

    def pairs(self) -> Iterator[tuple["Node", "Node"]]:
        """Yield keys with their values."""
        return zip(self.children[::2], self.children[1::2], strict=True)


@dataclass(slots=True)
class Alias:
    """Another node, by name. The target is complete: an alias inside what it stands for is refused."""

    place: Place
    target: "Scalar | Sequence | Mapping"
    span: Span = NOWHERE


@dataclass(slots=True)
class Flawed:
    """Something a problem has been raised for; it has no value."""

    place: Place
    span: Span = NOWHERE


Node = Scalar | Sequence | Mapping | Alias | Flawed


class Stopped(Exception):
    """Reading this file ends here; the reason is the problem that goes with it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Composed:
    """A file's nodes. `root` is None if the file holds none. `quoted` are the lines inside quotes and blocks."""

    root: Node | None
    problems: list[Problem]
    quoted: frozenset[int]


def compose(source: SourceText) -> Composed:
    """Return the nodes of a file that holds one document. Raises Stopped at its first mistake in syntax or limits."""
    composer = _Composer(source)
    # Plain `safe`: the round-trip scanner takes half as long again to keep comments that nobody here reads.
    events: Iterator[Event] = YAML(typ="safe", pure=True).parse(source.text)
    try:
        for event in events:
            composer.take(event)
    except MarkedYAMLError as error:
        raise Stopped(explain(source, error)) from None
    except (OverflowError, ValueError):  # from chr(): an escape such as "\UFFFFFFFF"
        raise Stopped(bad_escape(source)) from None
    return Composed(composer.root, composer.problems, frozenset(composer.quoted))


def _place(event: Event) -> Place:
    start, end = event.start_mark, event.end_mark
    same_line = start.line == end.line and end.column > start.column
    return Place(start.line + 1, start.column + 1, end.column + 1 if same_line else 0)


def _span(event: Event) -> Span:
    return event.start_mark.index, event.end_mark.index


def _bracketed(event: CollectionEndEvent) -> bool:
    """Whether a collection ends with a bracket of its own."""
    return bool(event.end_mark.index > event.start_mark.index)


class _Composer:
    """Takes events one by one. The stack holds the collections that are open, outermost first."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self.quoted: set[int] = set()
        self._stack: list[tuple[Sequence | Mapping, str | None]] = []
        self._anchors: dict[str, tuple[Place, Scalar | Sequence | Mapping | None]] = {}
        self._documents = 0
        self._values = 0

    def take(self, event: Event) -> None:
        """Add one event to the tree."""
        if isinstance(event, NodeEvent):
            self._node(event)
        elif isinstance(event, CollectionEndEvent):
            self._close(event)
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                message = "a second document; one object a file: move what follows `---` to a file of its own"
                raise Stopped(self.source.problem(_place(event), "multiple-documents", message))

    def _node(self, event: NodeEvent) -> None:
        place = _place(event)
        if isinstance(event, AliasEvent):
            self._add(self._alias(event.anchor, place, _span(event)))
            return
        self._count(place, 1)
        if event.anchor is not None:
            self._declare(event.anchor, place)
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.ctag is not None:
            message = (
                f"a tag, `{_written(self.source, place)}`; remove it, the type follows from how a value is written"
            )
            self.problems.append(self.source.problem(place, "tag", message))
        if isinstance(event, CollectionStartEvent):
            self._open(event, place)
            return
        assert isinstance(event, ScalarEvent)
        if event.style and event.end_mark.line > event.start_mark.line:
            self.quoted.update(range(event.start_mark.line + 2, event.end_mark.line + 2))
        start, end = _span(event)
        if event.style in ("|", ">"):  # the scanner ends these behind the blank lines that follow
            end = start + len(self.source.text[start:end].rstrip())
        scalar = Scalar(place, event.value, not event.style, (start, end))
        if event.anchor is not None:
            self._anchors[event.anchor] = (place, scalar)
        self._add(scalar)

    def _open(self, event: CollectionStartEvent, place: Place) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise Stopped(
                self.source.problem(place, "too-deep", f"nested more than {MAX_DEPTH} deep; no object needs that")
            )
        if isinstance(event, MappingStartEvent):
            self._stack.append((Mapping(place, bool(event.flow_style), span=_span(event)), event.anchor))
        else:
            self._stack.append((Sequence(place, bool(event.flow_style), span=_span(event)), event.anchor))

    def _close(self, event: CollectionEndEvent) -> None:
        node, anchor = self._stack.pop()
        inside = node.items if isinstance(node, Sequence) else node.children
        # The end of a block is where the next thing starts; its own last character is that of what is last in it.
        node.span = (node.span[0], inside[-1].span[1] if inside and not _bracketed(event) else event.end_mark.index)
        if anchor is not None:
            self._anchors[anchor] = (self._anchors[anchor][0], node)
        self._add(node)

    def _add(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1][0]
        match parent:
            case Sequence():
                parent.items.append(node)
            case Mapping():
                parent.children.append(node)
            case _:
                assert_never(parent)
        size, height = _measure(node)
        parent.size += size
        parent.height = max(parent.height, height + 1)

    def _declare(self, anchor: str, place: Place) -> None:
        if anchor in self._anchors:
            first = self._anchors[anchor][0]
            message = f"anchor `&{shortened(anchor)}` is already used on line {first.line}; give this one another name"
            self.problems.append(self.source.problem(place, "reused-anchor", message))
        self._anchors[anchor] = (place, None)

    def _alias(self, name: str, place: Place, span: Span) -> Node:
        short = shortened(name)
        if name not in self._anchors:
            message = f"alias `*{short}` has no anchor `&{short}` before it in this file; quote it if it is text"
            self.problems.append(self.source.problem(place, "unknown-alias", message))
            return Flawed(place, span)
        target = self._anchors[name][1]
        if target is None:
            message = f"alias `*{short}` is inside the value it stands for; write the value out"
            self.problems.append(self.source.problem(place, "recursive-alias", message))
            return Flawed(place, span)
        size, height = _measure(target)
        self._count(place, size)
        if len(self._stack) + height > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} deep through `*{short}`; no object needs that"
            raise Stopped(self.source.problem(place, "too-deep", message))
        return Alias(place, target, span)

    def _count(self, place: Place, size: int) -> None:
        self._values += size
        if self._values > MAX_VALUES:
            message = f"more than {MAX_VALUES} values, each alias counted as what it stands for; no object needs that"
            raise Stopped(self.source.problem(place, "too-many-values", message))


def _measure(node: Node) -> tuple[int, int]:
    """Return how many values a node is with everything in it, and how many levels of collections."""
    match node:
        case Sequence() | Mapping():
            return node.size, node.height
        case Alias():
            return _measure(node.target)
        case Scalar() | Flawed():
            return 1, 0
        case _:
            assert_never(node)


def _written(source: SourceText, place: Place) -> str:
    """Return a tag as it is written: the first word at its place that starts with `!`."""
    words = source.line(place.line)[place.column - 1 :].split()
    return shortened(next((word for word in words if word.startswith("!")), "!"))
