"""What the YAML language allows at a path: read from the pydantic models, so that a hint never lags behind them."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from llmgw.catalog.document import Path
from llmgw.spec.common import SpecModel


def fields_at(model: type[SpecModel], path: Path) -> dict[str, FieldInfo]:
    """Return the fields, by the key that YAML uses, of the object at a path of a kind; empty if none is there."""
    shapes: list[Any] = [model]
    for part in path:
        shapes = [inner for shape in shapes for inner in _step(shape, part)]
    return {key: field for shape in shapes if _is_model(shape) for key, field in _fields(shape).items()}


def _step(shape: Any, part: str | int) -> Iterator[Any]:
    if _is_model(shape):
        field = _fields(shape).get(str(part))
        if field is not None:
            yield from _alternatives(field.annotation)
        return
    arguments = get_args(shape)
    if arguments:
        yield from _alternatives(arguments[-1])


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _alternatives(member)
    elif annotation is not NoneType:
        yield annotation


def _is_model(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, SpecModel)


def _fields(model: type[SpecModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}
