"""Figures as JSON has them: a dataclass is an object, its fields are the keys, and nothing is ever NaN or infinite.

A document's shape is the dataclass that holds it. `Annotated[float | None, "..."]` says in words what a field means;
`report.schemas` makes the JSON Schema of both.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

NOT_IN_JSON = {"json": False}
"""Metadata of a field that is for servesim alone."""


def as_json(value: Any) -> Any:
    """Return a value made of dataclasses, lists and dicts as JSON objects and arrays.

    A field that has a default is left out where it is None; a name that ends in `_`, for Python's sake, loses that.
    """
    if is_dataclass(value):
        return {
            each.name.rstrip("_"): as_json(item)
            for each in fields(value)
            if each.metadata.get("json", True)
            and ((item := getattr(value, each.name)) is not None or not is_optional(each))
        }
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


def is_optional(each: Field[Any]) -> bool:
    """Return whether the key of a field may be absent from a document."""
    return each.default is not MISSING or each.default_factory is not MISSING


def finite(value: Any) -> Any:
    """Return a JSON value with null in place of every float that JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
