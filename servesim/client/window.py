"""What a server's own metric pages say about a window of time: the deltas between two scrapes and those in between.

Everything is in servesim's words, whichever server it was; what a server does not offer is None. Counters are followed
from page to page and series by series, so that a restart inside the window costs what was not yet scraped and is
counted, and several engines add up or are averaged as the quantity demands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from servesim.catalog.servers import MEAN, PROCESS_START, SERVERS, ServerDialect, dialect_of
from servesim.runs.records import GaugeSample
from servesim.wire.prometheus import Page, Sample, parse_page

PERCENTILES = (50, 90, 95, 99)
Labels = tuple[tuple[str, str], ...]


def server_window(
    before: str | Page,
    after: str | Page,
    samples: Iterable[str | Page] = (),
    *,
    window_s: float | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Return what happened on the server between two metric pages: the JSON `server` object of a run.

    Counters and histograms are the growth from `before` to `after`; gauges are means and maxima over `samples`, the
    pages scraped in between (over the two pages themselves when there are none). Times of histograms are in seconds:
    `{count, mean, p50, p90, p95, p99}`, each percentile an interval `{gt, le}` whose open side is None.
    """
    first, last = _page(before), _page(after)
    inside = [_page(page) for page in samples]
    dialect = dialect_of([*last.samples, *first.samples])
    if window_s is None and first.at_s is not None and last.at_s is not None:
        window_s = last.at_s - first.at_s
    window = _Window([first, *inside, last], inside or [first, last], dialect)
    prompt, computed, cached = map(window.growth, ("prompt_tokens", "computed_prompt_tokens", "cached_prompt_tokens"))
    if prompt is None and computed is not None:
        prompt = computed + (cached or 0)
    mean_batch, mean_batch_from = window.mean_batch()
    kv_mean, kv_peak = window.gauge("kv_usage")
    return {
        "dialect": dialect.name if dialect else None,
        "version": version,
        "window_s": window_s,
        "mean_batch": mean_batch,
        "mean_batch_from": mean_batch_from,
        "tokens_per_step": _ratio(window.growth("iteration_tokens"), window.growth("iterations")),
        "running": dict(zip(("mean", "max"), window.gauge("running"), strict=True)),
        "waiting": dict(zip(("mean", "max"), window.gauge("waiting"), strict=True)),
        "kv_mean": kv_mean,
        "kv_peak": kv_peak,
        "preemptions": _whole(window.growth("preemptions")),
        "prefix_hit_rate": window.prefix_hit_rate(prompt, cached),
        "prompt_tokens": _whole(prompt),
        "cached_tokens": _whole(cached if cached is not None else window.growth("prefix_hits")),
        "output_tokens": _whole(window.growth("output_tokens")),
        **{key: window.histogram(key) for key in ("ttft", "itl", "tpot", "queue", "e2e")},
        "counter_resets": window.resets(),
        "scrapes": len(inside),
    }


def gauge_sample(page: Page) -> GaugeSample | None:
    """Return a page's gauges as one sample of a run, None when the page is not one of a known server."""
    dialect = dialect_of(page.samples)
    if dialect is None:
        return None

    def now(key: str) -> float | None:
        metric = dialect.metrics.get(key)
        values = [sample.value for sample in _named(page, metric.names)] if metric else []
        return None if not values else sum(values) / (len(values) if metric and metric.across == MEAN else 1)

    return GaugeSample(
        at_s=page.at_s or 0.0,
        running=int(now("running") or 0),
        waiting=int(now("waiting") or 0),
        kv_blocks=None,
        kv_fraction=now("kv_usage"),
        preemptions=int(now("preemptions") or 0),
        output_tokens=int(now("output_tokens") or 0),
    )


def setup_facts(page: Page) -> dict[str, str]:
    """Return what a server's page says about its configuration (vLLM's `cache_config_info`), under its own names."""
    dialect = dialect_of(page.samples)
    metric = dialect.metrics.get("setup") if dialect else None
    found = _named(page, metric.names) if metric else []
    return dict(found[0].labels) if found else {}


def wanted_names() -> frozenset[str]:
    """Return the sample names that any dialect reads: what a scraper need parse of a page."""
    return frozenset().union(*(dialect.names() for dialect in SERVERS.values()))


class _Window:
    """The pages of one window, in order, in one dialect."""

    def __init__(self, pages: Sequence[Page], gauges: Sequence[Page], dialect: ServerDialect | None) -> None:
        self.pages = [page for page in pages if any(page.samples.values())]
        self.gauges = gauges
        self.metrics = dialect.metrics if dialect else {}
        self.restarts = _restarts(self.pages)

    def growth(self, key: str) -> float | None:
        """Return how much a counter grew, over all its series; None when the server does not have it."""
        name = self._name(key)
        return None if name is None else sum(self._growths(name).values())

    def gauge(self, key: str) -> tuple[float | None, float | None]:
        """Return the mean and the maximum of a gauge over the pages.

        A sum over engines page by page; or, for a fraction, their mean, and the maximum over engines and pages.
        """
        metric = self.metrics.get(key)
        if metric is None:
            return None, None
        rows = [[sample.value for sample in _named(page, metric.names)] for page in self.gauges]
        rows = [row for row in rows if row]
        if not rows:
            return None, None
        if metric.across == MEAN:
            return _mean([_mean(row) for row in rows]), max(map(max, rows))
        return _mean([sum(row) for row in rows]), max(map(sum, rows))

    def mean_batch(self) -> tuple[float | None, str | None]:
        """Return the mean number of sequences per step of the window, and what it was reckoned from."""
        decodes = self.growth("decodes")
        if decodes is not None and (means := self._name("mean_busy_slots")) is not None:
            # A running mean since the start: (a1*d1 - a0*d0) / (d1 - d0), from restart to restart.
            counts = self._name("decodes") or ""
            busy = sum(self._growths(counts, lambda page, sample: _busy_steps(page, means, sample)).values())
            return _ratio(busy, decodes), "n_busy_slots_per_decode"
        # vLLM: every sequence that a step advances to its end gets one token, speculative decoding aside.
        ratio = _ratio(self.growth("output_tokens"), self.growth("iterations"))
        return ratio, None if ratio is None else "output_tokens / iterations"

    def prefix_hit_rate(self, prompt: float | None, cached: float | None) -> float | None:
        """Return hit over looked-up tokens, from counters where there are any."""
        hits = self.growth("prefix_hits")
        if hits is not None:
            return _ratio(hits, self.growth("prefix_queries"))
        if cached is not None:
            return _ratio(cached, prompt)
        return self.gauge("hit_rate")[0]

    def histogram(self, key: str) -> dict[str, Any] | None:
        """Return a histogram's growth as `{count, mean, p50, ...}`; None when nothing was observed."""
        name = self._name(key, "_bucket")
        if name is None:
            return None
        stem = name.removesuffix("_bucket")
        below: dict[float, float] = {}  # upper bound -> observations up to it, over all series
        for labels, count in self._growths(name).items():
            bound = _bound(dict(labels).get("le", ""))
            if bound is not None:
                below[bound] = below.get(bound, 0.0) + count
        total = below.get(math.inf, 0.0)
        if total <= 0:
            return None
        sums = sum(self._growths(f"{stem}_sum").values()) if self._has(f"{stem}_sum") else None
        intervals = {f"p{percentile}": _interval(below, percentile, total) for percentile in PERCENTILES}
        return {"count": _whole(total), "mean": _ratio(sums, total), **intervals}

    def resets(self) -> int:
        """Return how many times the server's counters started again inside the window."""
        count = 0
        names = [name for key in self.metrics if (name := self._name(key)) and self.metrics[key].type == "counter"]
        for index in range(1, len(self.pages)):
            earlier, later = self.pages[index - 1], self.pages[index]
            fell = any(
                _series(later, name).get(labels, sample).value < sample.value
                for name in names
                for labels, sample in _series(earlier, name).items()
            )
            count += fell or self.restarts[index]
        return count

    def _name(self, key: str, suffix: str = "") -> str | None:
        """Return the name under which the last page that has a metric has it."""
        metric = self.metrics.get(key)
        if metric is None:
            return None
        for page in reversed(self.pages):
            for name in metric.names:
                if page.finite(name + suffix):
                    return name + suffix
        return None

    def _has(self, name: str) -> bool:
        return any(page.finite(name) for page in self.pages)

    def _growths(
        self, name: str, measure: Callable[[Page, Sample], float] = lambda _, sample: sample.value
    ) -> dict[Labels, float]:
        """Return the growth of every series called `name`, of the series itself or of a measure that restarts with it.

        A series that appears inside the window began at 0; one that falls began again at 0.
        """
        grown: dict[Labels, float] = {}
        known: dict[Labels, tuple[float, float]] = {}  # the last value and its measure
        for index, page in enumerate(self.pages):
            for labels, sample in _series(page, name).items():
                measured = measure(page, sample)
                value, base = known.get(labels, (sample.value, measured) if index == 0 else (0.0, 0.0))
                if sample.value < value or self.restarts[index]:
                    base = 0.0
                grown[labels] = grown.get(labels, 0.0) + measured - base
                known[labels] = (sample.value, measured)
        return grown


def _page(page: str | Page) -> Page:
    return parse_page(page) if isinstance(page, str) else page


def _named(page: Page, names: Sequence[str]) -> list[Sample]:
    return next((found for name in names if (found := page.finite(name))), [])


def _series(page: Page, name: str) -> dict[Labels, Sample]:
    return {tuple(sorted(sample.labels.items())): sample for sample in page.finite(name)}


def _start(page: Page) -> float | None:
    found = page.finite(PROCESS_START)
    return found[0].value if found else None


def _restarts(pages: Iterable[Page]) -> list[bool]:
    """Return of every page whether the server is another process than the last page that said so knew."""
    restarts: list[bool] = []
    known: float | None = None
    for page in pages:
        start = _start(page)
        restarts.append(known is not None and start is not None and start != known)
        known = known if start is None else start
    return restarts


def _busy_steps(page: Page, means: str, decodes: Sample) -> float:
    """Return the sum over decodes so far of the busy slots in each."""
    mean = _series(page, means).get(tuple(sorted(decodes.labels.items())))
    return mean.value * decodes.value if mean else 0.0


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > -math.inf else None  # false for NaN, too


def _interval(below: dict[float, float], percentile: int, total: float) -> dict[str, float | None]:
    """Return the bucket that holds the nearest-rank percentile, `gt` below and `le` at its upper bound."""
    rank = math.ceil(percentile / 100 * total)
    gt: float | None = None
    for bound in sorted(below):
        if below[bound] >= rank:
            return {"gt": gt, "le": None if math.isinf(bound) else bound}
        gt = bound
    return {"gt": gt, "le": None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)
