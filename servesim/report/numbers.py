"""Numbers as reports print them, beyond what `servesim.units` has."""

from __future__ import annotations


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 in percent, `-` where it is unknown."""
    return "-" if fraction is None else f"{fraction * 100:.1f}%"


def bandwidth(bytes_per_s: float | None) -> str:
    """Return a bandwidth in GB/s (10^9), `-` where there is none."""
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g} GB/s"
