"""`diagnose`: every rule holds where it should and says what turning its knob does; healthy servers have nothing."""

from __future__ import annotations

import doctest
import unittest

from servesim import simulate
from servesim.catalog.servers import SERVERS
from servesim.client.window import setup_facts
from servesim.config import server_flags
from servesim.config.build import build_server
from servesim.config.option import checks_of, given_of
from servesim.config.server import ServerSpec
from servesim.config.server_flags import FLAGS, command_lines, parse_flags
from servesim.diagnose.diagnose import DiagnosisInput, checks, diagnosis, findings, try_fix
from servesim.diagnose.rules import DOWN, RULES, UP
from servesim.diagnose.state import ServerState, of_pages, with_flags
from servesim.errors import InputError
from servesim.summary.summary import summarize
from servesim.wire.prometheus import Page, parse_page
from tests.command import ROOT
from tests.diagnose_cases import CASES, NOT_SIMULATED, RuleCase, metrics, run_case
from tests.extent import once

CAPTURES = ROOT / "fixtures" / "captures"


def capture(name: str) -> Page:
    return parse_page((CAPTURES / name).read_text(encoding="utf-8"))


def monday(preemptions: int, caching: bool = False) -> Page:
    """The Monday incident as vLLM's page would show it: 40 waiting, KV use 1.0, preemptions climbing."""
    return parse_page(
        f"""
vllm:num_requests_running{{engine="0"}} 8
vllm:num_requests_waiting{{engine="0"}} 40
vllm:kv_cache_usage_perc{{engine="0"}} 1.0
vllm:num_preemptions_total{{engine="0"}} {preemptions}
vllm:prefix_cache_queries_total{{engine="0"}} 0
vllm:prefix_cache_hits_total{{engine="0"}} 0
vllm:cache_config_info{{num_gpu_blocks="1942",block_size="16",enable_prefix_caching="{caching}"}} 1
"""
    )


def names(state: ServerState) -> list[str]:
    return [finding.rule.name for finding in findings(state)]


@once
class EveryRule(unittest.TestCase):
    """Each row of the table, in the simulator."""

    def case(self, name: str) -> RuleCase:
        return CASES[name]

    def test_has_a_case(self) -> None:
        self.assertEqual({rule.name for rule in RULES}, CASES.keys() | NOT_SIMULATED)

    def test_holds_on_its_case(self) -> None:
        for rule in RULES:
            if rule.name in CASES:
                with self.subTest(rule=rule.name):
                    _, state = run_case(CASES[rule.name].base, CASES[rule.name].slo)
                    self.assertIn(rule.name, names(state))

    def test_says_what_turning_its_knob_does(self) -> None:
        for rule in RULES:
            if rule.name not in CASES:
                continue
            case = CASES[rule.name]
            before = metrics(run_case(case.base)[0])
            after = metrics(run_case({**case.base, **case.turned})[0])
            for metric, way in rule.expect.items():
                with self.subTest(rule=rule.name, metric=metric):
                    # Where everything was refused before, there was no such figure.
                    old, new = before.get(metric, 0.0), after.get(metric, 0.0)
                    if way == UP:
                        self.assertGreater(new, 1.02 * old)
                    else:
                        self.assertEqual(way, DOWN)
                        self.assertLess(new, 0.98 * old)

    def test_says_rightly_what_changes_nothing(self) -> None:
        for rule in RULES:
            if rule.name not in CASES:
                continue
            case = CASES[rule.name]
            self.assertEqual(case.useless.keys(), rule.useless.keys(), rule.name)
            before = metrics(run_case(case.base)[0])
            for option, changed in case.useless.items():
                with self.subTest(rule=rule.name, option=option):
                    after = metrics(run_case({**case.base, **changed})[0])
                    for metric in ("throughput", "itl_p50", "tpot_p50", "completed"):
                        if metric in before and (rule.name, metric) != ("refused-by-queue", "completed"):
                            self.assertAlmostEqual(after[metric], before[metric], delta=0.05 * before[metric])

    def test_turning_the_knob_of_admission_ends_the_finding(self) -> None:
        for name in ("kv-preemptions", "kv-preemptions-cached", "step-tokens", "prefill-spikes", "bandwidth"):
            with self.subTest(rule=name):
                case = CASES[name]
                self.assertNotIn(name, names(run_case({**case.base, **case.turned}, case.slo)[1]))

    def test_the_fix_that_diagnose_tries_does_the_same(self) -> None:
        for rule in RULES:
            if rule.remedy.fix is None:
                continue
            case = CASES[rule.name]
            run = simulate(**case.base)
            asked = given_of(ServerSpec, run.config)
            simulated = DiagnosisInput(
                state=ServerState(source="simulated"),
                server=build_server(ServerSpec(**asked)),
                summary=summarize(run).as_dict(),
                config=run.config,
            )
            tried, why_not = try_fix(rule, simulated)
            assert tried is not None, why_not
            self.assertEqual(tried.figures.keys(), rule.expect.keys())
            for metric, way in rule.expect.items():
                with self.subTest(rule=rule.name, metric=metric):
                    change = tried.figures[metric]
                    (self.assertGreater if way == UP else self.assertLess)(change.after, change.before)

    def test_names_a_budget_a_source_and_a_knob_for_each_server(self) -> None:
        budgets = {rule.budget for rule in RULES}
        self.assertLessEqual({"sequences", "tokens per step", "kv blocks", "compute", "bandwidth", "client"}, budgets)
        for rule in RULES:
            self.assertEqual(rule.remedy.knobs().keys(), set(SERVERS))
            self.assertTrue(rule.source and rule.symptom and rule.useless)


class TheMondayIncident(unittest.TestCase):
    def test_kv_blocks_bind_and_prefix_caching_is_the_knob(self) -> None:
        found = findings(of_pages(monday(3), monday(10)))[0]
        self.assertEqual(found.rule.budget, "kv blocks")
        self.assertEqual(found.rule.remedy.vllm, "--enable-prefix-caching")
        self.assertIn("max_num_seqs", found.rule.useless)
        self.assertEqual(found.evidence, "7 preemptions, KV use 100% at its peak, 40 waiting")

    def test_a_higher_sequence_limit_changes_nothing_not_even_a_digit(self) -> None:
        runs = [simulate(**CASES["kv-preemptions"].base, max_num_seqs=slots) for slots in (256, 512)]
        self.assertEqual(runs[0].times, runs[1].times)

    def test_with_caching_on_already_the_knob_is_more_memory(self) -> None:
        found = findings(of_pages(monday(3, caching=True), monday(10, caching=True)))[0]
        self.assertEqual((found.rule.name, found.rule.budget), ("kv-preemptions-cached", "kv blocks"))

    def test_flags_say_what_the_page_does_not(self) -> None:
        page = parse_page("vllm:num_requests_waiting 40\nvllm:num_requests_running 256\nvllm:kv_cache_usage_perc 0.3\n")
        flags = parse_flags("vllm serve Qwen/Qwen3-8B --max-num-seqs 256")
        self.assertEqual(names(with_flags(of_pages(page, page), flags.values)), ["sequences"])

    def test_gpu_utilisation_is_said_to_be_no_evidence_and_why(self) -> None:
        found = diagnosis([DiagnosisInput(state=ServerState(source="x"))])
        self.assertIn("any kernel ran", found.gpu_utilisation)


class HealthyServers(unittest.TestCase):
    def test_nothing_binds_at_a_load_that_a_server_carries(self) -> None:
        for options in (
            {"rate": 5, "requests": 200},
            {"hardware": "a100-sxm-80gb", "rate": 3, "requests": 200},
            {"hardware": "l4-24gb", "rate": 0.3, "requests": 60, "prefix_caching": True},
            {"rate": 10, "requests": 300, "like_vllm": True},
        ):
            with self.subTest(**options):
                self.assertEqual(names(run_case(options, ("ttft_p95=2s", "tpot_p95=200ms"))[1]), [])

    def test_nothing_binds_on_the_pages_of_idle_servers(self) -> None:
        for name in ("vllm-metrics-after.txt", "llamacpp-metrics-after.txt", "vllm-small-cache-metrics-after.txt"):
            with self.subTest(page=name):
                self.assertEqual(names(of_pages(None, capture(name))), [])
                self.assertEqual(names(of_pages(capture(name), capture(name))), [])

    def test_an_incident_that_is_over_is_not_a_diagnosis(self) -> None:
        before = parse_page(
            "vllm:num_preemptions_total 70\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.2\n"
        )
        self.assertEqual(names(of_pages(before, before)), [])
        self.assertEqual(names(of_pages(None, before)), [])


class RealPages(unittest.TestCase):
    def test_a_vllm_with_all_seats_taken(self) -> None:
        state = of_pages(None, capture("vllm-metrics-under-load.txt"))
        self.assertEqual((state.running, state.waiting, state.num_blocks), (128, 56, 4095))
        self.assertEqual(names(state), ["sequences"])

    def test_a_vllm_with_41_blocks(self) -> None:
        pages = [capture(f"vllm-small-cache-metrics-{when}.txt") for when in ("before", "under-load")]
        self.assertEqual(names(of_pages(*pages)), ["kv-queue-cached"])

    def test_a_llama_cpp_that_defers(self) -> None:
        page = parse_page("llamacpp:requests_processing 4\nllamacpp:requests_deferred 9\nllamacpp:n_decode_total 5\n")
        found = findings(of_pages(page, page))[0]
        self.assertEqual(found.rule.name, "sequences")
        self.assertIn("--parallel", found.rule.remedy.llama_cpp or "")

    def test_an_sglang_whose_pool_is_full(self) -> None:
        page = parse_page("sglang:num_running_reqs 30\nsglang:num_queue_reqs 12\nsglang:token_usage 0.97\n")
        self.assertEqual(findings(of_pages(page, page))[0].rule.budget, "kv blocks")

    def test_the_client_that_is_saturated_comes_first(self) -> None:
        state = ServerState(source="x", client_verdict="saturated", preemptions=5, kv_peak=1.0)
        self.assertEqual(names(state), ["client-saturated", "kv-preemptions"])


class Capacity(unittest.TestCase):
    def test_the_servers_own_figures_are_added_up(self) -> None:
        page = capture("vllm-small-cache-metrics-under-load.txt")
        told = checks(of_pages(None, page), setup_facts(page), None)
        self.assertEqual([check.agrees for check in told], [True, None])
        self.assertIn("41 blocks x 32 tokens = 1,312", told[0].told)

    def test_a_wrong_figure_is_found(self) -> None:
        facts = {"num_gpu_blocks": "41", "block_size": "16", "kv_cache_size_tokens": "1312"}
        self.assertIs(checks(ServerState(source="x"), facts, None)[0].agrees, False)

    def test_blocks_are_held_against_the_memory_plan(self) -> None:
        server = build_server(ServerSpec(hardware="l4-24gb"))
        for blocks, agrees in (("1941", True), ("1500", False), ("9000", False)):
            facts = {"num_gpu_blocks": blocks, "block_size": "16"}
            [check] = checks(ServerState(source="x"), facts, server)
            self.assertIs(check.agrees, agrees, check.told)
        self.assertIn("more than fits", check.told)


class Flags(unittest.TestCase):
    def test_a_command_line_of_each_server_comes_back(self) -> None:
        spec = ServerSpec(
            model="llama-3.1-70b", tensor_parallel_size=4, max_num_seqs=64, max_num_batched_tokens=2048, kv_tokens=65536
        )
        for name, lines in command_lines(build_server(spec)).items():
            with self.subTest(server=name):
                assert lines is not None
                read = parse_flags(lines[0])
                self.assertEqual(read.dialect, name)
                self.assertEqual((read.values["max_num_seqs"], read.values["max_num_batched_tokens"]), (64, 2048))
                if name != "llama.cpp":
                    self.assertEqual(read.values["model"], "llama-3.1-70b")
                    self.assertEqual(read.values["tensor_parallel_size"], 4)

    def test_every_field_exists_and_no_name_is_told_twice(self) -> None:
        for dialect, flags in FLAGS.items():
            self.assertLessEqual({flag.field for flag in flags}, checks_of(ServerSpec).keys())
            listed = [name for flag in flags for name in flag.names]
            self.assertEqual(len(listed), len(set(listed)), dialect)

    def test_forms_that_people_write(self) -> None:
        for text, values in (
            ("vllm serve Qwen/Qwen3-8B --max_num_seqs=8", {"model": "qwen3-8b", "max_num_seqs": 8}),
            ("docker run x vllm serve a/b -tp 2 --port 80", {"model": "a/b", "tensor_parallel_size": 2}),
            ("python -m vllm.entrypoints.openai.api_server --model a/b", {"model": "a/b"}),
            (
                "vllm serve a/b --kv-cache-dtype auto --no-enable-prefix-caching",
                {"model": "a/b", "prefix_caching": False},
            ),
            (
                "./llama-server -m x.gguf -c 8192 -np 4 -ngl 99",
                {"model": "x.gguf", "kv_tokens": 8192, "max_num_seqs": 4},
            ),
            ("python -m sglang.launch_server --model-path a/b --page-size 1", {"model": "a/b", "block_size": 1}),
        ):
            with self.subTest(text=text):
                self.assertEqual(parse_flags(text).values, values)

    def test_what_is_no_server_is_refused_in_one_line(self) -> None:
        for text in ("ls -l", "", "vllm serve x --max-num-seqs", "vllm serve x --max-num-seqs many", "vllm serve 'x"):
            with self.subTest(text=text), self.assertRaises(InputError):
                parse_flags(text)

    def test_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(server_flags).failed, 0)


if __name__ == "__main__":
    unittest.main()
