"""Single values of foreign rows, checked under the name that their own file gives them."""

from __future__ import annotations

import re
from typing import Any

from servesim.errors import InputError
from servesim.units import shown
from servesim.workload.lengths import MAX_TOKENS

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DIGITS = 15  # of a whole number that is taken without looking twice


def token_count(value: object, field: str, *, minimum: int = 1) -> int:
    """Return a JSON value as a count of tokens; a whole number may be written 3.0."""
    if type(value) is int and minimum <= value <= MAX_TOKENS:
        return value
    if isinstance(value, str):
        raise InputError(f"{field} is {shown(value)}, must be a number, not text")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0:
        raise InputError(f"{field} is {'null' if value is None else shown(value)}, must be a whole number")
    if value < minimum:
        raise InputError(f"{field} is {shown(value)}, must be {minimum} or more")
    if value > MAX_TOKENS:
        raise InputError(f"{field} is {shown(value)}, must be at most {MAX_TOKENS}")
    return int(value)


def tokens_of(row: dict[str, Any], field: str, *, minimum: int = 1) -> int:
    """Return the count of tokens in `field` of a JSON object."""
    value = row.get(field)
    if type(value) is int and minimum <= value <= MAX_TOKENS:
        return value
    if field not in row:
        raise InputError(f"{field} is missing")
    return token_count(value, field, minimum=minimum)


def cell_tokens(cell: str, column: str, *, minimum: int = 1) -> int:
    """Return the count of tokens in a cell of a table."""
    number = cell_number(cell)
    if number is None:
        raise InputError(f"{column} is {shown(cell)}, must be a whole number")
    return (
        number
        if type(number) is int and minimum <= number <= MAX_TOKENS
        else token_count(number, column, minimum=minimum)
    )


def cell_time(cell: str) -> int | float | str:
    """Return a cell's time as the clock takes it: a number where it is one, else the text."""
    number = cell_number(cell)
    return cell if number is None else number


def cell_number(cell: str) -> int | float | None:
    """Return the number in a cell, None where it has none; whole ones stay whole."""
    if len(cell) <= _DIGITS and cell.isdigit() and cell.isascii():
        return int(cell)
    cell = cell.strip()
    if not _NUMBER.fullmatch(cell):
        return None
    return float(cell) if "." in cell or "e" in cell.lower() or len(cell) > 40 else int(cell)
