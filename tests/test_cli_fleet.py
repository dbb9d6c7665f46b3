"""Fleets as a person runs them: options, files, what is printed, saved and read back."""

from __future__ import annotations

import json
import re
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.runs.reader import read_run
from servesim.summary.summary import summarize
from tests.command import in_shell, servesim
from tests.extent import in_full, once

SMALL = ("--quiet", "--requests", "60", "--prompt-tokens", "20-400", "--output-tokens", "1-40")
APART = ("--disagg", "1:2", "--link", "25GB/s")
KINDS = {"replicas": [{"count": 2, "max_num_seqs": 64}, {"count": 1, "hardware": "l4-24gb", "name": "small"}]}


def document(verb: str, *flags: str) -> dict[str, Any]:
    said = servesim(verb, *flags, "--json")
    if said.code == 2:
        raise AssertionError(said.err)
    found: dict[str, Any] = json.loads(said.out)
    return found


class Fleets(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, content: Any) -> str:
        path = self.folder / "fleet.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def refused(self, *flags: str) -> str:
        said = servesim("simulate", *SMALL, *flags)
        self.assertEqual((said.code, said.out), (2, ""), said)
        self.assertEqual(said.err.count("\n"), 1, said.err)
        return said.err


class Replicas(Fleets):
    def test_one_replica_is_simulate_byte_for_byte(self) -> None:
        for load in (("--rate", "40"), ("--concurrency", "5"), ("--rate", "90", "--client-timeout", "300ms")):
            for form in ((), ("--json",)):
                plain = servesim("simulate", *SMALL, *load, *form)
                self.assertEqual(servesim("simulate", *SMALL, *load, *form, "--replicas", "1"), plain)

    def test_the_report_says_who_did_what_and_how_even_that_was(self) -> None:
        said = servesim("simulate", *SMALL, "--rate", "90", "--replicas", "3", "--router", "round-robin")
        self.assertIn("fleet        3 replicas   router round-robin\n", said.out)
        self.assertRegex(said.out, r"replicas     3   busiest over mean: requests 1.00x   tokens \d\.\d\dx   busy ")
        self.assertEqual(len(re.findall(r"^       [012]  +20 ", said.out, re.MULTILINE)), 3)
        got = document("simulate", *SMALL, "--rate", "90", "--replicas", "3", "--router", "round-robin")
        self.assertEqual([replica["requests"] for replica in got["per_replica"]], [20, 20, 20])
        self.assertEqual(got["imbalance"]["both"]["requests"], 1.0)
        self.assertNotIn("stages_ms", got)

    def test_of_many_replicas_the_range_is_told(self) -> None:
        said = servesim("simulate", *SMALL, "--rate", "90", "--replicas", "30")
        self.assertIn("replicas     30   busiest", said.out)
        self.assertRegex(said.out, r"\n {13}requests \d to \d\n")

    def test_data_parallel_ranks_are_replicas(self) -> None:
        ranks = document("simulate", *SMALL, "--rate", "60", "--data-parallel-size", "3")
        replicas = document("simulate", *SMALL, "--rate", "60", "--replicas", "3")
        for key in ("config", "engine"):
            ranks.pop(key), replicas.pop(key)
        self.assertEqual(ranks, replicas)
        text = servesim("simulate", *SMALL, "--rate", "60", "--data-parallel-size", "2", "--replicas", "2").out
        self.assertIn("2 replicas x 2 data-parallel ranks", text)

    def test_a_fleet_file_has_kinds_and_a_config_of_its_own(self) -> None:
        path = self.write(KINDS)
        said = servesim("simulate", *SMALL, "--rate", "90", "--fleet", path, "--max-num-seqs", "32")
        self.assertEqual(said.code, 0, said.err)
        self.assertIn("server       2 x llama-3.1-8b on h100-sxm-80gb   27,997 blocks", said.out)
        self.assertIn("server       1 x llama-3.1-8b on l4-24gb   1,941 blocks", said.out)
        self.assertIn("max_num_seqs 64", said.out)
        self.assertIn("max_num_seqs 32", said.out)
        first = servesim("simulate", *SMALL, "--rate", "90", "--fleet", path, "--max-num-seqs", "32", "--json")
        again = servesim("simulate", "--quiet", "--json", "--config", self.write(first.out))
        self.assertEqual(again.out, first.out)
        self.assertEqual([kind["count"] for kind in json.loads(first.out)["config"]["fleet"]["replicas"]], [2, 1])

    def test_a_flag_replaces_the_fleet_of_a_config(self) -> None:
        path = self.write(document("simulate", *SMALL, "--rate", "30", *APART))
        got = document("simulate", "--quiet", "--config", path, "--replicas", "2")["config"]
        self.assertEqual((got["replicas"], got["disagg"], got["link_bytes_per_s"]), (2, None, None))
        got = document("simulate", "--quiet", "--config", path, "--link", "5GB/s")["config"]
        self.assertEqual((got["disagg"], got["link_bytes_per_s"]), ("1:2", 5e9))

    @once
    def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(self) -> None:
        flags = " ".join(SMALL)
        fleets = (
            "--rate 90 --replicas 3 --router prefix --prefix-caching --shared-prefix-tokens 64 --prefixes 5",
            "--concurrency 7 --replicas 3 --router random",
            "--rate 90 --disagg 2:2 --link 10GB/s --transfer-overlap layer --router least-kv",
        )
        runs = "; ".join(f"main('simulate {flags} {fleet} --json'.split())" for fleet in fleets)
        command = f'python3 -c "from servesim.cli.main import main; {runs}"'
        outputs = {in_shell(command, PYTHONHASHSEED=seed).out for seed in ("0", "1")}
        self.assertEqual(len(outputs), 1)
        self.assertEqual(outputs.pop().count('"schema"'), 3)


class Apart(Fleets):
    def test_the_report_tells_the_stages_and_the_link(self) -> None:
        said = servesim("simulate", *SMALL, "--rate", "60", *APART)
        self.assertIn("fleet        1 prefill, 2 decode engines   router least-loaded   link 25 GB/s, shared", said.out)
        for label in ("prefill", "link wait", "transfer", "decode queue"):
            self.assertRegex(said.out, rf"(?m)^{label} +[\d.]+ ")
        self.assertRegex(said.out, r"(?m)^link +[\d.]+ GB moved in 60 transfers   busy \d")
        self.assertRegex(said.out, r"(?m)^decode +2   busiest over mean")
        got = document("simulate", *SMALL, "--rate", "60", *APART)
        self.assertEqual(list(got["stages_ms"]), ["queue", "prefill", "link_wait", "transfer", "decode_queue"])
        self.assertAlmostEqual(sum(stage["mean"] for stage in got["stages_ms"].values()), got["ttft_ms"]["mean"])
        self.assertEqual([replica["role"] for replica in got["per_replica"]], ["prefill", "decode", "decode"])
        kv_bytes = 131072 * got["tokens"]["prompt"]
        self.assertEqual((got["link"]["moved_bytes"], got["link"]["transfers"]), (kv_bytes, 60))

    def test_one_request_is_explained_through_its_stages(self) -> None:
        flags = ("simulate", *SMALL, "--rate", "60", "--disagg", "1:1", "--link", "1GB/s", "--explain-request", "17")
        text = servesim(*flags).out
        for phase in ("queue", "prefill", "link wait", "transfer", "decode queue", "decode"):
            self.assertRegex(text, rf"(?m)^  {phase} +[\d.,]+ ms")
        self.assertIn("  prefill replica 0, decode replica 1\n", text)
        told = json.loads(servesim(*flags, "--json").out)["explanation"]
        self.assertAlmostEqual(sum(told["phases_ms"].values()), told["e2e_ms"])

    def test_roles_in_a_file_have_their_own_hardware(self) -> None:
        kinds = [{"role": "decode", "count": 2, "hardware": "a100-sxm-80gb"}, {"role": "prefill"}]
        got = document(
            "simulate", *SMALL, "--rate", "60", "--fleet", self.write({"replicas": kinds}), "--link", "9GB/s"
        )
        self.assertEqual(
            [(replica["role"], replica["name"]) for replica in got["per_replica"]],
            [("prefill", "h100-sxm-80gb"), ("decode", "a100-sxm-80gb"), ("decode", "a100-sxm-80gb")],
        )

    def test_saved_runs_read_back_to_equal_summaries(self) -> None:
        path = str(self.folder / "run.jsonl")
        caching = ("--prefix-caching", "--shared-prefix-tokens", "64")
        for fleet in (APART, ("--replicas", "3"), (*APART, *caching), (*APART, "--transfer-overlap", "chunk")):
            for load in (("--rate", "90"), ("--rate", "300", "--client-timeout", "400ms"), ("--horizon", "500ms")):
                with self.subTest(fleet=fleet, load=load):
                    flags = (*SMALL, *fleet, *load)
                    want = document("simulate", *flags, "--save", path)
                    run = read_run(path)
                    have = json.loads(json.dumps(summarize(run).as_dict()))
                    self.assertEqual({key: want[key] for key in have}, have)
                    self.assertEqual(
                        set(run.replica_of), {"replica"} if "--replicas" in fleet else set(run.replica_of) - {"replica"}
                    )
                    self.assertEqual(run.violations, [])

    def test_a_small_decode_pool_ends_in_counts(self) -> None:
        kinds = [{"role": "prefill"}, {"role": "decode", "kv_tokens": 160}]
        said = servesim(
            "simulate", *SMALL, "--rate", "60", "--fleet", self.write({"replicas": kinds}), "--link", "9GB/s", "--json"
        )
        got = json.loads(said.out)
        self.assertEqual(said.code, 1)
        self.assertEqual(got["requests"]["completed"] + got["requests"]["rejected"], 60)
        self.assertEqual(got["errors"], {"over_kv_cache": got["requests"]["rejected"]})


class Refused(Fleets):
    def test_what_does_not_go_together(self) -> None:
        self.assertIn("need a link; give its bandwidth, such as --link 25GB/s", self.refused("--disagg", "1:1"))
        self.assertIn("no KV crosses a link", self.refused("--link", "25GB/s"))
        self.assertIn("replicas and disagg", self.refused("--replicas", "2", *APART))
        self.assertIn("must be prefill:decode engines", self.refused("--disagg", "1", "--link", "1GB/s"))
        self.assertIn("must be prefill:decode engines", self.refused("--disagg", "0:1", "--link", "1GB/s"))
        self.assertIn("must be a bandwidth with its unit", self.refused("--disagg", "1:1", "--link", "25"))
        self.assertIn("did you mean 'least-kv'?", self.refused("--replicas", "2", "--router", "least_kv"))
        self.assertIn("must be 1 or more", self.refused("--replicas", "0"))
        self.assertIn("did you mean 'layer'?", self.refused(*APART, "--transfer-overlap", "layers"))

    def test_a_fleet_file_that_is_none(self) -> None:
        for content, told in (
            ("[1]", "must be a JSON object"),
            ("{", "is not JSON"),
            ({"replicas": []}, "a list of one or more"),
            ({"replica": [{}]}, "a list of one or more"),
            ({"replicas": [{}], "routr": 1}, "unknown field 'routr'"),
            ({"replicas": [{"hardwear": "l4-24gb"}]}, "did you mean 'hardware'?"),
            ({"replicas": [{"count": 0}]}, "replicas[0]: count is 0, must be 1 or more"),
            ({"replicas": [{"role": "prefill"}]}, "must be prefill and decode"),
            ({"replicas": [{"role": "prefill"}, {"role": "both"}]}, "must be prefill and decode"),
            ({"replicas": [{"role": "encode"}]}, "role"),
            ({"replicas": [{"max_num_seqs": -1}]}, "replicas[0]: max_num_seqs is -1"),
        ):
            with self.subTest(content=content):
                error = self.refused("--fleet", self.write(content))
                self.assertIn(told, error)
                self.assertIn("fleet.json", error)
        self.assertIn("cannot read nowhere.json", self.refused("--fleet", "nowhere.json"))

    def test_kv_of_two_kinds_that_do_not_match(self) -> None:
        kinds = [{"role": "prefill"}, {"role": "decode", "kv_cache_dtype": "fp8"}]
        error = self.refused("--fleet", self.write({"replicas": kinds}), "--link", "1GB/s", "--rate", "5")
        self.assertIn("131,072 bytes on h100-sxm-80gb and 65,536", error)


class Sweeps(Fleets):
    def test_replicas_and_routers_make_a_grid(self) -> None:
        got = document("sweep", *SMALL, "--rate", "90", "--replicas", "1,2", "--router", "round-robin,least-kv")
        self.assertEqual([row["replicas"] for row in got["rows"]], [1, 1, 2, 2])
        self.assertEqual(got["rows"][0]["ttft_ms"], got["rows"][1]["ttft_ms"])
        self.assertLess(got["rows"][2]["tpot_ms"]["p95"], got["rows"][0]["tpot_ms"]["p95"])

    @in_full
    def test_the_link_is_swept_beside_the_colocated_engines(self) -> None:
        flags = ("--quiet", "--trace", "fixtures/mixed.jsonl", "--disagg", "3:1", "--link", "10GB/s,25GB/s")
        text = servesim("sweep", *flags).out
        lines = text.splitlines()
        self.assertRegex(lines[2], "^ *colocated ")
        self.assertRegex(lines[3], "^ *10 GB/s ")
        found = re.search(
            r"^crossing: ([\d.]+) GB/s, below it 4 colocated engines .TTFT p95 391.9 ms. win$", text, re.MULTILINE
        )
        assert found is not None, text
        got = document("sweep", *flags)
        self.assertEqual([row["swept"]["link_bytes_per_s"] for row in got["rows"]], [None, 10e9, 25e9])
        crossing = got["crossings"][0]
        self.assertAlmostEqual(crossing["bytes_per_s"] / 1e9, float(found[1]), places=1)
        together, slow, fast = (row["ttft_ms"]["p95"] for row in got["rows"])
        self.assertTrue(fast < together < slow)
        self.assertLessEqual(crossing["bytes_per_s"] / crossing["worse_bytes_per_s"], 1.01)
        for bytes_per_s, is_worse in ((crossing["bytes_per_s"], False), (crossing["worse_bytes_per_s"], True)):
            link = ("--link", f"{bytes_per_s!r}B/s")
            ttft = document("simulate", *flags[:-2], *link)["ttft_ms"]["p95"]
            self.assertEqual(ttft > crossing["colocated_ttft_p95_ms"], is_worse)

    def test_a_link_that_never_or_always_pays_is_said_to(self) -> None:
        flags = ("sweep", "--quiet", "--trace", "fixtures/mixed.jsonl", "--disagg", "3:1", "--link")
        self.assertIn("crossing: none up to 2 GB/s, 4 colocated engines", servesim(*flags, "1GB/s,2GB/s").out)
        self.assertIn("crossing: none down to 50 GB/s, 4 colocated engines", servesim(*flags, "50GB/s,100GB/s").out)

    def test_a_sweep_runs_again_from_itself(self) -> None:
        flags = (*SMALL, "--rate", "60", "--disagg", "1:1,1:2", "--link", "1GB/s,9GB/s")
        first = servesim("sweep", *flags, "--json")
        again = servesim("sweep", "--quiet", "--json", "--config", self.write(first.out))
        self.assertEqual(again.out, first.out)
        self.assertEqual(servesim("sweep", *flags, "--json", "--jobs", "2").out, first.out)


if __name__ == "__main__":
    unittest.main()
