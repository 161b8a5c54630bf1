"""What the rules between objects look at."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from llmgw.catalog.document import Document
from llmgw.spec.common import SpecModel

Kind = TypeVar("Kind", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class Read:
    """A document and, if it is valid by itself, the object."""

    document: Document
    spec: SpecModel | None


def of_kind(objects: list[Read], kind: type[Kind]) -> Iterator[tuple[Document, Kind]]:
    """Yield the valid objects of a kind."""
    for each in objects:
        if isinstance(each.spec, kind):
            yield each.document, each.spec
