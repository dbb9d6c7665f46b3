"""Reads the `/metrics` page of a real server again and again and gives its live metrics, whichever server it is."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from servesim.catalog.servers import SERVERS, ServerDialect, dialect_of, metrics_hint
from servesim.client.fetch import Fetcher, FetchError
from servesim.client.scraper import METRICS, RawPage
from servesim.client.setup import read_setup
from servesim.client.target import Target
from servesim.client.window import gauge_sample, server_window, wanted_names
from servesim.errors import RunError
from servesim.live.meter import WINDOW_S, LiveFigures
from servesim.wire.prometheus import Page, parse_page

NOTHING = LiveFigures()
MIN_PAGES = 3  # that a window has room for, however seldom it is read


@dataclass(slots=True, frozen=True)
class LiveSample:
    """What was seen at Unix time `at_s`; `error` says why nothing was."""

    at_s: float
    figures: LiveFigures = NOTHING
    error: str | None = None


class PageWatcher:
    """Fetches the page for every sample. Its absence for a while is a gap; counters that restart begin again at 0."""

    def __init__(self, target: Target, *, interval_s: float = 1.0, timeout_s: float = 5.0) -> None:
        self.dialect: ServerDialect | None = None
        self._target = target
        self._fetcher = Fetcher(target, timeout_s)
        self._window_s = max(WINDOW_S, MIN_PAGES * interval_s)
        self._pages: deque[Page] = deque()

    def close(self) -> None:
        self._fetcher.close()

    def begin(self) -> str:
        """Take the first page and return what the server says it is. Raises RunError where there is none to watch."""
        answer = self._fetcher.get(METRICS)
        url = f"{self._target.url}{METRICS}"
        if answer.status in (401, 403):
            raise RunError(f"{url} wants an API key (HTTP {answer.status}); see --api-key-env")
        if not answer.ok:
            raise RunError(f"{url} answers HTTP {answer.status}; {metrics_hint()}")
        page = self._parsed(answer.body)
        self.dialect = dialect_of(page.samples)
        if self.dialect is None:
            raise RunError(f"{url} is the page of no known server: {', '.join(SERVERS)}")
        self._pages.append(page)
        facts = read_setup(self._target, RawPage(page.at_s or 0.0, zlib.compress(answer.body, 1)))
        words = [self.dialect.name, str(facts.get("version", ""))]
        model = facts.get("model")
        return " ".join(filter(None, words)) + (f", {model}" if model else "")

    def sample(self) -> LiveSample:
        """Take a page and return the figures of the last seconds."""
        try:
            answer = self._fetcher.get(METRICS)
        except FetchError as error:
            return LiveSample(time.time(), error=str(error))
        if not answer.ok:
            return LiveSample(time.time(), error=f"{METRICS} answers HTTP {answer.status}")
        page = self._parsed(answer.body)
        self.dialect = dialect_of(page.samples) or self.dialect
        pages = self._pages
        pages.append(page)
        while len(pages) > 2 and (pages[1].at_s or 0.0) <= (page.at_s or 0.0) - self._window_s:
            pages.popleft()
        return LiveSample(time.time(), self._figures())

    def _parsed(self, body: bytes) -> Page:
        return parse_page(body.decode("utf-8", "replace"), at_s=monotonic(), wanted=wanted_names())

    def _figures(self) -> LiveFigures:
        pages = list(self._pages)
        window = server_window(pages[0], pages[-1], pages[1:-1])
        seconds = window["window_s"] or 0.0

        def rate(count: float | None) -> float | None:
            return None if count is None or seconds <= 0 else count / seconds

        gauges, known = gauge_sample(pages[-1]), self.dialect.metrics if self.dialect else {}
        ttft, tpot = window["ttft"] or {}, window["tpot"] or window["itl"] or {}
        return LiveFigures(
            output_tokens_per_s=rate(window["output_tokens"]),
            ttft_mean_s=ttft.get("mean"),
            ttft_p95_s=(ttft.get("p95") or {}).get("le"),
            tpot_mean_s=tpot.get("mean", self._mean_tpot(pages[0], pages[-1])),
            tpot_p95_s=(tpot.get("p95") or {}).get("le"),
            running=gauges.running if gauges and "running" in known else None,
            waiting=gauges.waiting if gauges and "waiting" in known else None,
            kv_usage=gauges.kv_fraction if gauges else None,
            prefix_hit_rate=window["prefix_hit_rate"],
            completed_per_s=rate((window["e2e"] or {}).get("count", 0)) if "e2e" in known else None,
            preempted_per_s=rate(window["preemptions"]),
        )

    def _mean_tpot(self, first: Page, last: Page) -> float | None:
        """Return the mean time of a token where a server counts seconds and tokens instead of keeping a histogram."""
        metrics = self.dialect.metrics if self.dialect else {}
        if not {"output_seconds", "output_tokens"} <= metrics.keys():
            return None
        seconds, tokens = (
            sum(_total(page, metrics[key].names) * sign for page, sign in ((last, 1), (first, -1)))
            for key in ("output_seconds", "output_tokens")
        )
        return seconds / tokens if tokens > 0 and seconds >= 0 else None


class WatchThread:
    """Takes a sample every `interval_s` on a thread of its own and calls `on_sample` with it, there."""

    def __init__(self, watcher: PageWatcher, on_sample: Callable[[LiveSample], None], interval_s: float) -> None:
        self._watcher = watcher
        self._on_sample = on_sample
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        due_s = monotonic() + self._interval_s
        while not self._ended.wait(max(0.0, due_s - monotonic())):
            self._on_sample(self._watcher.sample())
            due_s = max(due_s + self._interval_s, monotonic())


def _total(page: Page, names: tuple[str, ...]) -> float:
    return next((sum(sample.value for sample in found) for name in names if (found := page.finite(name))), 0.0)
