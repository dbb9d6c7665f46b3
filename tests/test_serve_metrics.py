"""The pages of metrics: the names, types, labels and buckets of the captured servers, and figures that add up."""

from __future__ import annotations

import unittest
from typing import Any

from servesim.wire.prometheus import Page, parse_page
from tests.serve_case import CAPTURES, LiveServer

CHAT = "/v1/chat/completions"


def captured(name: str) -> Page:
    return parse_page((CAPTURES / name).read_text().split("\n\n", 1)[-1])


def page_of(server: LiveServer) -> Page:
    return parse_page(server.ask("GET", "/metrics")[2].decode())


def forms(page: Page, prefix: str) -> dict[str, set[Any]]:
    """Return, by sample name, the sets of labels that it comes with, and the buckets among them."""
    found: dict[str, set[Any]] = {}
    for name, samples in page.samples.items():
        if name.startswith(prefix):
            found[name] = {
                frozenset((k, v) for k, v in sample.labels.items() if k != "model_name") for sample in samples
            }
    return found


class AsVllm(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = LiveServer({"max_model_len": 1024}, served_model_name="tiny")
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)
        ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        cls.server.post(CHAT, ask)
        cls.server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "n": 2})
        cls.server.post("/tokenize", {"prompt": "x"})
        cls.server.ask("GET", "/v1/models")
        cls.server.ask("GET", "/nope")
        cls.page = page_of(cls.server)
        cls.want = captured("vllm-metrics-after-load.txt")

    def test_every_family_of_vllm_is_there_with_its_type_and_help(self) -> None:
        for name, kind in self.want.types.items():
            with self.subTest(name):
                self.assertEqual(self.page.types.get(name), kind)
                if not name.startswith(("python_", "process_")):
                    self.assertEqual(self.page.helps[name], self.want.helps[name])

    def test_every_sample_of_vllm_has_its_labels_and_buckets(self) -> None:
        got, want = forms(self.page, "vllm:"), forms(self.want, "vllm:")
        config = [{label for label, _ in next(iter(found.pop("vllm:cache_config_info")))} for found in (got, want)]
        self.assertEqual(config[0], config[1])
        for name, labels in want.items():
            with self.subTest(name):
                self.assertEqual(got[name], labels)
                order = [list(sample.labels) for sample in self.want.samples[name]]
                self.assertEqual([list(sample.labels) for sample in self.page.samples[name]], order)

    def test_the_page_is_well_formed_and_of_vllms_content_type(self) -> None:
        self.assertEqual(self.page.malformed_lines, 0)
        fields = self.server.ask("GET", "/metrics")[1]
        self.assertEqual(fields["content-type"], "text/plain; version=1.0.0; charset=utf-8")

    def test_its_figures_add_up(self) -> None:
        def value(name: str, **labels: str) -> float:
            (found,) = [s.value for s in self.page.samples[name] if labels.items() <= s.labels.items()]
            return found

        self.assertEqual(value("vllm:generation_tokens_total"), 5 + 6)
        prompt = value("vllm:prompt_tokens_total")
        self.assertEqual(value("vllm:request_prompt_tokens_sum"), prompt)
        self.assertEqual(value("vllm:iteration_tokens_total_sum"), prompt + 11)
        self.assertEqual(value("vllm:request_success_total", finished_reason="length"), 3)
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
            self.assertEqual(value(f"vllm:{name}_count"), 3)
        self.assertEqual(value("vllm:inter_token_latency_seconds_count"), 11 - 3)
        self.assertEqual(value("vllm:request_params_n_sum"), 3)
        self.assertEqual(value("vllm:request_params_n_count"), 2)
        self.assertEqual(value("vllm:num_requests_running"), 0)
        self.assertEqual(value("vllm:kv_cache_usage_perc"), 0)
        self.assertEqual(value("http_requests_total", handler="none"), 1)
        self.assertEqual(value("servesim:step_lateness_seconds_count"), value("servesim:steps_total"))
        inference = value("vllm:request_inference_time_seconds_sum")
        parts = value("vllm:request_prefill_time_seconds_sum") + value("vllm:request_decode_time_seconds_sum")
        self.assertAlmostEqual(inference, parts)


class AsLlamaCpp(unittest.TestCase):
    def test_its_families_are_llamacpps_and_its_throughputs_start_anew_with_each_scrape(self) -> None:
        with LiveServer({"slots": 2, "kv_tokens": 4096}, dialect="llamacpp") as server:
            server.post(CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5})
            page, again = page_of(server), page_of(server)
            want = captured("llamacpp-metrics-after.txt")
            mine = {name: kind for name, kind in page.types.items() if name.startswith("llamacpp:")}
            self.assertEqual(mine, want.types)
            self.assertEqual({name: page.helps[name] for name in mine}, want.helps)

            def value(of: Page, name: str) -> float:
                return of.samples[f"llamacpp:{name}"][0].value

            self.assertEqual(value(page, "tokens_predicted_total"), 5)
            self.assertEqual(value(page, "n_decode_total"), 5)
            self.assertEqual(value(page, "n_busy_slots_per_decode"), 1)
            self.assertGreater(value(page, "predicted_tokens_seconds"), 0)
            self.assertEqual(value(again, "predicted_tokens_seconds"), 0)
            self.assertEqual(value(again, "tokens_predicted_total"), 5)


if __name__ == "__main__":
    unittest.main()
