"""The fields of a JSON object of facts, checked by name. Knows no field, and no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.errors import InputError
from servesim.units import parse_count, parse_finite, shown


class JsonFields:
    """The fields of one JSON object, looked up under any of their names; errors name file and field."""

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

    def part(self, name: str) -> JsonFields | None:
        """Return the object `name` inside this one; None when it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}: {name} is {shown(value)}, must be an object")
        return JsonFields(value, f"{self.path}: {name}")
