"""Tests of `servesim loadgen` as a person runs it, against a server that does what a script says."""

from __future__ import annotations

import doctest
import gzip
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from servesim.cli import loadgen as load_plan
from servesim.client import measurement as livefile
from servesim.client.measurement import LiveFile, Measurer
from servesim.config.workload import WorkloadSpec
from servesim.runs.reader import read_saved
from servesim.runs.records import Run
from servesim.workload.traces.trace import TRACE_FORMATS, read_trace
from tests.command import ROOT, Said, servesim
from tests.runs import measured
from tests.serve_case import PATIENCE_S, eventually
from tests.truth_server import (
    DONE,
    FINISH,
    HEAD_OF_STREAM,
    LAST_CHUNK,
    RESET,
    ROLE,
    Asked,
    Step,
    TruthServer,
    answer,
    chunk,
    content,
    event,
    usage,
)

TEMPLATE_TOKENS = 10
MODELS = {"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]}


def json_answer(value: object, status: str = "200 OK") -> list[Step]:
    return [Step(0.0, answer(status, json.dumps(value).encode(), "Content-Type: application/json"))]


def prompt_tokens(asked: Asked) -> int:
    return TEMPLATE_TOKENS + len(asked.json()["messages"][0]["content"].split())


def stream_of(tokens: int, prompt: int, *, ttft_s: float = 0.002, gap_s: float = 0.002) -> list[Step]:
    steps = [Step(0.0, HEAD_OF_STREAM + chunk(event(ROLE)))]
    steps += [Step(gap_s if number else ttft_s, chunk(event(content("a")))) for number in range(tokens)]
    return [*steps, Step(0.0, chunk(event(FINISH) + event(usage(tokens, prompt)) + DONE) + LAST_CHUNK)]


class Model:
    """A server with one model that gives every request the tokens it asks for, and counts words as tokens."""

    def __init__(self, post: Callable[[Asked], list[Step]] | None = None, **pages: Callable[[], list[Step]]) -> None:
        self.posts: list[Asked] = []
        self.gets: list[Asked] = []
        self._post = post
        self._pages = {"models": lambda: json_answer(MODELS), **pages}

    def __call__(self, asked: Asked) -> list[Step]:
        method, path, _ = asked.line.split(" ", 2)
        if method == "GET":
            self.gets.append(asked)
            page = self._pages.get(path.rsplit("/", 1)[-1])
            return json_answer({"error": {"message": "not found"}}, "404 Not Found") if page is None else page()
        self.posts.append(asked)
        if self._post is not None:
            return self._post(asked)
        return stream_of(asked.json()["max_tokens"], prompt_tokens(asked))


def loadgen(server: TruthServer, *argv: str) -> Said:
    return servesim("loadgen", "--url", server.url, *argv)


SHORT = ("--requests", "6", "--concurrency", "2", "--max-tokens", "5", "--prompt-tokens", "40")


class LoadgenCase(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def path(self, name: str, text: str | None = None) -> str:
        path = self.folder / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        return str(path)

    def document(self, server: TruthServer, *argv: str, code: int = 0) -> dict:
        said = loadgen(server, *argv, "--json")
        self.assertEqual(said.code, code, said)
        found: dict = json.loads(said.out)
        return found


class ReportTest(LoadgenCase):
    def test_a_run_prints_the_simulators_block_and_what_only_a_client_knows(self) -> None:
        with TruthServer(Model()) as server:
            said = loadgen(server, *SHORT)
        self.assertEqual(said.code, 0, said)
        for line in (
            r"target       http://127\.0\.0\.1:\d+   chat   model toy",
            r"source       measured",
            r"requests     6 completed",
            r"             2 warm-up, not counted",
            r"tokens       240 prompt \(- cached\)   30 output",
            r"warm-up      ttft [\d.]+ ms   e2e [\d.]+ ms   \(cold\)",
            r"prompts      100.0% within max\(2 tokens, 1%\) of the asked length, error mean 0.0, max 0 tokens",
            r"client       (ok|marginal|saturated|-)   stamps late by .* ms \(p99\)   loop lag .* ms   CPU .*%",
            r"             in flight mean [\d.]+, max 2 of 2 asked   coalesced [\d.]+%",
        ):
            self.assertRegex(said.out, re.compile(f"^{line}", re.MULTILINE))
        self.assertLessEqual(max(map(len, said.out.splitlines())), 100)

    def test_the_document_is_one_summary_with_the_client_the_server_and_the_configuration(self) -> None:
        with TruthServer(Model()) as server:
            document = self.document(server, *SHORT, "--seed", "3")
        self.assertEqual(document["schema"], "servesim.summary/1")
        self.assertEqual((document["command"], document["source"], document["partial"]), ("loadgen", "measured", False))
        counts = {"offered": 6, "completed": 6, "failed": 0, "rejected": 0, "unfinished": 0, "warmup": 2}
        self.assertEqual({key: document["requests"][key] for key in counts}, counts)
        self.assertEqual((document["tokens"]["prompt"], document["tokens"]["output"]), (240, 30))
        self.assertEqual(document["ttft_ms"]["count"], 6)
        self.assertEqual(document["itl_ms"]["count"], 24)
        self.assertEqual(document["e2e_from_planned_ms"]["count"], 6)
        client = document["client"]
        self.assertEqual((client["concurrency"]["asked"], client["concurrency"]["max"], client["processes"]), (2, 2, 1))
        self.assertLessEqual(
            {"verdict", "loop_lag_ms", "coalesced_fraction", "cpu_fraction", "stale_reconnects"}, client.keys()
        )
        self.assertIsNone(document["server"])
        self.assertEqual(document["prompt_accuracy"]["within_tolerance"], 1.0)
        self.assertEqual([row["prompt_tokens"] for row in document["warmup"]], [50, 40])
        config = document["config"]
        self.assertEqual((config["model"], config["seed"], config["output_tokens"]), ("toy", 3, "5"))

    def test_the_servers_own_metrics_stand_beside_the_clients(self) -> None:
        pages = [(10, 1.0, 100), (20, 2.5, 160)]

        def metrics() -> list[Step]:
            decodes, mean, tokens = pages.pop(0) if len(pages) > 1 else pages[0]
            text = (
                f"llamacpp:n_decode_total {decodes}\nllamacpp:n_busy_slots_per_decode {mean}\n"
                f"llamacpp:tokens_predicted_total {tokens}\nllamacpp:requests_processing 2\n"
            )
            return [Step(0.0, answer("200 OK", text.encode()))]

        with TruthServer(Model(metrics=metrics, props=lambda: json_answer({"build_info": "b11434"}))) as server:
            document = self.document(server, *SHORT)
        self.assertEqual(document["server"]["dialect"], "llama.cpp")
        self.assertEqual(document["server"]["mean_batch"], 4.0)
        self.assertEqual(document["engine"]["mean_batch"], 4.0)
        self.assertEqual(document["server"]["output_tokens"], 60)
        self.assertEqual(document["server"]["running"], {"mean": 2.0, "max": 2.0})
        self.assertEqual(document["setup"]["slot_tokens"], 512)
        self.assertEqual(document["server"]["version"], "b11434")  # what a metric means depends on it

    def test_a_slow_metrics_page_moves_no_figure(self) -> None:
        def metrics() -> list[Step]:
            return [Step(0.4, answer("200 OK", b"llamacpp:n_decode_total 1\n"))]

        with TruthServer(Model(metrics=metrics)) as server:
            document = self.document(server, *SHORT)
        # Of the pages before and after the load, half of each is in the server's window and none in the client's.
        self.assertGreater(document["server"]["window_s"] - document["duration_s"], 0.39)

    def test_repeats_are_shown_with_their_spread(self) -> None:
        with TruthServer(Model()) as server:
            document = self.document(server, *SHORT, "--repeat", "3")
            said = loadgen(server, *SHORT, "--repeat", "3")
        self.assertEqual(len(document["repeats"]["ttft_p50_ms"]["values"]), 3)
        self.assertEqual(document["requests"]["offered"], 6)
        self.assertRegex(said.out, r"(?m)^3 repeats +mean +min +max +spread$")

    def test_several_processes_make_one_run(self) -> None:
        saved = self.path("run.jsonl")
        model = Model()
        with TruthServer(model) as server:
            document = self.document(server, *SHORT, "--processes", "2", "--save", saved)
        self.assertEqual((document["requests"]["completed"], document["client"]["processes"]), (6, 2))
        self.assertEqual(document["prompt_accuracy"]["max_error_tokens"], 0)
        self.assertEqual(len({asked.json()["messages"][0]["content"] for asked in model.posts}), 8)
        read = read_saved(saved)
        self.assertTrue(read.whole)
        self.assertEqual(len(read.run.records), 6)

    def test_what_a_server_says_of_itself_does_not_reach_the_terminal_as_it_is(self) -> None:
        models = {"data": [{"id": "\x1b[31mred\x07"}]}
        with TruthServer(Model(models=lambda: json_answer(models))) as server:
            said = loadgen(server, *SHORT)
        self.assertIn(r"model \x1b[31mred\x07", said.out)
        self.assertTrue((said.out + said.err).replace("\n", "").isprintable())

    def test_answers_that_are_not_what_was_asked_for_are_warned_of(self) -> None:
        message = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 40}}
        with TruthServer(Model(lambda asked: json_answer(message))) as server:
            self.assertIn("6 of 6 answers came whole, not as streams", loadgen(server, *SHORT).out)
            self.assertNotIn("came whole", loadgen(server, *SHORT, "--no-stream").out)
        broken = [Step(0.0, HEAD_OF_STREAM + chunk(b"data: {\n\n"))]
        with TruthServer(Model(lambda asked: broken + stream_of(5, 40)[1:])) as server:
            self.assertIn("6 events were not the JSON that they should be", loadgen(server, *SHORT).out)

    def test_what_is_written_to_a_file_is_not_printed(self) -> None:
        with TruthServer(Model()) as server:
            said = loadgen(server, *SHORT, "-o", self.path("report.txt"))
        self.assertEqual((said.code, said.out), (0, ""))
        self.assertIn("6 completed", Path(self.path("report.txt")).read_text())


class RequestTest(LoadgenCase):
    def test_what_is_asked_for_reaches_the_server(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            said = loadgen(
                server,
                *("--requests", "1", "--warmup", "0", "--output-tokens", "7", "--ignore-eos", "--min-tokens", "2"),
                *("--temperature", "0", "--extra-body", '{"top_k": 1}', "--header", "X-Team: search"),
            )
        self.assertEqual(said.code, 0, said)
        (asked,) = model.posts
        body = asked.json()
        del body["messages"]
        self.assertEqual(asked.line, "POST /v1/chat/completions HTTP/1.1")
        self.assertEqual(asked.headers["x-team"], "search")
        self.assertEqual(
            body,
            {
                "model": "toy",
                "max_tokens": 7,
                "min_tokens": 2,
                "ignore_eos": True,
                "temperature": 0.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "top_k": 1,
            },
        )

    def test_prompts_are_unique_and_land_on_the_asked_length(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            document = self.document(server, "--requests", "40", "--prompt-tokens", "30-300", "--max-tokens", "1")
        texts = [asked.json()["messages"][0]["content"] for asked in model.posts]
        self.assertEqual(len(set(texts)), 42)
        self.assertEqual(document["prompt_accuracy"]["within_tolerance"], 1.0)
        self.assertEqual(document["prompt_accuracy"]["max_error_tokens"], 0)

    def test_a_shared_prefix_is_shared_and_the_warm_up_has_none_of_it(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            loadgen(server, *SHORT, "--shared-prefix-tokens", "60")
        words = [asked.json()["messages"][0]["content"].split() for asked in model.posts]
        self.assertEqual({len(each) + TEMPLATE_TOKENS for each in words[2:]}, {100})
        self.assertEqual(len({tuple(each[:50]) for each in words[2:]}), 1)
        self.assertEqual(len({each[50] for each in words[2:]}), 6)
        self.assertNotEqual(words[1][:4], words[2][:4])

    def test_a_first_wave_can_be_spread(self) -> None:
        saved = self.path("run.jsonl")
        with TruthServer(Model()) as server:
            options = ("--concurrency", "4", "--requests", "4", "--warmup", "0", "--stagger", "200ms")
            self.document(server, *options, "--save", saved)
        records = read_saved(saved).run.records
        for index, planned_s in enumerate((0.0, 0.05, 0.1, 0.15)):
            self.assertAlmostEqual(records.planned_s[index], planned_s)
            self.assertGreaterEqual(records.sent_s[index], planned_s)

    def test_the_salt_of_a_run_makes_its_prompts_again(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            config = self.path("run.json", json.dumps(self.document(server, *SHORT)))
            again = self.document(server, "--config", config)
            other = self.document(server, *SHORT)
        texts = [asked.json()["messages"][0]["content"] for asked in model.posts]
        self.assertEqual(sorted(texts[:8]), sorted(texts[8:16]))
        self.assertFalse(set(texts[:8]) & set(texts[16:]))
        self.assertNotEqual(again["config"]["prompt_salt"], other["config"]["prompt_salt"])

    def test_given_prompts_are_sent_as_they_are_whatever_mark_the_file_begins_with(self) -> None:
        file = self.path("prompts.jsonl", '\ufeff{"prompt": "one", "output_tokens": 3}\n{"prompt": "two words"}\n')
        model = Model()
        with TruthServer(model) as server:
            document = self.document(server, "--prompts", file, "--max-tokens", "4", "--warmup", "0")
            self.document(server, "--prompt", "why?", "--requests", "2", "--max-tokens", "2", "--warmup", "0")
        said = [(asked.json()["messages"][0]["content"], asked.json()["max_tokens"]) for asked in model.posts]
        self.assertEqual(sorted(said[:2]), [("one", 3), ("two words", 4)])
        self.assertEqual(said[2:], [("why?", 2)] * 2)
        self.assertEqual((document["requests"]["completed"], document["prompt_accuracy"]), (2, None))

    def test_the_trace_that_drives_the_simulator_drives_the_load(self) -> None:
        rows = [{"arrival_s": 0.02 * n, "prompt_tokens": 30 + n, "output_tokens": 1 + n} for n in range(4)]
        trace = self.path("trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        model = Model()
        with TruthServer(model) as server:
            document = self.document(server, "--trace", trace, "--speed", "2", "--quiet")
        self.assertEqual([prompt_tokens(asked) for asked in model.posts[2:]], [30, 31, 32, 33])
        self.assertEqual([asked.json()["max_tokens"] for asked in model.posts[2:]], [1, 2, 3, 4])
        self.assertGreater(document["duration_s"], 0.025)

    def test_a_trace_from_standard_input_drives_every_row(self) -> None:
        trace = "".join(json.dumps({"arrival_s": at, "prompt_tokens": 30, "output_tokens": 2}) + "\n" for at in (0, 1))
        with (
            TruthServer(Model()) as server,
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.encode()))),
        ):
            document = self.document(server, "--trace", "-", "--speed", "50,100")
        self.assertEqual([row["requests"]["completed"] for row in document["rows"]], [2, 2])
        self.assertEqual(document["config"]["trace"], "-")

    def test_a_foreign_trace_of_any_format_drives_the_load_though_it_is_packed(self) -> None:
        folder, packed = ROOT / "fixtures" / "traces", self.path("packed.gz")
        formats = set()
        with TruthServer(Model()) as server:
            for sample in sorted(folder.glob("*.*")):
                if sample.name in ("README.md", "servesim.jsonl"):  # the latter pauses for seconds
                    continue
                trace = read_trace(str(sample), arrivals_required=False)
                formats.add(trace.format)
                Path(packed).write_bytes(gzip.compress(sample.read_bytes()))
                document = self.document(server, "--trace", packed, "--concurrency", "9", "--warmup", "0")
                said = document["requests"]["completed"], document["tokens"]["output"]
                self.assertEqual(said, (len(trace.requests), sum(trace.requests.output_tokens)), sample.name)
        self.assertEqual(formats | {"servesim"}, set(TRACE_FORMATS))

    def test_the_key_goes_to_every_route_and_is_written_nowhere(self) -> None:
        model = Model()
        saved = self.path("run.jsonl")
        with TruthServer(model) as server, mock.patch.dict(os.environ, {"TOY_KEY": "s3cret"}):
            said = loadgen(
                server, *SHORT, "--api-key-env", "TOY_KEY", "--header", "X-Pass: w0rd", "--json", "--save", saved
            )
        self.assertEqual(said.code, 0, said)
        for asked in [*model.gets, *model.posts]:
            self.assertEqual(asked.headers.get("authorization"), "Bearer s3cret", asked.line)
        written = said.out + said.err + Path(saved).read_text()
        self.assertNotIn("s3cret", written)
        self.assertNotIn("w0rd", written)
        self.assertEqual(json.loads(said.out)["config"]["header_names"], ["X-Pass"])

    def test_an_ipv6_address_and_a_whole_route_lead_to_the_same_server(self) -> None:
        if not socket.has_ipv6:
            self.skipTest("no IPv6")
        try:
            server = TruthServer(Model(), host="::1")
        except OSError:
            self.skipTest("no IPv6")
        with server:
            url = f"http://[::1]:{server.port}/v1/chat/completions/"
            said = servesim("loadgen", "--url", url, *SHORT)
        self.assertEqual(said.code, 0, said)
        self.assertIn(f"target       {url} ", said.out)

    def test_a_proxy_in_the_environment_is_not_used(self) -> None:
        dead = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        with TruthServer(Model()) as server, mock.patch.dict(os.environ, dead):
            self.assertEqual(loadgen(server, *SHORT).code, 0)

    def test_a_plain_generate_server_is_measured_end_to_end(self) -> None:
        def generate(asked: Asked) -> list[Step]:
            body = asked.json()
            words = len(body["prompt"].split())
            reply = {
                "text": "a b",
                "input_tokens": words,
                "output_tokens": body["max_output_tokens"],
                "latency_s": 0.25,
            }
            if words == 30:
                detail = [{"loc": ["body", "prompt"], "msg": "thirty is one too many"}]
                return json_answer({"detail": detail}, "422 Unprocessable Entity")
            return json_answer({**reply, "tokens_per_second": 8.0})

        with TruthServer(Model(generate)) as server:
            options = ("--api", "generate", "--requests", "2", "--max-tokens", "2", "--warmup", "0")
            document = self.document(server, *options, "--prompt-tokens", "20")
            failed = self.document(server, *options, "--prompt-tokens", "30", code=1)
            said = loadgen(server, *options, "--prompt-tokens", "20")
        self.assertEqual(document["server_timings"], {"latency_s": 0.25, "tokens_per_second": 8.0})
        self.assertIn("its own mean per request: latency_s 0.25   tokens_per_second 8.00", said.out)
        self.assertIsNone(document["ttft_ms"])
        self.assertEqual((document["e2e_ms"]["count"], document["tokens"]["output"]), (2, 4))
        self.assertEqual(failed["errors"], {"http_422": 2})
        self.assertIn("thirty is one too many", failed["failures"][0]["message"])


class GridTest(LoadgenCase):
    def test_a_list_of_lengths_is_a_scan_of_five_requests_after_three_warm_ups(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            said = loadgen(server, "--max-tokens", "2,4,8", "--prompt-tokens", "40")
            document = self.document(server, "--max-tokens", "2,8", "--prompt-tokens", "40", "--repeat", "2")
        self.assertEqual(said.code, 0, said)
        self.assertRegex(said.out, r"(?m)^scan of output tokens$")
        self.assertRegex(said.out, r"(?m)^E2E  = .* ms fixed \+ .* ms per output token")
        asked = [each.json()["max_tokens"] for each in model.posts]
        self.assertEqual(asked[:24], [2] * 8 + [4] * 8 + [8] * 8)
        self.assertEqual(asked[24:], [2] * 5 + [8] * 5)
        rows = document["scan"]["rows"]
        self.assertEqual(
            [(row["asked_tokens"], row["produced_tokens"], row["completed"]) for row in rows],
            [(2, 2.0, 2), (8, 8.0, 2)],
        )
        self.assertEqual([row["output_tokens"]["mean"] for row in document["rows"]], [2.0, 8.0])

    def test_a_scan_of_prompts_has_a_line_for_ttft(self) -> None:
        with TruthServer(Model()) as server:
            document = self.document(server, "--prompt-tokens", "20,200", "--max-tokens", "2")
        self.assertEqual(document["scan"]["axis"], "prompt_tokens")
        self.assertEqual([row["produced_tokens"] for row in document["scan"]["rows"]], [20.0, 200.0])
        self.assertIsNotNone(document["scan"]["ttft"])

    def test_asked_and_produced_that_differ_are_warned_of(self) -> None:
        with TruthServer(Model(lambda asked: stream_of(2, prompt_tokens(asked)))) as server:
            said = loadgen(server, "--max-tokens", "2,4", "--prompt-tokens", "40")
        self.assertIn("asked for 4 output tokens, got 2.0 on average; --ignore-eos", said.err)

    def test_two_lists_make_a_grid_and_every_run_a_file(self) -> None:
        with TruthServer(Model()) as server:
            document = self.document(
                server, "--concurrency", "1,2", "--max-tokens", "1,2", "--requests", "2", "--save", self.path("g.jsonl")
            )
        self.assertEqual(
            [row["swept"] for row in document["rows"]],
            [{"output_tokens": length, "concurrency": load} for length in ("1", "2") for load in (1, 2)],
        )
        names = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(len(names), 4)
        self.assertIn("g.output_tokens-1.concurrency-2.jsonl", names)

    def test_the_search_finds_the_highest_load_within_the_objective_and_saves_every_probe(self) -> None:
        def measure(self: Measurer, spec: WorkloadSpec, *, file: LiveFile, **options: object) -> Run:
            """Stand in for a server whose first token takes 10 ms for every request in flight."""
            first_s = 0.01 * (spec.concurrency or 0)
            run = measured(*({"times": [first_s, first_s + 0.01]} for _ in range(spec.requests or 0)))
            run.client = {"verdict": "ok" if first_s < 0.2 else "saturated"}
            file.begin(self.config(spec), {}, None)
            for index in range(len(run.records)):
                file.request(run, index)
            file.end(run)
            return run

        options = ("--find", "concurrency", "--save", self.path("probe.jsonl"), "--json", "--slo")
        with TruthServer(Model()) as server, mock.patch.object(Measurer, "measure", measure):
            found = json.loads(loadgen(server, *options, "ttft_p95=55ms").out)["found"]
            client = json.loads(loadgen(server, *options, "ttft_p95=1s").out)["found"]
            best = json.loads(loadgen(server, *options, "ttft_p95=1s", "--find-max", "12").out)["found"]
        self.assertEqual((found["concurrency"], found["next"], found["limit"]), (5, 6, "slo"))
        self.assertEqual([probe["concurrency"] for probe in found["probes"]], [1, 2, 4, 8, 6, 5, 5, 6])
        self.assertEqual((client["concurrency"], client["next"], client["limit"]), (19, 20, "client"))
        self.assertEqual((best["concurrency"], best["next"], best["limit"]), (12, None, "maximum"))
        saved = read_saved(self.path("probe.concurrency-6.2.jsonl"))
        self.assertEqual((saved.whole, saved.run.config["concurrency"], len(saved.run.records)), (True, 6, 50))

    def test_a_search_whose_client_is_saturated_from_the_start_does_not_blame_the_server(self) -> None:
        def measure(self: Measurer, spec: WorkloadSpec, **options: object) -> Run:
            run = measured({"times": [0.01, 0.02]})
            run.client = {"verdict": "saturated"}
            return run

        with TruthServer(Model()) as server, mock.patch.object(Measurer, "measure", measure):
            said = loadgen(server, "--find", "concurrency", "--slo", "ttft_p95=1s")
        self.assertEqual(said.code, 1)
        self.assertIn("nothing: at concurrency 1 the client is saturated already, and measures itself", said.out)

    def test_a_search_that_finds_nothing_exits_1(self) -> None:
        with TruthServer(Model()) as server:
            said = loadgen(
                server, "--find", "concurrency", "--slo", "ttft_p95=1us", "--requests", "2", "--max-tokens", "1"
            )
        self.assertEqual(said.code, 1)
        self.assertIn("no concurrency that was tried meets the objectives", said.out)


class EndTest(LoadgenCase):
    def test_bad_input_is_one_line_and_exit_2_before_anybody_is_asked(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            for argv, part in (
                (("--api", "chatt"), "unknown api 'chatt'; did you mean 'chat'"),
                (("--extra-body", "{"), "--extra-body is '{', must be a JSON object"),
                (("--header", "nonsense"), "a header must read 'Name: value'"),
                (("--api-key-env", "NO_SUCH_KEY"), "'NO_SUCH_KEY' for the API key is not set"),
                (("--prompts", "/no/such/file"), "cannot read /no/such/file"),
                (("--trace", "/no/such/trace"), "cannot read trace '/no/such/trace'"),
                (("--extra-body", '{"a": NaN}'), "nan is no json number"),
                (("--find", "concurrency", "--slo", "e2e=1s", "--find-max", "0.5"), "but the search starts at 1"),
                (("--prompt", "a", "--prompt-tokens", "9"), "prompt_tokens describes prompts that are made"),
                (("--find", "concurrency"), "find needs an --slo"),
                (("--find", "speed", "--slo", "e2e=1s"), "unknown search 'speed'"),
                (("--concurrency", "2", "--rate", "3"), "either a concurrency or a rate"),
                (("--max-tokens", "0"), "--output-tokens is '0'"),
                (("--temperature", "nan"), "--temperature"),
                (("--api", "ollama", "--ignore-eos"), "the ollama api has no field for ignore_eos"),
                (("--slo", "ttft"), "slo is 'ttft'"),
            ):
                with self.subTest(argv=argv):
                    said = loadgen(server, *argv)
                    self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said)
                    self.assertIn(part, said.err)
        self.assertEqual(model.posts + model.gets, [])
        self.assertIn("--url is missing", servesim("loadgen").err)

    def test_nobody_there_is_one_line_and_exit_1(self) -> None:
        with TruthServer(Model()) as server:
            url = server.url
        for address, part in ((url, "connection refused"), ("http://no.such.host.invalid", "cannot resolve")):
            with self.subTest(address=address):
                said = servesim("loadgen", "--url", address)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (1, "", 1), said)
                self.assertIn(part, said.err)

    def test_a_failed_request_is_told_with_status_and_message_and_exits_1(self) -> None:
        def post(asked: Asked) -> list[Step]:
            if asked.json()["max_tokens"] == 3:
                return json_answer({"error": {"message": "no threes", "type": "invalid"}}, "400 Bad Request")
            return stream_of(1, prompt_tokens(asked))

        rows = [{"arrival_s": 0, "prompt_tokens": 30, "output_tokens": tokens} for tokens in (1, 3, 1)]
        trace = self.path("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        with TruthServer(Model(post)) as server:
            said = loadgen(server, "--trace", trace)
        self.assertEqual(said.code, 1)
        self.assertRegex(said.out, r"(?m)^requests     3 offered = 2 completed \+ 1 failed")
        self.assertRegex(said.out, r"(?m)^failed       1 http_400: no threes$")

    def test_a_server_that_dies_half_way_leaves_what_was_measured(self) -> None:
        count = iter(range(100))

        def post(asked: Asked) -> list[Step]:
            steps = stream_of(5, prompt_tokens(asked))
            return steps if next(count) < 5 else [*steps[:3], Step(0.0, act=RESET)]

        with TruthServer(Model(post)) as server:
            document = self.document(server, *SHORT, code=1)
        self.assertEqual((document["requests"]["completed"], document["requests"]["failed"]), (3, 3))
        self.assertEqual(document["ttft_ms"]["count"], 3)

    def test_an_objective_that_is_not_met_exits_1(self) -> None:
        with TruthServer(Model()) as server:
            self.assertEqual(loadgen(server, *SHORT, "--slo", "e2e=20s").code, 0)
            document = self.document(server, *SHORT, "--slo", "ttft_p95=1us", code=1)
        self.assertEqual([result["met"] for result in document["slo"]], [False])
        self.assertEqual(document["goodput"]["fraction"], 0.0)
        with TruthServer(Model()) as server:
            text = loadgen(server, *SHORT, "--slo", "ttft_p95=1us").out
        self.assertRegex(text, r"(?m)^goodput .*0\.0%")

    def test_a_saturated_client_is_warned_of_and_strict_exits_1(self) -> None:
        measure = Measurer.measure

        def saturated(self: Measurer, *args: object, **options: object) -> object:
            run = measure(self, *args, **options)  # type: ignore[arg-type]
            assert run.client is not None
            run.client["verdict"] = "saturated"
            return run

        with TruthServer(Model()) as server, mock.patch.object(Measurer, "measure", saturated):
            lenient, strict = loadgen(server, *SHORT), loadgen(server, *SHORT, "--strict")
        self.assertEqual((lenient.code, strict.code), (0, 1))
        self.assertIn("the client was saturated", lenient.err)

    def test_a_server_that_is_still_loading_is_waited_for(self) -> None:
        count = iter(range(100))

        def health() -> list[Step]:
            loading = next(count) < 3
            return (
                json_answer({"error": {"message": "Loading model"}}, "503 Service Unavailable")
                if loading
                else json_answer({})
            )

        with TruthServer(Model(health=health)) as server:
            said = loadgen(server, *SHORT, "--wait-ready", "10s")
        self.assertEqual(said.code, 0, said)
        self.assertIn("waiting: /health answers 503: Loading model", said.err)

    def test_a_saved_run_reads_back_whole(self) -> None:
        saved = self.path("run.jsonl")
        with TruthServer(Model()) as server:
            document = self.document(server, *SHORT, "--save", saved)
        read = read_saved(saved)
        self.assertTrue(read.whole)
        self.assertEqual((read.command, len(read.run.records)), ("loadgen", 6))
        assert read.run.warmup is not None
        self.assertEqual(len(read.run.warmup.records), 2)
        self.assertEqual(read.run.config["prompt_salt"], document["config"]["prompt_salt"])

    def test_a_measured_run_becomes_a_simulation_of_its_server_under_its_load(self) -> None:
        pages = {
            "props": {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}},
            "slots": [{"n_ctx": 512}] * 4,
        }
        model = {"object": "list", "data": [{"id": "SmolLM2-135M-Instruct", "meta": {"ftype": "Q8_0"}}]}
        saved, printed = self.path("run.jsonl"), self.path("run.json")
        routes = {name: lambda page=page: json_answer(page) for name, page in {**pages, "models": model}.items()}
        with TruthServer(Model(**routes)) as server:
            self.assertEqual(loadgen(server, *SHORT, "--save", saved, "--json", "-o", printed).code, 0)
        for path in (saved, printed):
            said = servesim("simulate", "--like", path, "--hardware", "cpu-4vcpu", "--requests", "9", "--json")
            self.assertEqual(said.code, 0, said)
            config = json.loads(said.out)["config"]
            asked = {"slots": 4, "kv_tokens": 2048, "concurrency": 2, "output_tokens": "5", "prompt_tokens": "40"}
            self.assertEqual({key: config[key] for key in asked}, asked)
            self.assertEqual((config["model"], config["hardware"]), ("smollm2-135m-q8_0", "cpu-4vcpu"))
            self.assertEqual(json.loads(said.out)["requests"]["completed"], 9)
            self.assertIn("slots 4, kv_tokens 2048", said.err)
        again = self.path("again.json", said.out)
        for path, part in ((again, "is no measured run"), (self.path("no.jsonl"), "cannot read")):
            said = servesim("simulate", "--like", path)
            self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said)
            self.assertIn(part, said.err)

    def test_a_simulation_like_a_run_has_the_lengths_that_the_server_counted(self) -> None:
        saved, printed = self.path("run.jsonl"), self.path("run.json")
        with TruthServer(Model(lambda asked: stream_of(3, 52))) as server:
            self.assertEqual(loadgen(server, *SHORT, "--save", saved, "--json", "-o", printed).code, 0)
        for path in (saved, printed):
            said = servesim("simulate", "--like", path, "--json")
            document = json.loads(said.out)
            self.assertEqual((document["tokens"]["prompt"], document["tokens"]["output"]), (6 * 52, 6 * 3))
            self.assertIn("prompt_tokens 52 as counted there, 40 were asked for; output_tokens 3", said.err)
            said = servesim("simulate", "--like", path, "--prompt-tokens", "7", "--json")
            self.assertEqual(json.loads(said.out)["tokens"]["prompt"], 6 * 7)
            self.assertNotIn("prompt_tokens", said.err)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk_costs_the_file_and_not_the_report(self) -> None:
        with TruthServer(Model()) as server:
            said = loadgen(server, *SHORT, "--save", "/dev/full", "--quiet")
        self.assertEqual((said.code, said.err), (1, "error: cannot write /dev/full: no space left on device\n"))
        self.assertIn("6 completed", said.out)

    def test_a_path_that_cannot_be_written_costs_no_request(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            said = loadgen(server, *SHORT, "--save", self.path("no/such/folder.jsonl"))
        self.assertEqual((said.code, said.out, model.posts), (1, "", []), said)


class InterruptTest(LoadgenCase):
    """A process of its own, since signals are what is tested."""

    def begin(self, server: TruthServer, *argv: str, **options: bool) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "servesim", "loadgen", "--url", server.url, *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, **pipes, **options)

    def wait_for(self, model: Model, posts: int) -> None:
        eventually(self, lambda: len(model.posts) >= posts, True)

    def test_ctrl_c_gives_a_partial_report_and_a_whole_line_for_every_request_that_finished(self) -> None:
        model, saved = Model(), self.path("run.jsonl")
        with TruthServer(model) as server:
            process = self.begin(server, "--requests", "10000", "--max-tokens", "5", "--json", "--save", saved)
            self.wait_for(model, 40)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 1, err)
        document = json.loads(out)
        self.assertTrue(document["partial"])
        completed = document["requests"]["completed"]
        self.assertGreater(completed, 20)
        read = read_saved(saved)
        self.assertFalse(read.whole)
        self.assertEqual(sum(outcome == 1 for outcome in read.run.records.outcome), completed)

    def test_ctrl_c_in_a_terminal_reaches_every_process_and_gives_one_report(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            load = ("--requests", "10000", "--max-tokens", "5", "--processes", "2", "--json")
            process = self.begin(server, *load, start_new_session=True)
            self.wait_for(model, 40)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 1, err)
        self.assertTrue(json.loads(out)["partial"])

    def test_no_process_goes_on_when_the_first_one_is_killed(self) -> None:
        model = Model()
        with TruthServer(model) as server:
            process = self.begin(server, "--requests", "10000", "--max-tokens", "5", "--processes", "2")
            self.wait_for(model, 40)
            process.kill()
            process.communicate(timeout=PATIENCE_S)  # the pipes end with the last process that holds them
            eventually(self, lambda: server.open_connections, 0)

    def test_kill_9_loses_nothing_that_had_finished(self) -> None:
        model, saved = Model(), self.path("run.jsonl")
        with TruthServer(model) as server:
            process = self.begin(server, "--requests", "10000", "--max-tokens", "5", "--save", saved)
            self.wait_for(model, 40)
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        read = read_saved(saved)
        self.assertTrue(read.run.partial)
        self.assertGreater(len(read.run.records), 20)
        self.assertEqual(read.run.setup["model"], "toy")


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (livefile, load_plan):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
