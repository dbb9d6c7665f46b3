"""How latencies are distributed: the share of requests (of gaps, for ITL) that took at most so long."""

from __future__ import annotations

from servesim.latency import LATENCIES, Completed, pooled_gaps
from servesim.records import Run
from servesim.report.axes import Axis, axis_of_seconds, linear
from servesim.report.figure import Figure, Panel
from servesim.report.material import Material
from servesim.report.svg import HEIGHT, WIDTH, Point, steps_path
from servesim.report.timeline import STYLES, run_keys
from servesim.stats import Sample, Values, nearest_rank

METRICS = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency", "e2e": "E2E"}
COLUMNS = 400
EXACT = 400  # values up to which every one is a step of its own


def latency_cdfs(material: Material) -> Figure | None:
    """Return a panel for each latency that any run knows, one curve a run; SLO limits stand upright."""
    runs = material.runs[:STYLES]
    panels = []
    for metric, name in METRICS.items():
        samples = [
            (number, sample)
            for number, named in enumerate(runs)
            if (sample := sample_of(named.run, metric)) is not None and sample.count
        ]
        if not samples:
            continue
        limits = [slo for named in runs for slo in named.slos if slo.metric == metric]
        ends = [value for _, sample in samples for value in _typical(sample)]
        x = axis_of_seconds(name, [*ends, *(slo.limit_s for slo in limits)])
        panel = Panel(x, linear("share, %", 0.0, 1.0, divisor=0.01), 150)
        for number, sample in samples:
            panel.mark(steps_path(curve(panel.x, sample)), f"line s{number}")
        for row, slo in enumerate(dict.fromkeys(limits)):
            panel.upright(slo.limit_s, str(slo), row=row)
        panels.append(panel)
    if not panels:
        return None
    return Figure(
        name="latency",
        title="Latencies",
        caption="The share of completed requests (ITL: of all gaps between tokens) that took at most the time below. "
        "Percentiles are nearest rank; what failed is in no curve. A curve that ends on the right edge ends at 100 %.",
        panels=panels,
        keys=run_keys(runs, "line"),
        columns=2,
    )


def sample_of(run: Run, metric: str) -> Sample | None:
    """Return the values of a metric in seconds, ready to be asked by rank; None where nothing completed."""
    done = Completed(run)
    if not done.count:
        return None
    return pooled_gaps(run, done) if metric == "itl" else Values(LATENCIES[metric](done))


def curve(x: Axis, sample: Sample) -> list[Point]:
    """Return the points of a sample's distribution, from nothing to all of it; it never falls.

    Few values are each a step; of many, every so manieth place is one.
    """
    count, place = sample.count, x.placer(WIDTH)
    if count <= EXACT:
        steps = [(place(sample.at(rank)), rank) for rank in range(1, count + 1)]
    else:
        steps = [(at, sample.up_to(x.value(at / WIDTH))) for at in range(0, WIDTH + 1, WIDTH // COLUMNS)]
    return [(0, HEIGHT), *((at, HEIGHT - round(HEIGHT * rank / count)) for at, rank in steps), (WIDTH, 0)]


def _typical(sample: Sample) -> list[float]:
    """Return the percentiles that decide how an axis is drawn, with the smallest and the largest."""
    count = sample.count
    return [sample.at(rank) for rank in (1, *(nearest_rank(share, count) for share in range(5, 100, 5)), count)]
