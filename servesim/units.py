"""Quantities in and out: what a person types becomes a checked number, what a run computes becomes a short string.

Parsers take the text and the name it was given under, and raise `InputError` in one line that says the name, the
value and the remedy. They are strict on purpose: ASCII digits only, no `nan`, no `inf`, no underscores, and a unit
wherever leaving it out could be understood in two ways. This module does not know about flags, files or defaults.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from servesim.errors import InputError

T = TypeVar("T")

KIB, MIB, GIB = 2**10, 2**20, 2**30
KB, MB, GB = 10**3, 10**6, 10**9

MAX_COUNT = 2**53  # above it a float no longer counts by ones
LONGEST_TOLD_S = 1e9  # above it, some thirty years, nobody asks for minutes

_QUANTITY = re.compile(r"([+-]?)([0-9]{0,40})(?:\.([0-9]{1,40}))?(?:[eE]([+-]?[0-9]{1,3}))?(.*)", re.ASCII | re.DOTALL)

# `K` is 1,000 as `k` is; who means 1,024 writes `Ki`. (vLLM reads 32K as 32,768 and 32k as 32,000.)
_COUNT_UNITS = {"": 1, "k": KB, "K": KB, "M": MB, "G": GB, "B": GB, "T": 10**12, "Ki": KIB, "Mi": MIB, "Gi": GIB}
_BYTE_UNITS = {
    "B": 1,
    "kB": KB,
    "KB": KB,
    "MB": MB,
    "GB": GB,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 2**40,
}
# Nanoseconds per unit, so that every scale is a whole number. Both micro signs are in use.
_TIME_UNITS = {
    "ns": 1,
    "us": KB,
    "\u00b5s": KB,
    "\u03bcs": KB,
    "ms": MB,
    "s": GB,
    "m": 60 * GB,
    "min": 60 * GB,
    "h": 3600 * GB,
    "d": 86400 * GB,
}
# Bits per second; a capital B is a byte, as on every datasheet.
_BANDWIDTH_UNITS = {f"{unit}/s": 8 * scale for unit, scale in _BYTE_UNITS.items()} | {
    f"{prefix}{bit}": scale
    for prefix, scale in (("M", MB), ("G", GB), ("T", 10**12))
    for bit in ("b/s", "bit/s", "bps")
}


def shown(value: object) -> str:
    """Return `value` as an error message shows it: quoted if it is text, on one line, cut after 40 characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 42 else f"{text[:39]}..."


def parse_count(value: object, name: str = "count", *, minimum: int = 1, maximum: int = MAX_COUNT) -> int:
    """Return the whole number in `value`: `256`, `10k`, `1.5M`, `32Ki`, or a JSON number that is whole.

    >>> parse_count("1.5M")
    1500000
    """
    wrong = InputError(f"{name} is {shown(value)}, must be a whole number such as 256, 10k or 1.5M")
    if isinstance(value, str):
        numerator, denominator = _scaled(value, _COUNT_UNITS, wrong)
        count, rest = divmod(numerator, denominator)
        if rest:
            raise wrong
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, float) and value.is_integer():
        count = int(value)
    else:
        raise wrong
    if count < minimum:
        raise InputError(f"{name} is {shown(value)}, must be {minimum} or more")
    if count > maximum:
        raise InputError(f"{name} is {shown(value)}, must be at most {maximum}")
    return count


def parse_finite(
    value: object,
    name: str = "value",
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> float:
    """Return the finite number in `value`, text or a JSON number, within (`above` or [`minimum`, `maximum`]."""
    number = math.nan
    wrong = InputError(f"{name} is {shown(value)}, must be a finite number such as 0.9 or 25")
    if isinstance(value, str):
        number = _ratio(*_scaled(value, {"": 1, "k": KB, "M": MB}, wrong), wrong)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = _ratio(value, 1, wrong)
    if not math.isfinite(number):
        raise wrong
    if above is not None and not number > above:
        raise InputError(f"{name} is {shown(value)}, must be above {above:g}")
    if minimum is not None and number < minimum:
        raise InputError(f"{name} is {shown(value)}, must be {minimum:g} or more")
    if maximum is not None and number > maximum:
        raise InputError(f"{name} is {shown(value)}, must be at most {maximum:g}")
    return number


def parse_duration(text: str, name: str = "duration", *, positive: bool = False) -> float:
    """Return the seconds in `text`: `250ms`, `30s`, `5m`, `1h`. Only a bare `0` may leave the unit out.

    >>> parse_duration("250ms")
    0.25
    """
    wrong = InputError(f"{name} is {shown(text)}, must be a time with its unit such as 250ms, 30s, 5m or 1h")
    return _measured(text, _TIME_UNITS, GB, wrong, f"{name} is {shown(text)}, must be above 0" if positive else None)


def parse_bandwidth(text: str, name: str = "bandwidth") -> float:
    """Return the bytes per second in `text`: `25GB/s` (bytes) or `400Gb/s` (bits); always above 0.

    >>> parse_bandwidth("400Gb/s")
    50000000000.0
    """
    wrong = InputError(f"{name} is {shown(text)}, must be a bandwidth with its unit such as 25GB/s or 400Gb/s")
    return _measured(text, _BANDWIDTH_UNITS, 8, wrong, f"{name} is {shown(text)}, must be above 0")


def parse_bytes(text: str, name: str = "size") -> int:
    """Return the bytes in `text`, rounded down: `64GB` is 64 x 10^9, `16GiB` is 16 x 2^30; only `0` needs no unit.

    >>> parse_bytes("16GiB")
    17179869184
    """
    wrong = InputError(f"{name} is {shown(text)}, must be a size with its unit such as 64GB or 16GiB")
    if text == "0":
        return 0
    numerator, denominator = _scaled(text, _BYTE_UNITS, wrong)
    if numerator < 0 or numerator // denominator > MAX_COUNT:
        raise wrong
    return numerator // denominator


def parse_range(text: object, name: str = "range", *, minimum: int = 1, maximum: int = MAX_COUNT) -> tuple[int, int]:
    """Return (low, high), both included, of `256-1024`, or (256, 256) of `256`.

    >>> parse_range("256-1k")
    (256, 1000)
    """
    low_text, dash, high_text = text.partition("-") if isinstance(text, str) else (text, "", "")
    if dash and not (low_text and high_text):
        raise InputError(f"{name} is {shown(text)}, must be a whole number or a range such as 256-1024")
    low = parse_count(low_text, name, minimum=minimum, maximum=maximum)
    high = parse_count(high_text, name, minimum=minimum, maximum=maximum) if dash else low
    if low > high:
        raise InputError(f"{name} is {shown(text)}, must begin with its smaller end: {high_text}-{low_text}")
    return low, high


def parse_list(text: str, parse: Callable[[str, str], T], name: str = "list", *, limit: int = 10_000) -> list[T]:
    """Return `parse(item, name)` of every item of a comma list; an empty item or more than `limit` are refused.

    >>> parse_list("1,8,32", parse_count)
    [1, 8, 32]
    """
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError(f"{name} is {shown(text)}, must be values between commas such as 1,8,32")
    if len(items) > limit:
        raise InputError(f"{name} has {len(items)} values, must have at most {limit}")
    return [parse(item, name) for item in items]


def refuse_constant(constant: str) -> float:
    """Refuse NaN and Infinity, which Python's reader takes and JSON does not have."""
    raise ValueError(f"{constant} is no JSON number")


def suggest(kind: str, name: str, choices: Iterable[str]) -> InputError:
    """Return the error for an unknown `name`, with the choice that it most resembles or else the choices.

    >>> print(suggest("hardware", "h10", ["a100-sxm-80gb", "h100-sxm-80gb"]))
    unknown hardware 'h10'; did you mean 'h100-sxm-80gb'?
    """
    known = list(choices)
    wanted = name[:64].lower()
    ranked = sorted((_unlikeness(wanted, choice.lower()), order, choice) for order, choice in enumerate(known))
    if ranked and ranked[0][0][0] <= len(wanted) // 3 and wanted.strip():
        return InputError(f"unknown {kind} {shown(name)}; did you mean {ranked[0][2]!r}?")
    listed = ", ".join(known[:12]) + (f", ... ({len(known)} in all)" if len(known) > 12 else "")
    return InputError(f"unknown {kind} {shown(name)}; choose from {listed}")


def format_number(value: float | None, digits: int = 1) -> str:
    """Return `value` with thousands separated and `digits` decimals; `-` where it is unknown."""
    return "-" if value is None else f"{value:,.{digits}f}"


def format_ms(value_ms: float | None, digits: int = 1) -> str:
    """Return milliseconds with their unit, `-` where they are unknown."""
    return "-" if value_ms is None else f"{value_ms:,.{digits}f} ms"


def format_duration(seconds: float | None) -> str:
    """Return a time in the unit that a person would choose: `72.4 ms`, `3.51 s`, `5 min 3 s`, `2 h 5 min`."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.99995e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 0.99995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    if seconds > LONGEST_TOLD_S:
        return f"{seconds / 3600:.3g} h"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def format_gib(size_bytes: float | None, digits: int = 2) -> str:
    """Return bytes in GiB (2^30), the unit of memory: `20.25 GiB`."""
    return "-" if size_bytes is None else f"{size_bytes / GIB:,.{digits}f} GiB"


def format_gib_apart(size_bytes: float, other_bytes: float) -> tuple[str, str]:
    """Return two sizes in GiB with as many digits as it takes to tell them apart, two at least.

    >>> format_gib_apart(4093640704, 4093509632)
    ('3.8125 GiB', '3.8124 GiB')
    """
    pairs = [(format_gib(size_bytes, digits), format_gib(other_bytes, digits)) for digits in range(2, 10)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def format_gb(size_bytes: float | None, digits: int = 2) -> str:
    """Return bytes in GB (10^9), the unit of files and datasheets: `16.06 GB`."""
    return "-" if size_bytes is None else f"{size_bytes / GB:,.{digits}f} GB"


def format_bytes(size_bytes: float | None, digits: int = 1) -> str:
    """Return bytes in the binary unit that fits: `960 B`, `128.0 KiB`, `2.0 MiB`, `3.8 GiB`."""
    if size_bytes is None:
        return "-"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:,.{digits}f} {name}"
    return f"{size_bytes:g} B"


def format_si(value: float | None) -> str:
    """Return a count in at most four digits and a suffix: `950`, `10k`, `1.5M`, `134.5M`, `8.03B`."""
    if value is None:
        return "-"
    for scale, suffix in ((10**12, "T"), (GB, "B"), (MB, "M"), (KB, "k")):
        if abs(value) >= 0.99995 * scale:
            return f"{value / scale:.4g}{suffix}" if abs(value) < 9999 * scale else f"{value / scale:,.0f}{suffix}"
    return f"{value:.4g}"


def _scaled(text: object, units: dict[str, int], wrong: InputError) -> tuple[int, int]:
    """Return the exact (numerator, denominator) of `text` times its unit; raise `wrong` for anything else."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise wrong
    sign, whole, fraction, exponent, unit = match.groups(default="")
    if unit.strip(" ") not in units or not whole + fraction or unit.endswith(" "):
        raise wrong
    digits = int(f"{sign}{whole}{fraction}")
    power = int(exponent or 0) - len(fraction)
    scale = units[unit.strip(" ")]
    return (digits * scale * 10**power, 1) if power >= 0 else (digits * scale, 10**-power)


def _measured(text: str, units: dict[str, int], base: int, wrong: InputError, not_zero: str | None) -> float:
    """Return `text` in units of `base` as a float of 0 or more; of 0 only where `not_zero` is no message."""
    numerator, denominator = (0, 1) if text == "0" else _scaled(text, units, wrong)
    number = _ratio(numerator, denominator * base, wrong)
    if number < 0:
        raise wrong
    if number == 0 and not_zero is not None:
        raise InputError(not_zero)
    return number


def _ratio(numerator: float, denominator: int, wrong: InputError) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        raise wrong from None


def _unlikeness(wanted: str, choice: str) -> tuple[int, int, int]:
    """Return (edits to find `wanted` anywhere in `choice`, where that begins or 1, difference of length)."""
    row = [0] * (len(choice) + 1)
    for i, letter in enumerate(wanted, 1):
        previous, row = row, [i]
        for j, other in enumerate(choice, 1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (letter != other)))
    return min(row), 0 if choice.startswith(wanted[:2]) else 1, abs(len(choice) - len(wanted))


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 in percent, `-` where it is unknown."""
    return "-" if fraction is None else f"{fraction * 100:.1f}%"


def bandwidth(bytes_per_s: float | None) -> str:
    """Return a bandwidth in GB/s (10^9), `-` where there is none."""
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g} GB/s"


def whole(value: int | None) -> str:
    """Return a count with its thousands apart, `-` where it is unknown."""
    return "-" if value is None else f"{value:,}"


def us(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * 1e6)
