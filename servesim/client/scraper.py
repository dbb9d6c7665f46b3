"""The server's `/metrics` page: before the load, every second during it, and after it.

On a thread and a socket of its own. A page is stamped, compressed (which lets go of the interpreter's lock, as parsing
55 kB of a vLLM page would not) and put away; it is parsed when the load is over. A page that is slow or fails is a gap
in the samples, never a pause of the load.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from servesim.client.fetch import Fetcher, FetchError
from servesim.client.target import Target
from servesim.wire.prometheus import Page, parse_page

METRICS = "/metrics"


@dataclass(slots=True, frozen=True)
class RawPage:
    """A page as it came. `at_s`: the middle between asking and having it, on the scraper's clock."""

    at_s: float
    packed: bytes

    def parse(self, wanted: Collection[str] | None = None) -> Page:
        """Read the page, or only the metrics that are `wanted` by name."""
        return parse_page(zlib.decompress(self.packed).decode("utf-8", "replace"), at_s=self.at_s, wanted=wanted)


class Scraper:
    """Collects the pages of one run.

    `first()` takes the page before the load, `start()` begins the periodic ones, `stop()` ends them and takes the last.
    A server without the page is asked once. Not known here: what the metrics mean (`catalog.servers`).
    """

    def __init__(
        self,
        target: Target,
        *,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pages: list[RawPage] = []
        self._fetcher = Fetcher(target, timeout_s)
        self._interval_s = interval_s
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def offered(self) -> bool:
        """Whether the server has the page."""
        return bool(self.pages)

    def first(self) -> bool:
        """Take the page before the load; return whether the server offers one."""
        self._scrape()
        if not self.offered:
            self._fetcher.close()
        return self.offered

    def start(self) -> None:
        """Scrape every `interval_s` from now on, if the first page came."""
        if self.offered and self._thread is None:
            self._thread = threading.Thread(target=self._scrape_on, name="metrics", daemon=True)
            self._thread.start()

    def stop(self) -> list[RawPage]:
        """End the periodic scrapes, take the page after the load, and return all pages in order."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        if self.offered:
            self._scrape()
        self._fetcher.close()
        return self.pages

    def _scrape_on(self) -> None:
        due = self._clock() + self._interval_s
        while not self._ended.wait(max(0.0, due - self._clock())):
            self._scrape()
            due = max(due + self._interval_s, self._clock())  # a slow page is not made up for

    def _scrape(self) -> None:
        sent = self._clock()
        try:
            answer = self._fetcher.get(METRICS)
        except FetchError:
            return
        received = self._clock()
        if answer.ok and answer.body:
            self.pages.append(RawPage((sent + received) / 2, zlib.compress(answer.body, 1)))
