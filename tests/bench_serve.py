"""`serve` beside `simulate`: the same workload through real sockets, and how late the steps were.

`python3 -m tests.bench_serve [--concurrency 1,32,256]`. On an idle machine throughput is to be within 3 %, the
medians of TTFT and TPOT within 5 %; at 256 streams and 5,000 tokens/s the steps of a server that has one core are to be
less than 5 ms late (p99). The client has the other cores then: the kernel likes to wake it on the server's core in the
middle of a step, where it stays until it has read.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
from typing import Any

from servesim.wire.prometheus import parse_page

REQUESTS = {1: 12, 32: 256, 256: 768}
SERVESIM = [sys.executable, "-m", "servesim"]


def run_json(*options: str) -> Any:
    done = subprocess.run([*SERVESIM, *options, "--json", "--quiet"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


class Server:
    """A server process for one measurement."""

    def __init__(self, *options: str) -> None:
        command = [*SERVESIM, "serve", "--port", "0", "--quiet", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def share_cores(self) -> None:
        """Give the server one core and whatever starts from here the others."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(self.process.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(40)

    def lateness(self) -> tuple[float, float, int]:
        """Return upper bounds of the median and the 99th percentile of the steps' lateness in ms, and the steps."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/metrics")
        page = parse_page(connection.getresponse().read().decode())
        connection.close()
        rows = [(float(s.labels["le"]), s.value) for s in page.samples["servesim:step_lateness_seconds_bucket"]]
        total = rows[-1][1]
        found = [next(bound for bound, count in rows if count >= share * total) for share in (0.5, 0.99)]
        return found[0] * 1e3, found[1] * 1e3, int(total)


def compare(concurrency: int, requests: int, server_options: list[str], load: list[str]) -> None:
    workload = ["--concurrency", str(concurrency), "--requests", str(requests), *load]
    with Server(*server_options) as server:
        told = run_json("loadgen", "--url", server.url, "--api", "completions", "--ignore-eos", *workload)
        late = server.lateness()
    want = run_json("simulate", *server_options, *workload)
    print(
        f"\n{concurrency} streams, {requests} requests; client {told['client']['verdict']}; "
        f"late p50 <= {late[0]:g} ms, p99 <= {late[1]:g} ms of {late[2]:,} steps"
    )
    figures = [
        ("output tok/s", told["throughput"]["output_tokens_per_s"], want["throughput"]["output_tokens_per_s"], 3)
    ]
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        figures.append(
            (f"{name} p50", told[name]["p50"], want[name]["p50"], 5 if name in ("ttft_ms", "tpot_ms") else 0)
        )
        figures.append((f"{name} p99", told[name]["p99"], want[name]["p99"], 0))
    for name, got, wanted, limit in figures:
        off = 100 * (got / wanted - 1)
        verdict = "" if not limit else "within" if abs(off) <= limit else "BEYOND"
        print(f"  {name:<14} {got:>10.2f} {wanted:>10.2f} {off:>+7.2f} %  {verdict} {f'{limit} %' if limit else ''}")


def steady(tokens_per_s: int = 5000) -> None:
    """Measure how late steps are at 256 streams and so many tokens per second."""
    length = ["--prompt-tokens", "64", "--output-tokens", "400"]
    fast = run_json("simulate", "--concurrency", "256", "--requests", "256", *length)
    speed = tokens_per_s / fast["throughput"]["output_tokens_per_s"]
    with Server("--speed", f"{speed:.4f}") as server:
        server.share_cores()
        load = ["--concurrency", "256", "--requests", "512", *length, "--warmup", "0"]
        told = run_json("loadgen", "--url", server.url, "--api", "completions", "--ignore-eos", *load)
        late = server.lateness()
    rate = told["throughput"]["output_tokens_per_s"]
    verdict = "within" if late[1] <= 5 else "BEYOND"
    print(
        f"\n256 streams at {rate:,.0f} tokens/s on one core: late p50 <= {late[0]:g} ms, "
        f"p99 <= {late[1]:g} ms of {late[2]:,} steps  {verdict} 5 ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", default="1,32,256")
    parser.add_argument("--steady", action="store_true", help="only the lateness at 5,000 tokens/s")
    asked, options = parser.parse_known_args()
    print(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; serve, simulate, difference")
    if not asked.steady:
        for concurrency in map(int, asked.concurrency.split(",")):
            compare(concurrency, REQUESTS.get(concurrency, 8 * concurrency), options, [])
    steady()


if __name__ == "__main__":
    main()
