"""The live page in a real browser: it loads clean, its knobs turn, it survives a restart, hands and phones can use it.

Without Chromium these are skipped; `make e2e` installs it and keeps the screenshots in `.cache/e2e/`.
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any

from servesim.live.attach import attach
from tests import serve_case
from tests.browser import Browser, find_chromium
from tests.extent import once

ENGINE: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "l4-24gb"}
SPEED = 10.0
SHOTS = os.environ.get("SERVESIM_E2E_SHOTS")

LIVE = "document.getElementById('status').dataset.state === 'live'"
SAMPLES = "seen.samples.length"


def state(path: str) -> str:
    return f"controls && controls.state.{path}"


class Page(serve_case.LiveServer):
    """A server with its page."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(ENGINE, speed=SPEED, port=port)
        self.live = attach(self.serving)
        self.page = f"{self.url}/"


@once
class LivePageInABrowser(unittest.TestCase):
    browser: Browser

    @classmethod
    def setUpClass(cls) -> None:
        chromium = find_chromium()
        if chromium is None:
            raise unittest.SkipTest("there is no Chromium here; make e2e installs it")
        cls.browser = Browser(chromium)
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self) -> None:
        self.browser.problems.clear()

    def shot(self, name: str) -> None:
        if SHOTS:
            self.browser.screenshot(Path(SHOTS) / f"{name}.png")

    def figure(self, name: str) -> Any:
        return self.browser.evaluate(f"(seen.samples.at(-1) || {{}}).server?.{name}")

    def slide(self, name: str, position: int) -> None:
        """Move a slider as a hand does: events and all."""
        self.browser.evaluate(
            f"(() => {{ const e = document.getElementById('{name}'); e.value = {position};"
            " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def test_sliders_and_scenario_move_the_figures_and_the_console_stays_clean(self) -> None:
        browser = self.browser
        with Page() as server:
            browser.open(server.page)
            browser.wait_for(LIVE, "live")
            browser.wait_for(SAMPLES, "the first sample")
            self.assertEqual(self.figure("running"), 0)
            self.shot("desktop-light-fresh")
            browser.click("#on")
            browser.wait_for("seen.samples.at(-1).server.running > 0", "requests run")
            self.slide("output_tokens", 20)
            browser.wait_for(f"{state('traffic.output_tokens')} < 10", "shorter outputs")
            self.assertLess(server.live.traffic.spec.output_tokens, 10)
            self.slide("rate", 10)
            browser.wait_for(f"{state('traffic.rate')} < 3", "a lower rate")
            self.slide("max_num_seqs", 30)
            browser.wait_for(f"{state('engine.max_num_seqs')} < 20", "fewer sequences")
            self.assertLess(server.app.clock.config.max_num_seqs, 20)
            self.slide("max_num_seqs", 95)
            browser.wait_for(f"{state('engine.max_num_seqs')} > 500", "more sequences")
            browser.click("#incident")
            browser.wait_for(state("scenario") + " === 'incident'", "the incident")
            browser.wait_for("seen.samples.at(-1).server.waiting > 20", "a queue")
            browser.wait_for("seen.samples.at(-1).server.kv_usage > 0.9", "a full cache")
            browser.listen(10.0 if SHOTS else 0.0)
            self.shot("desktop-light-incident")
            browser.click("#fix")
            browser.wait_for("seen.samples.at(-1).server.prefix_hit_rate > 0.5", "prefix hits")
            browser.wait_for("seen.samples.at(-1).server.waiting < 10", "the queue drains", 30.0)
            self.assertTrue(server.app.clock.config.prefix_caching)
            self.assertEqual(browser.evaluate("seen.marks.map((mark) => mark.text)")[-2:], ["Monday", "caching on"])
            self.shot("desktop-light-fixed")
            browser.open(server.page, dark=True)
            browser.wait_for(SAMPLES + " > 10", "the history")
            self.shot("desktop-dark")
            for scheme in (False, True):
                browser.open(server.page, 390, 844, dark=scheme)
                browser.wait_for(SAMPLES + " > 10 && controls", "the history")
                self.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), 390)
                self.shot(f"phone-{'dark' if scheme else 'light'}")
            narrow = browser.evaluate(
                "[...document.querySelectorAll('button, input')].map((e) => e.getBoundingClientRect())"
                ".filter((r) => r.left < 0 || r.right > 390 || r.width < 15).length"
            )
            self.assertEqual(narrow, 0)
        self.assertEqual(browser.problems, [])

    def test_it_says_reconnecting_while_the_server_is_away_and_goes_on_when_it_is_back(self) -> None:
        browser = self.browser
        with Page() as server:
            port = server.port
            browser.open(server.page)
            browser.wait_for(f"{LIVE} && {SAMPLES} > 2", "live")
            had = browser.evaluate("seen.samples[0].at_s")
        browser.wait_for("document.getElementById('status').textContent === 'reconnecting'", "reconnecting")
        self.shot("desktop-light-reconnecting")
        with Page(port):
            browser.wait_for(LIVE, "live again")
            browser.wait_for("seen.marks.some((mark) => mark.text === 'server restarted')", "the mark of the restart")
            self.assertEqual(browser.evaluate("seen.samples[0].at_s"), had, "what was seen before is still there")
            browser.wait_for(f"seen.samples.at(-1).at_s > {had} + 1", "new samples")
        unexpected = [each for each in browser.problems if "ERR_" not in each]  # of connections while it was away
        self.assertEqual(unexpected, [])

    def test_everything_can_be_done_with_the_keyboard(self) -> None:
        browser = self.browser
        focused = "document.activeElement && document.activeElement.id"
        with Page() as server:
            browser.open(server.page)
            browser.wait_for(f"{LIVE} && controls", "live")
            order = []
            for _ in range(11):
                browser.press("Tab")
                order.append(browser.evaluate(focused))
            self.assertEqual(
                order,
                "incident fix calm on rate prompt_tokens output_tokens shared max_num_seqs max_num_batched_tokens "
                "prefix_caching".split(),
            )
            browser.press(" ")
            browser.wait_for(state("engine.prefix_caching"), "prefix caching by the space bar")
            browser.evaluate("document.getElementById('rate').focus()")
            before = browser.evaluate(state("traffic.rate"))
            browser.press("ArrowLeft")
            browser.press("ArrowLeft")
            browser.wait_for(f"{state('traffic.rate')} < {before}", "a lower rate by the arrow keys")
            self.assertIn(
                "a second", browser.evaluate("document.getElementById('rate').getAttribute('aria-valuetext')")
            )
            browser.evaluate("document.getElementById('incident').focus()")
            browser.press("Enter")
            browser.wait_for(state("scenario") + " === 'incident'", "the incident by the return key")
            unnamed = browser.evaluate(
                "[...document.querySelectorAll('input, button')].filter("
                "(e) => !(e.labels && e.labels.length) && !e.textContent.trim()).length"
            )
            self.assertEqual(unnamed, 0)
        self.assertEqual([each for each in browser.problems if "ERR_" not in each], [])

    def test_a_refused_wish_is_told_and_the_sliders_go_back(self) -> None:
        browser = self.browser
        with Page() as server:
            browser.open(server.page)
            browser.wait_for(f"{LIVE} && controls", "live")
            self.slide("max_num_batched_tokens", 30)  # below max_num_seqs
            browser.wait_for("!document.getElementById('notice').hidden", "a notice")
            self.assertIn("max_num_seqs", browser.evaluate("document.getElementById('notice').textContent"))
            self.assertEqual(server.app.clock.config.max_num_batched_tokens, 8192)
            self.assertEqual(browser.evaluate(state("engine.max_num_batched_tokens")), 8192)


if __name__ == "__main__":
    unittest.main()
