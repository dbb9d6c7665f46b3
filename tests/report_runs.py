"""What the tests of reports draw: the burst, a measured run with gauges, hostile words, and grids; and the golden SVGs.

`python3 -m tests.report_runs` rewrites `fixtures/golden-svg/`: every figure of fixed report. Read the diff.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any

from servesim import simulate
from servesim.report.charts import FIGURES
from servesim.report.figure import picture
from servesim.report.input import ReportInput, ReportRun, grid_of
from servesim.runs.records import GaugeSample, Outcome, Run
from servesim.summary.slo import parse_slos
from servesim.summary.summary import summarize
from tests.command import ROOT
from tests.runs import measured

GOLDEN = ROOT / "fixtures" / "golden-svg"
HOSTILE = '</title></svg><script>alert("1")</script><img src=x onerror=alert(2)>&amp;\x00\x1b[2J\u202e\ud800 =cmd|x'


def named(run: Run, name: str = "run", *slos: str) -> ReportRun:
    asked = parse_slos(slos)
    return ReportRun(
        name=name, path=f"{name}.jsonl", command="simulate", version="0", run=run, summary=summarize(run, asked),
        slos=asked,
    )  # fmt: skip


@cache
def burst(prefix_caching: bool = False) -> Run:
    trace = str(ROOT / "fixtures" / "burst.jsonl")
    run = simulate(hardware="l4-24gb", trace=trace, prefix_caching=prefix_caching)
    run.config["trace"] = "burst.jsonl"
    return run


@cache
def divided() -> Run:
    """Return a run of prefill and decode engines with a link between them that is too slow."""
    return simulate(disagg="2:1", link_bytes_per_s=2e9, requests=24, rate=20, prompt_tokens="1000", output_tokens="30")


def streams(seed: int = 1, size: int = 40) -> Run:
    """Return a measured run of `size` streams with gauges, failures and a server's window."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(size):
        sent = number * 0.1
        first = sent + rng.uniform(0.02, 0.3)
        times = [first]
        for _ in range(rng.randint(0, 30)):
            times.append(times[-1] + rng.choice([0.01, 0.01, 0.011, 0.012, 0.2]))
        row: dict[str, Any] = {"sent": sent, "times": times}
        if number % 9 == 8:
            row |= {"outcome": Outcome.FAILED, "reason": "http_500", "extra": {"message": "out of memory"}}
        rows.append(row)
    run = measured(*rows)
    run.config |= {"model": "llama-3.1-8b", "url": "http://127.0.0.1:8000", "api": "chat"}
    for second in range(7):
        run.gauges.append(
            GaugeSample(float(second), 3 + second % 3, second, None, second / 10, second // 3, 100 * second)
        )
    run.server = {"mean_batch": 3.5, "window_s": 6.0, "prompt_tokens": 200, "output_tokens": 600}
    return run


def hostile() -> Run:
    """Return a measured run in which every word that comes from outside is an attack."""
    run = streams(2, 12)
    run.config |= {"model": HOSTILE, "url": HOSTILE, HOSTILE: HOSTILE}
    run.requests.ids = [f"{HOSTILE}{number}" for number in range(12)]
    run.records.reason[8] = HOSTILE
    run.records.extra[8] = {"message": HOSTILE}
    run.warnings.append(HOSTILE)
    run.violations.append(HOSTILE)
    return run


def sweep_document(seed: int = 3) -> dict[str, Any]:
    """Return a sweep's document with round figures."""
    rows = []
    for number, load in enumerate((1, 8, 32, 128, 256)):
        rows.append(
            {
                "concurrency": load,
                "swept": {"concurrency": load},
                "throughput": {"output_tokens_per_s": 4600 * load / (load + 30 + seed)},
                "e2e_ms": {"mean": 1000 + 25.0 * load},
                "ttft_ms": {"p50": 20 + load, "p95": 30 + 20.0 * load},
                "tpot_ms": {"p95": 7 + load / 4},
                "queue_ms": {"p95": 4.0 * number},
                "engine": {"mean_batch": float(load), "preemptions": 0},
            }
        )
    config = {"hardware": "h100-sxm-80gb", "model": "llama-3.1-8b"}
    return {"schema": "servesim.sweep/1", "command": "sweep", "config": config, "rows": rows, "knee": 2}


def scan_document() -> dict[str, Any]:
    """Return the document of a length scan."""
    rows = [
        {
            "asked_tokens": n,
            "produced_tokens": float(n),
            "e2e_ms": 15 + 8.0 * n,
            "tokens_per_s": n / (0.015 + 0.008 * n),
        }
        for n in (10, 50, 100, 200, 250)
    ]
    line = {"fixed_ms": 15.0, "per_token_ms": 8.0, "worst_ms": 0.0}
    document = sweep_document() | {"knee": None}
    return document | {"scan": {"axis": "output_tokens", "rows": rows, "ttft": None, "e2e": line, "warnings": []}}


def materials() -> dict[str, ReportInput]:
    """Return the report of each golden picture."""
    one = ReportInput("burst", [named(burst(), "burst", "ttft_p95=5s", "itl_p99=500ms")])
    two = ReportInput("two runs", [named(burst(), "plain"), named(burst(True), "cached")])
    told = ReportInput("simulated and measured", [named(burst(), "simulated"), named(streams(), "measured")])
    grids = ReportInput("grids")
    grids.grids = [
        grid_of(make(), name=name, path=name) for name, make in (("sweep", sweep_document), ("scan", scan_document))
    ]
    return {"burst": one, "two": two, "measured": told, "grids": grids}


def golden_pictures() -> dict[str, str]:
    """Return the text of every golden picture by the name of its file."""
    wanted = {
        "burst": ("timeline", "latency", "ttft", "itl", "requests", "roofline"),
        "two": ("timeline", "latency"),
        "measured": ("timeline", "itl"),
        "grids": ("curve", "scan"),
    }
    pictures = {}
    for name, report in materials().items():
        for figure_name in wanted[name]:
            figure = FIGURES[figure_name](report)
            assert figure is not None
            pictures[f"{name}-{figure_name}.svg"] = picture([figure], report.title)
    return pictures


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.svg"):
        path.unlink()
    for file, content in golden_pictures().items():
        (GOLDEN / file).write_text(content, encoding="utf-8")
    sys.exit(0)
