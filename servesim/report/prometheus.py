"""A report as a metric page: what a run came to, for a text-file collector, a push gateway, or a diff.

Histograms have the bounds of vLLM's own (its `/metrics` page, 0.18 to 0.33), so that the same dashboard query reads
both. Every sample carries the run's name, source and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servesim.catalog.servers import VLLM_ITL_BOUNDS_S, VLLM_REQUEST_BOUNDS_S, VLLM_TTFT_BOUNDS_S
from servesim.report.charts import sample_of
from servesim.report.input import ReportInput, ReportRun, number_at, swept_value
from servesim.stats import Sample
from servesim.wire.prometheus import Family, format_openmetrics, format_page, histogram, single

HISTOGRAMS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "ttft": ("servesim_time_to_first_token_seconds", "First token minus sent.", VLLM_TTFT_BOUNDS_S),
    "tpot": (
        "servesim_time_per_output_token_seconds",
        "Last minus first token over the tokens between.",
        VLLM_ITL_BOUNDS_S,
    ),
    "itl": ("servesim_inter_token_latency_seconds", "Gaps between tokens, pooled over requests.", VLLM_ITL_BOUNDS_S),
    "e2e": ("servesim_e2e_request_latency_seconds", "Last token minus sent.", VLLM_REQUEST_BOUNDS_S),
    "queue": ("servesim_request_queue_time_seconds", "First admitting step minus sent.", VLLM_REQUEST_BOUNDS_S),
}
"""Metric of a run -> name, help and bounds in seconds of its histogram."""

Labels = Mapping[str, str]


def metric_page(report: ReportInput) -> str:
    """Return the page of all runs; of a grid, its rows' main figures with the swept values as labels."""
    return format_page(_families(report))


def openmetrics_page(report: ReportInput) -> str:
    """Return the same page as OpenMetrics."""
    return format_openmetrics(_families(report))


def _families(report: ReportInput) -> list[Family]:
    runs = [(named, _labels(named)) for named in report.runs]
    return [*_run_families(runs), *_grid_families(report)]


def _labels(named: ReportRun) -> dict[str, str]:
    return {
        "run": named.name,
        "source": named.run.source,
        "model_name": str(named.run.config.get("model") or ""),
    }


def _run_families(runs: Sequence[tuple[ReportRun, Labels]]) -> list[Family]:
    if not runs:
        return []
    outcomes = ("completed", "failed", "rejected", "unfinished")
    families = [
        single(
            "servesim_requests_total",
            "counter",
            "Requests by how they ended.",
            [
                ({**labels, "outcome": name}, getattr(named.summary.requests, name))
                for named, labels in runs
                for name in outcomes
            ],
        ),
        single(
            "servesim_request_errors_total",
            "counter",
            "Failed and rejected requests by kind.",
            [
                ({**labels, "kind": kind}, count)
                for named, labels in runs
                for kind, count in named.summary.errors.items()
            ],
        ),
        _figure(runs, "servesim_prompt_tokens_total", "counter", "Prompt tokens.", "tokens", "prompt"),
        _figure(runs, "servesim_generation_tokens_total", "counter", "Output tokens.", "tokens", "output"),
        _figure(runs, "servesim_duration_seconds", "gauge", "First send to last token.", "duration_s"),
        _figure(
            *(runs, "servesim_output_tokens_per_second", "gauge", "Output tokens over the duration."),
            *("throughput", "output_tokens_per_s"),
        ),
        _figure(runs, "servesim_steps_total", "counter", "Steps of the engine.", "engine", "steps"),
        _figure(runs, "servesim_mean_batch", "gauge", "Scheduled requests per step.", "engine", "mean_batch"),
        _figure(runs, "servesim_kv_cache_peak_ratio", "gauge", "Peak share of KV in use.", "engine", "kv_peak"),
        _figure(runs, "servesim_kv_cache_mean_ratio", "gauge", "Mean share of KV in use.", "engine", "kv_mean"),
        _figure(runs, "servesim_preemptions_total", "counter", "Preemptions.", "engine", "preemptions"),
        _figure(runs, "servesim_goodput_ratio", "gauge", "Requests within all objectives.", "goodput", "fraction"),
        single(
            "servesim_slo_met",
            "gauge",
            "1 where an objective was met, 0 where not.",
            [
                ({**labels, "metric": each.metric, "percentile": f"{each.percentile:g}"}, float(each.met))
                for named, labels in runs
                for each in named.summary.slo or ()
                if each.met is not None
            ],
        ),
    ]
    families += [_histogram(runs, metric) for metric in HISTOGRAMS]
    return [family for family in families if family.samples]


def _figure(runs: Sequence[tuple[ReportRun, Labels]], name: str, kind: str, about: str, *path: str) -> Family:
    """Return a figure of the summary, of the runs that know it."""
    known = [(labels, number_at(named.summary.as_dict(), *path)) for named, labels in runs]
    return single(name, kind, about, [(labels, value) for labels, value in known if value is not None])


def _histogram(runs: Sequence[tuple[ReportRun, Labels]], metric: str) -> Family:
    name, about, bounds = HISTOGRAMS[metric]
    families = [
        histogram(name, about, labels, bounds=bounds, counts=counts_between(sample, bounds), total=sample.total())
        for named, labels in runs
        if (sample := sample_of(named.run, metric)) is not None and sample.count
    ]
    samples = tuple(sample for family in families for sample in family.samples)
    return Family(name=name, kind="histogram", about=about, samples=samples)


def counts_between(sample: Sample, bounds: Sequence[float]) -> list[int]:
    """Return how many values lie up to each bound and above the one before, and how many beyond the last."""
    below = [0, *map(sample.up_to, bounds), sample.count]
    return [there - here for here, there in zip(below, below[1:], strict=False)]


def _grid_families(report: ReportInput) -> list[Family]:
    figures = {
        "servesim_row_output_tokens_per_second": ("throughput", "output_tokens_per_s"),
        "servesim_row_ttft_p95_milliseconds": ("ttft_ms", "p95"),
        "servesim_row_tpot_p95_milliseconds": ("tpot_ms", "p95"),
        "servesim_row_e2e_mean_milliseconds": ("e2e_ms", "mean"),
    }
    families = []
    for name, path in figures.items():
        values = [
            ({"grid": grid.name, "row": str(number), **_swept(grid.swept, row)}, value)
            for grid in report.grids
            for number, row in enumerate(grid.rows)
            if (value := number_at(row, *path)) is not None
        ]
        about = f"{' '.join(path)} of a row of a grid."
        families.append(single(name, "gauge", about, values))
    return [family for family in families if family.samples]


def _swept(keys: Sequence[str], row: Mapping[str, object]) -> dict[str, str]:
    """Return the swept values as labels, of the keys that are label names."""
    named = (key for key in keys if key.isascii() and key.isidentifier() and key not in ("grid", "row"))
    return {key: str(swept_value(row, key)) for key in named}
