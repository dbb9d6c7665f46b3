"""The subset of JSON Schema (draft 2020-12) that servesim's schemas use: what is wrong with a value, what is untold.

A keyword that it does not know is an error, so that no schema can promise what is never checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KNOWN = {
    *("$schema", "$id", "$defs", "$ref", "title", "description"),
    *("type", "properties", "required", "items", "additionalProperties", "enum", "anyOf"),
}

TYPES: dict[str, Any] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def problems(schema: Mapping[str, Any], value: Any, *, strict: bool = False) -> list[str]:
    """Return what is wrong with `value`; with `strict` also every key of an object that has keys but not this one."""
    return list(_problems(schema, schema.get("$defs", {}), value, "$", strict))


def _problems(
    schema: Mapping[str, Any], parts: Mapping[str, Any], value: Any, where: str, strict: bool
) -> Iterator[str]:
    if unknown := schema.keys() - KNOWN:
        raise ValueError(f"{where}: keywords {sorted(unknown)}")
    if "$ref" in schema:
        yield from _problems(parts[schema["$ref"].removeprefix("#/$defs/")], parts, value, where, strict)
        return
    if "anyOf" in schema:
        found = [list(_problems(each, parts, value, where, strict)) for each in schema["anyOf"]]
        if all(found):
            yield from min(found, key=lambda each: (any(": must be one of" in text for text in each), len(each)))
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: must be one of {schema['enum']}, is {value!r}"
    if "type" in schema and not any(_is(value, each) for each in _listed(schema["type"])):
        yield f"{where}: must be {schema['type']}, is {value!r:.60}"
        return
    if isinstance(value, dict):
        yield from _object_problems(schema, parts, value, where, strict)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _problems(schema["items"], parts, item, f"{where}[{number}]", strict)


def _object_problems(
    schema: Mapping[str, Any], parts: Mapping[str, Any], value: Mapping[str, Any], where: str, strict: bool
) -> Iterator[str]:
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}.{key}: is missing"
    for key, item in value.items():
        if key in properties:
            yield from _problems(properties[key], parts, item, f"{where}.{key}", strict)
        elif "additionalProperties" in schema:
            yield from _problems(schema["additionalProperties"], parts, item, f"{where}.{key}", strict)
        elif strict and properties:
            yield f"{where}.{key}: no schema tells of it"


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else kinds


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])
