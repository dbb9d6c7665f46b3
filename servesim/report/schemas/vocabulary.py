"""How a table of fields becomes a JSON Schema (draft 2020-12).

A shape is one of these:

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

Objects may have more keys than are named: new ones are added without a new number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TYPES = {
    "text": "string",
    "number": "number",
    "integer": "integer",
    "flag": "boolean",
    "object": "object",
    "list": "array",
    "null": "null",
}


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
    return _object(shape)


def parts_of(schema: Any) -> set[str]:
    """Return the names of the parts that a schema refers to."""
    if isinstance(schema, list):
        return set[str]().union(*map(parts_of, schema))
    if not isinstance(schema, Mapping):
        return set()
    reference = schema.get("$ref")
    named = {reference.rpartition("/")[2]} if isinstance(reference, str) else set()
    return named.union(*map(parts_of, schema.values()))


def _value(told: str) -> dict[str, Any]:
    kinds, _, about = told.partition(": ")
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
