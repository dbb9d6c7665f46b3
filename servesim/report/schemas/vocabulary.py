"""How the shape of a document becomes a JSON Schema (draft 2020-12).

A shape is a type, as the fields of a dataclass have it: `float | None`, `list[str]`, `dict[str, int]`, another
dataclass, `Annotated[int, "what it means"]`. A field that has a default may be absent. Where no dataclass holds a
document, a table tells of it:

| shape | what it describes |
|---|---|
| `"number|null: seconds from ..."` | a value of one of the types, and what it means |
| `("met", "missed")` | one of these texts |
| `{"name": shape, "name?": shape}` | an object; a name that ends in `?` may be absent |
| `[shape]` | a list |
| `Many(shape)` | an object of any keys |
| `Maybe(shape)` | the shape, or null where it is unknown |
| `Part("summary")` | a shape that has a name of its own |
| `Either(shape, ...)` | any of them |
| anything else | a type |

Objects may have more keys than are named: new ones are added without a new number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from servesim.runs.as_json import is_optional
from servesim.runs.records import LinkTotals, ReplicaTotals
from servesim.stats import Distribution
from servesim.summary.metrics import ClassFigures, EngineFigures, RequestCounts, Throughput, TokenCounts
from servesim.summary.slo import Goodput, SloResult

TYPES = {
    "text": "string",
    "number": "number",
    "integer": "integer",
    "flag": "boolean",
    "object": "object",
    "list": "array",
    "null": "null",
}

SCALARS = {str: "string", float: "number", int: "integer", bool: "boolean", NoneType: "null"}

PART_NAMES: dict[type, str] = {
    Distribution: "distribution",
    RequestCounts: "requests",
    TokenCounts: "tokens",
    Throughput: "throughput",
    EngineFigures: "engine",
    Goodput: "goodput",
    SloResult: "slo",
    ClassFigures: "class",
    ReplicaTotals: "replica",
    LinkTotals: "link",
}
"""The dataclasses that a schema describes once and refers to wherever they are."""


@dataclass(frozen=True, slots=True)
class Many:
    """An object that has values of one shape under names that are data."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Maybe:
    """A shape, or null, and what it means."""

    shape: Any
    about: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A shape by its name."""

    name: str


class Either:
    """One of several shapes."""

    def __init__(self, *shapes: Any) -> None:
        self.shapes = shapes


def json_schema(shape: Any) -> dict[str, Any]:
    """Return the JSON Schema of `shape`; parts are references into `$defs`.

    >>> json_schema({"count": "integer: how many", "mean?": "number|null"})["required"]
    ['count']
    """
    if isinstance(shape, str):
        return _value(shape)
    if isinstance(shape, tuple):
        return {"enum": list(shape)}
    if isinstance(shape, list):
        return {"type": "array", "items": json_schema(shape[0])}
    if isinstance(shape, Many):
        return {"type": "object", "additionalProperties": json_schema(shape.shape)}
    if isinstance(shape, Maybe):
        return {"anyOf": [json_schema(shape.shape), {"type": "null"}]} | _described(shape.about)
    if isinstance(shape, Either):
        return {"anyOf": [json_schema(each) for each in shape.shapes]}
    if isinstance(shape, Part):
        return {"$ref": f"#/$defs/{shape.name}"}
    return _object(shape) if isinstance(shape, Mapping) else _of_type(shape)


def fields_of(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass as a table: the names of their keys, and their types.

    What is left out of a document where it is None is never null there.
    """
    hints = get_type_hints(kind, include_extras=True)
    table = {}
    for each in fields(kind):
        if each.metadata.get("json", True):
            hint = hints[each.name]
            table[each.name.rstrip("_") + "?" * is_optional(each)] = _known(hint) if each.default is None else hint
    return table


def _known(hint: Any) -> Any:
    """Return a type without None."""
    if get_origin(hint) is Annotated:
        return Annotated[_known(get_args(hint)[0]), get_args(hint)[1]]
    return get_args(hint)[0] if get_origin(hint) in (Union, UnionType) else hint


def _of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a type; a dataclass that is a part is a reference, any other an object where it stands."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(json_schema(arguments[0]), arguments[1])
    if origin in (Union, UnionType):
        known, null = (json_schema(each) for each in arguments)
        return {"type": [known["type"], "null"]} if arguments[0] in SCALARS else {"anyOf": [known, null]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array"} if arguments[0] is Any else {"type": "array", "items": json_schema(arguments[0])}
    if origin is dict:
        values = arguments[1]
        return {"type": "object"} if values is Any else {"type": "object", "additionalProperties": json_schema(values)}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    return {"$ref": f"#/$defs/{PART_NAMES[hint]}"} if hint in PART_NAMES else _object(fields_of(hint))


def _annotated(schema: dict[str, Any], about: str) -> dict[str, Any]:
    """Return the schema with what it is about; of a list, that is what each of its items is."""
    if schema.get("type") == "array":
        return schema | {"items": schema["items"] | _described(about)}
    return schema | _described(about)


def parts_of(schema: Any) -> set[str]:
    """Return the names of the parts that a schema refers to."""
    if isinstance(schema, list):
        return set[str]().union(*map(parts_of, schema))
    if not isinstance(schema, Mapping):
        return set()
    reference = schema.get("$ref")
    named = {reference.rpartition("/")[2]} if isinstance(reference, str) else set()
    return named.union(*map(parts_of, schema.values()))


def _value(text: str) -> dict[str, Any]:
    kinds, _, about = text.partition(": ")
    types = [TYPES[kind] for kind in kinds.split("|")]
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    return schema | _described(about)


def _described(about: str) -> dict[str, str]:
    return {"description": about} if about else {}


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name.removesuffix("?"): json_schema(shape) for name, shape in fields.items()},
        "required": [name for name in fields if not name.endswith("?")],
    }
