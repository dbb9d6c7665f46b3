"""Every figure that a report can have, by name, in the order in which they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from servesim.report.cdf import latency_cdfs
from servesim.report.curves import length_scan, throughput_curve
from servesim.report.figure import Figure
from servesim.report.first_tokens import ttft_over_time
from servesim.report.gaps import itl_over_time
from servesim.report.lanes import request_lanes
from servesim.report.material import Material
from servesim.report.roofline_picture import roofline
from servesim.report.timeline import timeline

FIGURES: dict[str, Callable[[Material], Figure | None]] = {
    "curve": throughput_curve,
    "scan": length_scan,
    "timeline": timeline,
    "latency": latency_cdfs,
    "ttft": ttft_over_time,
    "itl": itl_over_time,
    "requests": request_lanes,
    "roofline": roofline,
}
"""Each draws what it can of the material, or None where there is nothing to draw."""


def draw(material: Material, names: Iterable[str] = FIGURES) -> list[Figure]:
    """Return the figures called `names` that the material allows, in the order of the registry."""
    wanted = set(names)
    drawn = (make(material) for name, make in FIGURES.items() if name in wanted)
    return [figure for figure in drawn if figure is not None]
