"""The live page without a browser: its feed, its figures, its controls and who may use them, traffic and incident."""

from __future__ import annotations

import http.client
import json
import math
import time
import unittest
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from unittest.mock import patch

from servesim.config.build import build_server
from servesim.config.server import ServerSpec
from servesim.live.attach import attach
from servesim.live.controls import SCENARIOS, plan_incident
from servesim.live.meter import CHARTS, LiveFigures, Meter, Trail
from servesim.live.page import FILES
from tests.serve_case import PATIENCE_S, LiveServer

L4: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "l4-24gb"}
JSON = {"content-type": "application/json"}


class LivePage(LiveServer):
    """A server with its page, as `serve` has it."""

    def __init__(self, engine: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(engine, **options)
        self.live = attach(self.serving)

    def steer(self, asked: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, _, body = self.ask("POST", "/live/control", asked, JSON | (headers or {}))
        return status, json.loads(body)

    def wait_until(self, what: Any, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            if time.monotonic() > deadline:
                raise AssertionError("it never came to that")
            time.sleep(0.01)


class Viewer:
    """Reads a feed."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.request("GET", "/live/feed")
        self.response = self._connection.getresponse()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, data) until the stream ends."""
        name = ""
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[len("event: ") :]
            elif text.startswith("data: "):
                yield name, json.loads(text[len("data: ") :])

    def next(self, wanted: str) -> Any:
        return next(data for name, data in self.events() if name == wanted)


class TheFeed(unittest.TestCase):
    def test_a_viewer_hears_what_is_shown_then_samples_and_a_late_one_the_history(self) -> None:
        began_s = time.time()
        with LivePage() as server:
            viewer = Viewer(server.port)
            self.addCleanup(viewer.close)
            self.assertEqual(viewer.response.getheader("content-type"), "text/event-stream; charset=utf-8")
            hello = viewer.next("hello")
            self.assertEqual(hello["sources"], ["server"])
            self.assertEqual([chart["title"] for chart in hello["charts"]], [chart.title for chart in CHARTS.values()])
            sample = viewer.next("sample")
            self.assertEqual(sample["server"].keys(), {field.name for field in fields(LiveFigures)})
            self.assertTrue(round(began_s, 3) <= sample["at_s"] <= round(time.time(), 3), sample)
            late = Viewer(server.port)
            self.addCleanup(late.close)
            again = late.next("hello")
            self.assertEqual(again["id"], hello["id"])
            self.assertIn(sample, again["history"])

    def test_how_many_look_is_bounded_and_one_who_leaves_makes_room(self) -> None:
        with LivePage(max_connections=8) as server:
            viewers = [Viewer(server.port) for _ in range(3)]
            for viewer in viewers:
                self.addCleanup(viewer.close)
            self.assertEqual([viewer.response.status for viewer in viewers], [200, 200, 503])
            viewers[0].close()
            server.wait_until(lambda: self.status_of_another(server) == 200)

    def status_of_another(self, server: LivePage) -> int:
        viewer = Viewer(server.port)
        self.addCleanup(viewer.close)
        return viewer.response.status

    def test_a_server_that_is_told_to_stop_waits_for_no_viewer(self) -> None:
        server = LivePage(grace_s=3600.0)
        with server:
            server.steer({"traffic": {"on": True, "rate": 50}})
            viewer = Viewer(server.port)
            self.addCleanup(viewer.close)
            viewer.next("sample")
        self.assertEqual(server.loop.cut_off, 0)
        self.assertEqual([name for name, _ in viewer.events() if name not in ("sample", "state")], [])

    def test_every_line_of_a_chart_is_a_figure(self) -> None:
        names = [name for chart in CHARTS.values() for name in chart.lines]
        self.assertEqual(sorted(names), sorted(field.name for field in fields(LiveFigures)))


class TheMeter(unittest.TestCase):
    def test_figures_are_those_of_the_last_seconds_and_percentiles_are_nearest_rank(self) -> None:
        meter = Meter(0.0, window_s=5.0)
        for number in range(1, 21):
            meter.first_token(0.1 * number, number / 10)
        meter.tokens(100)
        meter.completed(2.0, 0.02)
        meter.completed(2.0, None)
        figures = meter.figures(2.0, running=3, preempted_per_s=2.0)
        self.assertEqual(figures.ttft_p95_s, 1.9)
        self.assertAlmostEqual(figures.ttft_mean_s or math.nan, 1.05)
        self.assertEqual((figures.tpot_mean_s, figures.tpot_p95_s), (0.02, 0.02))
        self.assertEqual((figures.output_tokens_per_s, figures.completed_per_s), (50.0, 1.0))
        self.assertEqual((figures.running, figures.waiting, figures.preempted_per_s), (3, None, 2.0))
        later = meter.figures(60.0)
        self.assertEqual((later.ttft_mean_s, later.tpot_p95_s, later.output_tokens_per_s), (None, None, 0.0))

    def test_a_trail_forgets_what_is_older_than_its_window(self) -> None:
        trail = Trail(0.0, window_s=5.0)
        for second in range(1, 11):
            trail.add(float(second), 10.0 * second)
        self.assertEqual(trail.growth, 50.0)

    def test_a_rate_is_true_whenever_its_samples_come(self) -> None:
        for every_s in (0.25, 0.49, 0.501, 0.77, 3.0, 7.0):
            trail = Trail(0.0, window_s=5.0)
            for number in range(1, 40):
                trail.add(number * every_s, 100.0 * number * every_s)
                self.assertAlmostEqual(trail.rate, 100.0, msg=f"{every_s} {number}")


class WhoMaySteer(unittest.TestCase):
    def test_a_page_from_elsewhere_may_not(self) -> None:
        with LivePage() as server:
            own = f"127.0.0.1:{server.port}"
            allowed: list[dict[str, str]] = [
                {},
                {"origin": f"http://{own}"},
                {"host": f"localhost:{server.port}", "origin": f"http://localhost:{server.port}"},
                {"host": "[::1]:8000"},
                {"sec-fetch-site": "same-origin"},
            ]
            for headers in allowed:
                with self.subTest(headers=headers):
                    self.assertEqual(server.steer({}, headers)[0], 200)
            refused = [
                ({"origin": "http://evil.example"}, 403),
                ({"origin": "null"}, 403),
                ({"origin": "http://[::1"}, 403),  # no URL at all: it must not end the server
                ({"origin": f"http://127.0.0.1:{server.port + 1}"}, 403),
                ({"host": "evil.example"}, 403),
                ({"host": f"evil.example:{server.port}", "origin": f"http://evil.example:{server.port}"}, 403),
                ({"host": "127.0.0.1.evil.example"}, 403),
                ({"sec-fetch-site": "cross-site"}, 403),
                ({"sec-fetch-site": "same-site"}, 403),
                ({"content-type": "text/plain"}, 415),
                ({"content-type": "application/x-www-form-urlencoded"}, 415),
            ]
            for headers, status in refused:
                with self.subTest(headers=headers):
                    self.assertEqual(server.steer({"traffic": {"on": True}}, headers)[0], status)
            self.assertEqual(server.steer({"padding": "x" * 5000})[0], 413)
            self.assertFalse(server.live.traffic.spec.on)

    def test_what_makes_no_sense_is_told_and_changes_nothing(self) -> None:
        with LivePage() as server:
            before = server.steer({})[1]
            for asked, word in (
                (b"{", "Expecting"),
                (b"[]", "object"),
                ({"trafic": {}}, "traffic"),
                ({"traffic": []}, "object"),
                ({"traffic": {"rte": 1}}, "rate"),
                ({"traffic": {"rate": 0}}, "rate"),
                (b'{"traffic": {"rate": NaN}}', "rate"),
                ({"traffic": {"rate": 1e9}}, "rate"),
                ({"traffic": {"on": 1}}, "on"),
                ({"traffic": {"prompt_tokens": "many"}}, "prompt_tokens"),
                ({"engine": {"max_num_seqs": 0}}, "max_num_seqs"),
                ({"engine": {"max_num_batched_tokens": 8}}, "max_num_seqs"),
                ({"engine": {"kv_blocks": 8}}, "engine option"),
                ({"engine": 5}, "object"),
                ({"scenario": "tuesday"}, "scenario"),
                ({"scenario": 1}, "scenario"),
                (b"[" * 3000, ""),
            ):
                with self.subTest(asked=asked):
                    status, told = server.steer(asked)
                    self.assertEqual(status, 400, told)
                    self.assertIn(word, told["error"])
            self.assertEqual(server.steer({})[1], before)
            self.assertEqual(server.ask("GET", "/live/control")[0], 405)

    def test_with_an_api_key_the_page_only_looks_on(self) -> None:
        with patch.dict("os.environ", {"SERVESIM_TEST_KEY": "secret"}):
            server = LivePage(api_key_env="SERVESIM_TEST_KEY")
        with server:
            for path in FILES:
                self.assertEqual(server.ask("GET", path)[0], 200)
            self.assertEqual(server.ask("POST", "/live/control", {}, JSON)[0], 404)
            viewer = Viewer(server.port)
            self.addCleanup(viewer.close)
            self.assertIsNone(viewer.next("hello")["controls"])

    def test_the_page_runs_nobody_elses_scripts_and_stands_in_nobody_elses_frame(self) -> None:
        with LivePage() as server:
            for path, (_, content_type) in FILES.items():
                status, headers, body = server.ask("GET", path)
                self.assertEqual((status, headers["content-type"]), (200, content_type))
                self.assertIn("default-src 'none'; script-src 'self'", headers["content-security-policy"])
                self.assertIn("frame-ancestors 'none'", headers["content-security-policy"])
                self.assertNotIn(b"http://", body.replace(b"http://www.w3.org/2000/svg", b""))
                self.assertNotIn(b"https://", body)
                self.assertEqual(server.ask("HEAD", path)[2], b"")


class Controls(unittest.TestCase):
    def test_another_option_starts_the_engine_again_and_the_pages_requests_are_sent_again(self) -> None:
        with LivePage(L4, speed=5.0) as server:
            body = json.dumps({"prompt": "hello", "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
            stranger = server.open()
            self.addCleanup(stranger.close)
            head = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(body)
            stranger.sendall(head + body)
            self.assertTrue(stranger.recv(4096))
            server.steer({"traffic": {"on": True, "rate": 100, "prompt_tokens": 100, "output_tokens": 4000}})
            server.wait_until(lambda: server.live.traffic.in_flight > 20)
            server.steer({"traffic": {"on": False}})
            held = server.live.traffic.in_flight
            status, state = server.steer({"engine": {"max_num_seqs": 4, "max_num_batched_tokens": 512}})
            self.assertEqual(status, 200, state)
            self.assertEqual(state["engine"]["max_num_seqs"], 4)
            self.assertEqual(server.live.traffic.in_flight, held)
            while stranger.recv(1 << 16):
                pass  # its stream is cut
            server.wait_until(lambda: server.app.clock.engine.num_running == 4)
            server.steer({"scenario": "calm"})
            server.wait_until(lambda: server.app.clock.idle)
            self.assertEqual(server.metric("servesim:free_blocks"), server.metric("servesim:num_blocks"))
            self.assertEqual(server.live.traffic.in_flight, 0)

    def test_the_incident_fills_queue_and_cache_and_its_fix_drains_them(self) -> None:
        with LivePage(L4, speed=30.0) as server:
            viewer = Viewer(server.port)
            self.addCleanup(viewer.close)
            controls = viewer.next("hello")["controls"]
            self.assertTrue(controls["state"]["can_happen"])
            status, state = server.steer({"scenario": "incident"})
            self.assertEqual((status, state["scenario"]), (200, "incident"))
            clock = server.app.clock
            server.wait_until(lambda: clock.waiting > 20 and clock.last.free_blocks < 0.2 * clock.config.num_blocks)
            state = server.steer({"scenario": "fix"})[1]
            self.assertEqual((state["scenario"], state["engine"]["prefix_caching"]), ("fixed", True))
            self.assertIsNot(server.app.clock, clock)
            server.wait_until(lambda: server.app.clock.waiting < 10 and server.app.clock.engine.totals.hit_tokens > 1e5)
            marks = []
            for name, data in viewer.events():
                if name == "mark":
                    marks.append(data["text"])
                if name == "sample" and (data["server"]["prefix_hit_rate"] or 0) > 0.5:
                    break
            self.assertEqual(marks, ["Monday", "caching on"])

    def test_requests_that_the_server_can_never_serve_are_turned_away_and_told(self) -> None:
        with LivePage(engine={"max_num_queued_reqs": 0}, speed=1.0) as server:
            server.steer({"traffic": {"on": True, "rate": 200, "prompt_tokens": 100, "output_tokens": 10}})
            server.wait_until(lambda: server.live.traffic.refused > 3)
            state = server.steer({"engine": {"max_num_seqs": 300}})[1]
            self.assertGreater(state["refused"], 3)
            self.assertEqual(state["refusal"], "max num queued reqs")


class TheIncident(unittest.TestCase):
    def plan(self, **engine: Any) -> Any:
        return plan_incident(build_server(ServerSpec(**engine)), 1.0)

    def test_on_an_l4_it_is_the_readmes(self) -> None:
        incident = self.plan(**L4)
        self.assertEqual((incident.burst, incident.room, incident.within_s), (46, 19, 3.5))
        self.assertEqual((incident.traffic.prompt_tokens, incident.traffic.shared_tokens), (1365, 1024))
        self.assertTrue(0.9 < incident.traffic.rate < 1.4, incident)

    def test_it_is_cut_to_the_measure_of_other_servers(self) -> None:
        large = self.plan(model="llama-3.1-8b", hardware="h100-sxm-80gb")
        self.assertGreater(large.traffic.rate, 5.0)
        short = self.plan(**L4, max_model_len=512)
        self.assertLess(short.traffic.prompt_tokens + short.traffic.output_tokens, 512)

    def test_a_server_whose_slots_share_nothing_or_that_is_too_fast_has_none(self) -> None:
        self.assertIsNone(self.plan(**L4, slots=4))
        self.assertIsNone(self.plan(model="smollm2-135m-q8_0", hardware="h100-sxm-80gb"))
        with LivePage(L4 | {"slots": 4}) as server:
            status, told = server.steer({"scenario": "incident"})
            self.assertEqual(status, 400)
            self.assertIn("slots never share", told["error"])

    def test_every_scenario_has_a_button(self) -> None:
        with LivePage() as server:
            page = server.ask("GET", "/")[2].decode()
        for name in SCENARIOS:
            self.assertIn(f'<button type="button" id="{name}">', page)


if __name__ == "__main__":
    unittest.main()
