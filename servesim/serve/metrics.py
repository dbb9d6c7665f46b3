"""What a server counts about itself beside its dialect's page: how late its steps were, its process, its HTTP.

Counters, gauges and histograms with labels are those of a Prometheus client library, and no more than is used here.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from servesim.wire.prometheus import Family, Sample, format_number, format_page

if TYPE_CHECKING:
    from servesim.serve.engine_clock import EngineClock
    from servesim.serve.generation import EndedStep, Generation, StepTokens

Labels = Mapping[str, str]


class Counter:
    """A number that grows, or a gauge that is set; one for each set of labels that was ever named."""

    __slots__ = ("_rows", "about", "kind", "name")

    def __init__(self, name: str, about: str, kind: str = "counter", rows: Iterable[Labels] = ({},)) -> None:
        self.name = name
        self.about = about
        self.kind = kind
        self._rows: dict[tuple[tuple[str, str], ...], float] = {tuple(row.items()): 0.0 for row in rows}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(labels.items())
        self._rows[key] = self._rows.get(key, 0.0) + amount

    def set(self, value: float, **labels: str) -> None:
        self._rows[tuple(labels.items())] = value

    def value(self, **labels: str) -> float:
        return self._rows.get(tuple(labels.items()), 0.0)

    def families(self, common: Labels, created_s: float | None) -> list[Family]:
        """Return it as a family; a counter has a second one that says when it began, as the Python client writes it."""
        found = [self._family(self.name, self.kind, common, None)]
        if created_s is not None and self.kind == "counter":
            found.append(self._family(f"{self.name.removesuffix('_total')}_created", "gauge", common, created_s))
        return found

    def _family(self, name: str, kind: str, common: Labels, fixed: float | None) -> Family:
        samples = tuple(
            Sample(name, in_order(common, dict(key)), value if fixed is None else fixed)
            for key, value in self._rows.items()
        )
        return Family(name=name, kind=kind, about=self.about, samples=samples)


class Histogram:
    """Counts of observed values by bucket; one for each set of labels that was ever named.

    A "summary" shows only how many there were and their sum.
    """

    __slots__ = ("_rows", "about", "bounds", "kind", "name")

    def __init__(
        self, name: str, about: str, bounds: Sequence[float], rows: Iterable[Labels] = ({},), kind: str = "histogram"
    ) -> None:
        self.name = name
        self.about = about
        self.kind = kind
        self.bounds = tuple(bounds)
        self._rows: dict[tuple[tuple[str, str], ...], tuple[list[int], list[float]]] = {
            tuple(row.items()): self._empty() for row in rows
        }

    def _empty(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self.bounds) + 1), [0.0]

    def observe(self, value: float, count: int = 1, **labels: str) -> None:
        row = self._rows.get(tuple(labels.items()))
        if row is None:
            row = self._rows[tuple(labels.items())] = self._empty()
        row[0][bisect_left(self.bounds, value)] += count
        row[1][0] += value * count

    def count(self, **labels: str) -> int:
        return sum(self._rows[tuple(labels.items())][0])

    def quantile_bound(self, fraction: float) -> float:
        """Return the upper bound of the bucket in which the quantile lies; infinite beyond the last, 0 without data."""
        counts = [sum(column) for column in zip(*(row[0] for row in self._rows.values()), strict=True)]
        left = math.ceil(fraction * sum(counts))
        for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
            left -= count
            if left <= 0:
                return bound if sum(counts) else 0.0
        return math.inf

    def families(self, common: Labels, created_s: float | None) -> list[Family]:
        samples: list[Sample] = []
        created: list[Sample] = []
        for key, (counts, total) in self._rows.items():
            labels, running = dict(key), 0
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                running += count
                if self.kind == "summary":
                    continue
                le = {"le": format_number(bound)}
                samples.append(Sample(f"{self.name}_bucket", in_order(common, labels, le), float(running)))
            samples.append(Sample(f"{self.name}_count", in_order(common, labels), float(running)))
            samples.append(Sample(f"{self.name}_sum", in_order(common, labels), total[0]))
            created.append(Sample(f"{self.name}_created", in_order(common, labels), created_s or 0.0))
        found = [Family(name=self.name, kind=self.kind, about=self.about, samples=tuple(samples))]
        if created_s is not None:
            found.append(Family(name=f"{self.name}_created", kind="gauge", about=self.about, samples=tuple(created)))
        return found


Instrument = Counter | Histogram


def in_order(*labels: Labels) -> dict[str, str]:
    """Return all labels in one, by name, as pages have them."""
    return dict(sorted(item for some in labels for item in some.items()))


LATENESS_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0015,
    0.002,
    0.003,
    0.004,
    0.005,
    0.0075,
    0.01,
    0.025,
    0.05,
    0.1,
    1,
)
_DURATION_BOUNDS_S = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    1.5,
    2,
    2.5,
    3,
    3.5,
    4,
    4.5,
    5,
    7.5,
    10,
    30,
    60,
)
_SILENT = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})  # vLLM leaves them out of its HTTP counts


class DialectMetrics(Protocol):
    """A server program's own metrics: hears what happens, writes its families."""

    def on_request(self, n: int, max_tokens: int) -> None: ...
    def on_step(self, step: EndedStep, tokens: StepTokens) -> None: ...
    def on_over(self, generation: Generation, reason: str, now: float) -> None: ...
    def on_refusal(self, reason: str) -> None: ...
    def families(self, clock: EngineClock) -> list[Family]: ...


class OwnMetrics:
    """servesim's own: is the server on time? `servesim:step_lateness_seconds` is the figure to look at."""

    def __init__(self) -> None:
        self.lateness = Histogram(
            "servesim:step_lateness_seconds",
            "Time from the end of a step to the moment its last token was written, in wall seconds.",
            LATENESS_BOUNDS_S,
        )
        self.steps = Counter("servesim:steps_total", "Steps of the simulated engine.")
        self.slipped = Counter(
            "servesim:clock_slipped_seconds_total", "Wall time that the engine was behind and did not catch up with."
        )
        self.tokens = Counter("servesim:output_tokens_total", "Output tokens handed out.")
        self.connections = Counter("servesim:connections", "Open connections.", "gauge")
        self.faults = Counter(
            "servesim:faults_total",
            "Faults that were asked for and done.",
            rows=[{"kind": kind} for kind in ("fail", "stall", "cut")],
        )
        self.speed = Counter("servesim:speed", "How many times as fast as real the engine's clock runs.", "gauge")
        self.free_blocks = Counter("servesim:free_blocks", "KV blocks without a holder.", "gauge")
        self.num_blocks = Counter("servesim:num_blocks", "Usable KV blocks.", "gauge")

    def on_step(self, tokens: StepTokens, lateness_s: float) -> None:
        """Count a step whose last token was written `lateness_s` after its end."""
        self.steps.add()
        self.tokens.add(tokens.count)
        self.lateness.observe(max(0.0, lateness_s))

    def families(self, clock: EngineClock) -> list[Family]:
        self.speed.set(clock.speed)
        self.slipped.set(clock.slipped_s)
        self.free_blocks.set(clock.last.free_blocks)
        self.num_blocks.set(clock.config.num_blocks)
        instruments: Sequence[Instrument] = (
            self.lateness,
            self.steps,
            self.slipped,
            self.tokens,
            self.connections,
            self.faults,
            self.speed,
            self.free_blocks,
            self.num_blocks,
        )
        return [family for instrument in instruments for family in instrument.families({}, None)]


class HttpMetrics:
    """Requests by handler, as the instrumentator in front of vLLM counts them."""

    def __init__(self) -> None:
        self.created_s = time.time()
        self._requests = Counter(
            "http_requests_total", "Total number of requests by method, status and handler.", rows=()
        )
        size = "Content length of {} by handler. Only value of header is respected. Otherwise ignored. "
        size += "No percentile calculated. "
        self._received = Histogram("http_request_size_bytes", size.format("incoming requests"), (), (), "summary")
        self._sent = Histogram("http_response_size_bytes", size.format("outgoing responses"), (), (), "summary")
        self._highr = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            _DURATION_BOUNDS_S,
        )
        self._durations = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
            (0.1, 0.5, 1),
            (),
        )

    def on_answer(self, handler: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count an answer; `handler` is the route, or "none"."""
        if handler in _SILENT:
            return
        self._requests.add(handler=handler, method=method, status=f"{status // 100}xx")
        self._received.observe(received, handler=handler)
        self._sent.observe(sent, handler=handler)
        self._highr.observe(seconds)
        self._durations.observe(seconds, handler=handler, method=method)

    def families(self) -> list[Family]:
        instruments = (self._requests, self._received, self._sent, self._highr, self._durations)
        return [family for instrument in instruments for family in instrument.families({}, self.created_s)]


class ProcessMetrics:
    """What every Python client library says of its process; a scraper knows a restart by the start time."""

    def __init__(self) -> None:
        self.started_s = time.time()

    def families(self) -> list[Family]:
        collected, uncollectable, runs = (
            Counter(f"python_gc_{name}_total", about, rows=())
            for name, about in (
                ("objects_collected", "Objects collected during gc"),
                ("objects_uncollectable", "Uncollectable objects found during GC"),
                ("collections", "Number of times this generation was collected"),
            )
        )
        for number, stats in enumerate(gc.get_stats()):
            collected.set(stats["collected"], generation=str(number))
            uncollectable.set(stats["uncollectable"], generation=str(number))
            runs.set(stats["collections"], generation=str(number))
        info = Counter("python_info", "Python platform information", "gauge", rows=())
        major, minor, patch = platform.python_version_tuple()
        info.set(
            1.0,
            implementation=platform.python_implementation(),
            major=major,
            minor=minor,
            patchlevel=patch,
            version=platform.python_version(),
        )
        usage = resource.getrusage(resource.RUSAGE_SELF)
        virtual, resident = _memory_bytes(usage.ru_maxrss)
        found: list[Instrument] = [collected, uncollectable, runs, info]
        for name, kind, about, value in (
            ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", virtual),
            ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident),
            ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", self.started_s),
            (
                "cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                usage.ru_utime + usage.ru_stime,
            ),
            ("open_fds", "gauge", "Number of open file descriptors.", _open_files()),
            ("max_fds", "gauge", "Maximum number of open file descriptors.", _file_limit()),
        ):
            counter = Counter(f"process_{name}", about, kind)
            counter.set(value)
            found.append(counter)
        return [family for instrument in found for family in instrument.families({}, None)]


class Metrics:
    """Everything that a server counts, and its page."""

    def __init__(self, dialect: DialectMetrics) -> None:
        self.dialect = dialect
        self.own = OwnMetrics()
        self.http = HttpMetrics()
        self.process = ProcessMetrics()

    def on_step(self, step: EndedStep, tokens: StepTokens, lateness_s: float) -> None:
        self.own.on_step(tokens, lateness_s)
        self.dialect.on_step(step, tokens)

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        self.dialect.on_over(generation, reason, now)

    def page(self, clock: EngineClock) -> str:
        """Return the page in the Prometheus text format."""
        return format_page(
            [
                *self.process.families(),
                *self.dialect.families(clock),
                *self.http.families(),
                *self.own.families(clock),
            ]
        )


def _memory_bytes(peak: int) -> tuple[int, int]:
    """Return (virtual, resident) memory; where the system does not tell, the peak stands for both."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = file.read().split()
        size = os.sysconf("SC_PAGE_SIZE")
        return int(pages[0]) * size, int(pages[1]) * size
    except (OSError, ValueError):
        peak_bytes = peak if sys.platform == "darwin" else peak * 1024
        return peak_bytes, peak_bytes


def _open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue
    return 0


def _file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
