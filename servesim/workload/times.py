"""Arrival times as traces write them: seconds, another unit, epoch times, ISO 8601. Out come seconds from a start.

What could be understood in two ways is refused with the option that settles it. A clock that has been told no unit
takes numbers as seconds if the field says so, and recognises epoch times by their size.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from servesim.errors import InputError
from servesim.units import shown

TIME_UNITS: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # per second

MAX_SPAN_S = 10 * 366 * 86400.0
_EPOCH_FROM_S, _EPOCH_TO_S = 1e9, 4.2e9  # 2001 to 2103: what a number must be between to be an epoch time in seconds
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?\s?(Z|z|UTC|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class TraceClock:
    """Turns the times of one trace into seconds since its first row's moment (epoch, ISO) or since 0 (relative).

    `unit` is what the user said and `unit_of_field` what the field's name says, None where nobody said anything.
    `understood` tells how times were read, once there was one.
    """

    __slots__ = ("_base", "_scale", "_unit", "_unit_of_field", "field", "understood")

    def __init__(self, field: str, *, unit: str | None = None, unit_of_field: str | None = None) -> None:
        self.field = field
        self.understood: str | None = None
        self._unit = unit
        self._unit_of_field = unit_of_field
        self._scale = 1.0
        self._base: int | float | None = None  # the first row's time, in the trace's own unit; nanoseconds for ISO

    @property
    def is_absolute(self) -> bool:
        """Whether times are moments of the calendar, to be shifted so that the first is 0."""
        return self.understood is not None and not self.understood.startswith("relative")

    def seconds(self, value: object) -> float:
        """Return `value` in seconds; raise InputError for what is no time, or another kind than the first was."""
        if isinstance(value, str):
            nanoseconds = parse_iso(value)
            if nanoseconds is None:
                raise InputError(f"{self.field} is {shown(value)}, must be a number or an ISO 8601 time")
            if self.understood is None:
                self.understood, self._scale, self._base = "ISO 8601", 1e9, nanoseconds
            if self.understood != "ISO 8601" or self._base is None:
                raise InputError(f"{self.field} is {shown(value)}, but the rows before have numbers")
            return self._within((nanoseconds - self._base) / 1e9, value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InputError(f"{self.field} is {shown(value)}, must be a number")
        if not -1e30 < value < 1e30:  # false for NaN, too
            raise InputError(f"{self.field} is {shown(value)}, must be a finite number")
        if self.understood is None:
            self._understand(value)
        elif self.understood == "ISO 8601":
            raise InputError(f"{self.field} is {shown(value)}, but the rows before have ISO 8601 times")
        if self._base is None:
            if value < 0:
                raise InputError(f"{self.field} is {shown(value)}, must be 0 or more")
            return self._within(value / self._scale, value)
        return self._within((value - self._base) / self._scale, value)

    def _understand(self, value: int | float) -> None:
        """Decide from the first number of the trace what its unit is, and whether it is an epoch time."""
        epoch = next((u for u, scale in TIME_UNITS.items() if _EPOCH_FROM_S <= value / scale <= _EPOCH_TO_S), None)
        unit = self._unit or self._unit_of_field or epoch
        if unit is None:
            raise InputError(
                f"{self.field} is {shown(value)}, in an unknown unit; say it with --time-unit {', '.join(TIME_UNITS)}"
            )
        if self._unit is None and epoch not in (None, unit):
            raise InputError(
                f"{self.field} is {shown(value)}, which looks like an epoch time in {epoch}; "
                f"say so with --time-unit {epoch}, or --time-unit {unit} if it is none"
            )
        self._scale = TIME_UNITS[unit]
        if _EPOCH_FROM_S <= value / self._scale <= _EPOCH_TO_S:
            self._base = value
            self.understood = f"epoch {unit}"
        else:
            self.understood = f"relative {unit}"

    def _within(self, seconds: float, value: object) -> float:
        if not -MAX_SPAN_S <= seconds <= MAX_SPAN_S:
            raise InputError(
                f"{self.field} is {shown(value)}, read as {self.understood} more than ten years from the start; "
                f"say its unit with --time-unit {', '.join(TIME_UNITS)}"
            )
        return seconds


def parse_iso(text: str) -> int | None:
    """Return the nanoseconds since 1970 of an ISO 8601 time, UTC where it names no zone; None if it is none.

    >>> parse_iso("1970-01-01T00:00:01.5Z")
    1500000000
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, _, sign, zone_hours, zone_minutes = match.groups()[6:]
    try:
        whole = int(datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc).timestamp())
    except ValueError:
        return None
    if second > 60:
        return None
    whole += second == 60  # a leap second
    if sign:
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        whole += offset if sign == "-" else -offset
    return whole * 10**9 + int((fraction or "0").ljust(9, "0")[:9])
