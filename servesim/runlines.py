"""The lines of a saved run one by one: what a field must be, and the error that names file, line and field.

Knows the JSON and the ways in which it can be wrong; what the lines mean together is `runreader`'s business.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from operator import le
from typing import IO, Any

from servesim.console import reason
from servesim.errors import InputError
from servesim.units import refuse_constant, shown

LONGEST_LINE = 64 * 2**20  # bytes; a request of a million token times is a third of it
MAX_INTEGER = 2**53
LARGEST = 1e15  # of any time and figure, so that no arithmetic on them overflows


class Line:
    """One line: a JSON object, and where it stands."""

    __slots__ = ("fields", "where")

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where = where
        self.fields = fields

    def wrong(self, key: str, remedy: str) -> InputError:
        """Return the error that says what `key` is and what it must be."""
        if key not in self.fields:
            return InputError(f"{self.where}: {key} is missing, must be {remedy}")
        return InputError(f"{self.where}: {key} is {shown(self.fields[key])}, must be {remedy}")

    def time(self, key: str) -> float:
        """Return a time in seconds, NaN where it is null or absent."""
        value = self.fields.get(key)
        if value is None:
            return math.nan
        if type(value) is not float and type(value) is not int:
            raise self.wrong(key, "a number of seconds or null")
        return self._float(key, value)

    def number(self, key: str) -> float:
        value = self.fields.get(key)
        if type(value) is not float and type(value) is not int:
            raise self.wrong(key, "a number")
        return self._float(key, value)

    def count(self, key: str, default: int | None = None, minimum: int = 0) -> int:
        """Return a whole number, `default` where it is null or absent and there is a default."""
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not minimum <= value <= MAX_INTEGER:
            raise self.wrong(key, f"a whole number of {minimum} or more")
        return value

    def integer(self, key: str, default: int) -> int:
        value = self.fields.get(key, default)
        if type(value) is not int or abs(value) > MAX_INTEGER:
            raise self.wrong(key, "a whole number")
        return value

    def flag(self, key: str) -> bool:
        value = self.fields.get(key, False)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        if type(value) is not str:
            raise self.wrong(key, "a text")
        return value

    def table(self, key: str) -> dict[str, Any]:
        value = self.fields.get(key, {})
        if type(value) is not dict:
            raise self.wrong(key, "an object")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.fields.get(key, [])
        if type(value) is not list or any(type(item) is not str for item in value):
            raise self.wrong(key, "a list of texts")
        return value

    def times(self, key: str) -> list[float]:
        """Return a list of times in seconds that never falls."""
        value = self.fields.get(key)
        if type(value) is not list or any(type(item) not in (float, int) for item in value):
            raise self.wrong(key, "a list of numbers of seconds")
        times = [self._float(key, item) for item in value]
        if not all(map(le, times, times[1:])):
            raise InputError(f"{self.where}: {key} falls, must be a list of times in order")
        return times

    def counts(self, key: str) -> list[int]:
        value = self.fields.get(key)
        if type(value) is not list or any(type(item) is not int or not 0 <= item < 2**31 for item in value):
            raise self.wrong(key, "a list of whole numbers")
        return value

    def pairs(self, key: str) -> list[tuple[Any, Any]]:
        """Return a list of pairs of numbers, in which the second may be null."""
        value = self.fields.get(key, [])
        if type(value) is not list or not all(
            type(pair) is list
            and len(pair) == 2
            and type(pair[0]) in (int, float)
            and (pair[1] is None or type(pair[1]) in (int, float))
            for pair in value
        ):
            raise self.wrong(key, "a list of pairs of numbers")
        numbers = [number for pair in value for number in pair if number is not None]
        if not all(abs(number) <= (LARGEST if type(number) is float else 2**64) for number in numbers):
            raise self.wrong(key, f"a list of pairs of numbers of at most {LARGEST:g}")
        return [(first, second) for first, second in value]

    def _float(self, key: str, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST:
            raise self.wrong(key, f"a number of at most {LARGEST:g}")
        return number


def read_lines(path: str) -> Iterator[Line]:
    """Yield the lines of `path`, plain or gzip, up to where it was cut: a last line without its end that is no JSON.

    Raises `InputError` for a file that cannot be read and for a line that is wrong in itself.
    """
    try:
        with open(path, "rb") as plain:
            packed = plain.peek(2)[:2] == b"\x1f\x8b"
            yield from _parse(path, gzip.GzipFile(fileobj=plain) if packed else plain)
    except (OSError, zlib.error) as error:
        cause = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {path}: {cause}") from error


def _parse(path: str, file: IO[bytes] | gzip.GzipFile) -> Iterator[Line]:
    decode = json.JSONDecoder(parse_constant=refuse_constant).decode
    number = 0
    while True:
        try:
            raw = file.readline(LONGEST_LINE)
        except EOFError:  # a gzip stream that was cut
            return
        number += 1
        if not raw:
            return
        where = f"{path}:{number}"
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            raise InputError(f"{where}: the line is longer than {LONGEST_LINE // 2**20} MiB; is this a saved run?")
        try:
            fields = decode(raw.decode("utf-8").rstrip("\r\n"))
        except (ValueError, RecursionError) as error:
            if not raw.endswith(b"\n"):
                return
            cause = "not valid UTF-8" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
            raise InputError(f"{where}: {cause}; a saved run has one JSON object a line") from None
        if type(fields) is not dict:
            raise InputError(f"{where}: the line is {shown(fields)}, must be a JSON object")
        yield Line(where, fields)
