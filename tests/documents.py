"""One small document of every kind that servesim writes, made by its verbs, in as many forms as the kind has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.command import ROOT, Said, servesim
from tests.test_cli_loadgen import MODELS, Model, json_answer
from tests.truth_server import Step, TruthServer, answer

QUICK = ("--requests", "8", "--prompt-tokens", "40", "--output-tokens", "6", "--quiet")
BURST = ("--trace", str(ROOT / "fixtures" / "burst.jsonl"), "--hardware", "l4-24gb", "--quiet")

CAPACITY = (
    (),
    ("--hardware", "l4-24gb", "--context", "1000", "--max-model-len", "8192", "--explain-cost"),
    ("--model", "gpt-oss-20b", "--tensor-parallel-size", "2", "--like-vllm"),
    ("--model", "deepseek-v3", "--hardware", "h200-sxm-141gb", "--tensor-parallel-size", "8", "--max-loras", "2"),
    ("--kv-offload", "64GB", "--offload-link", "25GB/s", "--prefix-caching", "--kv-tokens", "100k"),
    ("--kv-offload", "64GB+1TB", "--offload-link", "25GB/s+5GB/s", "--prefix-caching"),
)
SIMULATE = (
    QUICK,
    (*BURST, "--slo", "ttft_p95=500ms,tpot_p95=1s,itl_p99=1s", "--explain-request", "40", "--explain-cost"),
    (*BURST, "--prefix-caching", "--max-num-queued-reqs", "4", "--retries", "2"),
    (*QUICK, "--rate", "4", "--replicas", "2", "--router", "least-kv", "--price", "2.5/h", "--energy"),
    (*QUICK, "--rate", "4", "--disagg", "1:1", "--link", "25GB/s"),
    (*QUICK, "--rate", "20", "--autoscale", "1:3", "--cold-start", "100ms", "--scale-every", "100ms", "--price", "1/h"),
    (*QUICK, "--classes", "chat=3/priority=1,batch=1/prompt=80", "--policy", "priority", "--slo", "chat:ttft_p95=1s"),
    (*QUICK, "--spec-tokens", "3", "--acceptance", "0.7", "--adapters", "3", "--max-loras", "2"),
    (*BURST, "--prefix-caching", "--kv-offload", "8GB", "--offload-link", "25GB/s"),
    (*QUICK, "--rate", "40", "--client-timeout", "20ms", "--retries", "1"),
    (*QUICK, "--turns", "2", "--think-time", "1s", "--horizon", "1s"),
    (*QUICK, "--cost-model", "detailed", "--like-vllm", "--async-scheduling"),
    ("--requests", "2", "--prompt-tokens", "900", "--max-model-len", "512", "--quiet"),  # nothing completes
)
SWEEP = (
    (*QUICK, "--concurrency", "1,2,4", "--slo", "ttft_p95=1s"),
    (*QUICK, "--max-tokens", "5,10,20"),
    (*BURST, "--prefix-caching", "--kv-offload", "4GB,8GB", "--offload-link", "25GB/s"),
    (*QUICK, "--rate", "2", "--disagg", "1:1", "--link", "1GB/s,25GB/s"),
    (*QUICK, "--hardware", "l4-24gb,h100-sxm-80gb", "--concurrency", "1,4"),
)
LOADGEN = (
    ("--slo", "ttft_p95=5s"),
    ("--repeat", "2"),
    ("--concurrency", "1,2"),
    ("--max-tokens", "5,10,20"),
    ("--find", "concurrency", "--slo", "ttft_p95=5s", "--find-max", "2"),
)


class Written:
    """Documents by the verb that wrote them; `folder` holds the files that other verbs read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (the command, the document) of every verb."""
        for argv in CAPACITY:
            yield self._json("capacity", *argv)
        for number, argv in enumerate(SIMULATE):
            yield self._json("simulate", *argv, "--save", self.path(f"run{number}.jsonl"), "--token-times")
        for argv in SWEEP:
            yield self._json("sweep", *argv)
        self._measure()
        for number in range(len(LOADGEN)):
            yield f"loadgen {LOADGEN[number]}", json.loads(Path(self.path(f"measured{number}.json")).read_text("utf-8"))
        yield from self._answers()

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (file and number, line) of every saved run that `documents` wrote."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield f"{path.name}:{number}", json.loads(line)

    def _measure(self) -> None:
        captures = ROOT / "fixtures" / "captures"
        pages = [(captures / f"vllm-metrics-{when}.txt").read_bytes() for when in ("before", "after-load")]

        def metrics() -> list[Step]:
            return [Step(0.0, answer("200 OK", pages.pop(0) if len(pages) > 1 else pages[0]))]

        with TruthServer(Model(metrics=metrics, models=lambda: json_answer(MODELS))) as server:
            for number, argv in enumerate(LOADGEN):
                load = ("--requests", "3", "--warmup", "1", "--quiet", "--json")
                short = () if "--max-tokens" in argv else ("--max-tokens", "3", "--prompt-tokens", "20")
                saved = () if number else ("--save", self.path("measured.jsonl"))
                at = self.path(f"measured{number}.json")
                servesim("loadgen", "--url", server.url, *load, *short, *argv, *saved, "-o", at)

    def _answers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        run, other, measured = self.path("run1.jsonl"), self.path("run2.jsonl"), self.path("measured.jsonl")
        yield self._json("compare", run, other, "--fail-if", "ttft_p95>+10%")
        yield self._json("compare", run, measured, "--fail-if", "ttft_p95>500ms,failed_share>0.01")
        yield self._json("compare", self.path("measured0.json"), self.path("measured1.json"))
        plan = ("--slo", "ttft_p95=500ms", "--requests", "20", "--prompt-tokens", "200", "--output-tokens", "20")
        shard = self.path("shard.jsonl")
        few = ("--seeds", "1", "--fresh-seeds", "1", "--jobs", "1", "--quiet")
        yield self._json("plan", *plan, *few, "--hardware", "l4-24gb,h100-sxm-80gb", "--rate", "40")
        yield self._json("plan", *plan, *few, "--disagg", "off,1:1", "--rate", "400")
        yield self._json("plan", *plan, *few, "--hardware", "l4-24gb", "--price", "l4-24gb=0.7/h")
        yield self._json("plan", *plan, *few, "--hardware", "l4-24gb", "--slo", "tpot_p95=1ms")
        servesim("plan", *plan, *few, "--hardware", "l4-24gb", "--shard", "1/1", "-o", shard)
        captures = ROOT / "fixtures" / "captures"
        yield self._json("diagnose", run, "--slo", "ttft_p95=500ms")
        yield self._json("diagnose", str(captures / "vllm-metrics-after-load.txt"), "--hardware", "l4-24gb")
        servesim("sweep", *SWEEP[0], "--json", "-o", self.path("sweep.json"))
        yield self._json("diagnose", self.path("sweep.json"))
        yield self._json("diagnose", self.path("measured.jsonl"))
        yield self._json(
            "calibrate", run, "--model", "llama-3.1-8b", "--hardware", "l4-24gb", "-o", self.path("d.json")
        )
        yield "calibrate -o", json.loads(Path(self.path("d.json")).read_text(encoding="utf-8"))
        yield self._json("validate", "--only", "m4-pro")
        for trace in sorted((ROOT / "fixtures" / "traces").glob("*.[!m]*")):
            yield self._json("trace", "describe", str(trace), "--quiet")
        yield self._json("trace", "describe", BURST[1])
        yield self._json("models")
        yield self._json("models", "deepseek-v3", "--quantization", "fp8")
        yield self._json("models", "--formats")
        yield self._json("hardware")
        yield self._json("hardware", self.path("d.json"))
        yield self._json("schema")
        yield self._json("report", run, measured, "--slo", "ttft_p95=1s")

    def _json(self, *argv: str) -> tuple[str, dict[str, Any]]:
        said: Said = servesim(*argv, "--json")
        if not said.out:
            raise AssertionError(f"{' '.join(argv)}: {said.err}")
        return " ".join(argv), json.loads(said.out)
