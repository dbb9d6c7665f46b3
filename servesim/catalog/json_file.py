"""JSON files of facts: read whole within a bound, and their fields checked by name. Knows no field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.console import reason
from servesim.errors import InputError
from servesim.units import parse_count, parse_finite, refuse_constant, shown


def read_object(path: str, *, limit_bytes: int) -> dict[str, Any]:
    """Return the JSON object in the file at `path`; raise `InputError` with the file's name for anything else."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error
    if len(data) > limit_bytes:
        raise InputError(f"{path}: is larger than {limit_bytes:,} bytes")
    return parse_object(data, path)


def parse_object(data: bytes, path: str) -> dict[str, Any]:
    """Return the JSON object that `data` is; `path` is what an error calls it."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {str(error)[:80].lower()}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a JSON object")
    return value


class Fields:
    """The fields of one JSON object, asked for under any of their names; errors name file and field."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values, self.path = values, path

    def get(self, *names: str) -> Any:
        """Return the first of `names` that is there and not null."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return None

    def count(self, *names: str, default: int | None = None, minimum: int = 1, maximum: int = 10**9) -> int:
        """Return a whole number; raise `InputError` when it is missing and has no default."""
        for name in names:
            if self.values.get(name) is not None:
                return parse_count(self.values[name], f"{self.path}: {name}", minimum=minimum, maximum=maximum)
        if default is None:
            raise InputError(
                f"{self.path}: {names[0]} is missing; this is no configuration of a decoder that servesim knows"
            )
        return default

    def number(self, name: str, *, default: float | None = None, **bounds: float) -> float | None:
        """Return a finite number within `bounds`, or `default` when it is missing."""
        value = self.values.get(name)
        return default if value is None else parse_finite(value, f"{self.path}: {name}", **bounds)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.path}: {names[0]} is {shown(value)}, must be true or false")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Return text; anything else is an error."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.path}: {names[0]} is {shown(value)}, must be text")
        return value

    def items(self, *names: str, length: int | None = None) -> Sequence[Any] | None:
        """Return a list, of `length` items where that is given; None when it is missing."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 100_000:
            raise InputError(f"{self.path}: {names[0]} is {shown(value)}, must be a list")
        if length is not None and len(value) != length:
            raise InputError(
                f"{self.path}: {names[0]} has {len(value)} items, must have one for each of {length} layers"
            )
        return value

    def part(self, name: str) -> Fields | None:
        """Return the object `name` inside this one; None when it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}: {name} is {shown(value)}, must be an object")
        return Fields(value, f"{self.path}: {name}")
