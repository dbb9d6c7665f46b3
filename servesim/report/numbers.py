"""Numbers as reports print them, beyond what `servesim.units` has."""

from __future__ import annotations

from servesim.stats import Distribution


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 in percent, `-` where it is unknown."""
    return "-" if fraction is None else f"{fraction * 100:.1f}%"


def bandwidth(bytes_per_s: float | None) -> str:
    """Return a bandwidth in GB/s (10^9), `-` where there is none."""
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g} GB/s"


def whole(value: int | None) -> str:
    """Return a count with its thousands apart, `-` where it is unknown."""
    return "-" if value is None else f"{value:,}"


def figure_at(distribution: Distribution | None, name: str) -> float | None:
    """Return a figure of a distribution, None where there is no data."""
    return None if distribution is None else getattr(distribution, name)


def us(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * 1e6)
