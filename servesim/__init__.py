"""A token-level simulator, load generator and tuning aid for servers of large language models.

From Python there is what the command line has, by the options' names. What fits, and what a step costs:

>>> from servesim import load_hardware, load_model, plan_capacity
>>> model, device = load_model("llama-3.1-8b"), load_hardware("l4-24gb")
>>> plan = plan_capacity(model, device, tokens_per_request=1500)
>>> plan.num_blocks, plan.kv_tokens, round(plan.max_concurrency, 2)
(1941, 31056, 20.7)

>>> from servesim import critical_batch, step_seconds
>>> round(1000 * step_seconds(model, device, tokens=1), 2), round(critical_batch(model, device))
(72.38, 269)

>>> from servesim import CapacityError
>>> try:
...     plan_capacity(load_model("llama-3.1-70b"), device)
... except CapacityError as error:
...     print(str(error).partition(":")[0])
llama-3.1-70b does not fit l4-24gb

A run, what it came to, and whether it met its objectives. `simulate` takes what stands in the `config` of `servesim
simulate --json`: the options with underscores, a unit at their end (`client_timeout_s`); the same arguments give the
same run:

>>> from servesim import parse_slos, simulate, summarize
>>> load = dict(hardware="l4-24gb", requests=200, rate=1.0, prompt_tokens="512", output_tokens="64")
>>> run = simulate(**load)
>>> summary = summarize(run, parse_slos(["ttft_p95=1s"]))
>>> summary.requests.completed, summary.engine.preemptions, summary.slo[0].met
(200, 0, True)
>>> round(summary.tpot_ms.p50, 1), summary.tpot_ms.count
(79.5, 200)

Every request is in columns, its token times in seconds:

>>> run.records.prompt_tokens[0], run.records.output_tokens[0], len(run.token_times(0))
(512, 64, 64)

Runs are kept and read back to the bit, simulated and measured ones alike:

>>> import os, tempfile
>>> from servesim import read_run, write_run
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "run.jsonl")
...     write_run(path, run, "simulate")
...     summarize(read_run(path)).ttft_ms == summary.ttft_ms
True

Two runs side by side, with what noise would explain:

>>> from servesim import compare
>>> faster = simulate(**load | {"hardware": "l40s-48gb"})
>>> row = compare(run, faster).rows["tpot_p50"]
>>> row.verdict, row.b < row.a
('better', True)

What a server's own `/metrics` say of the time between two scrapes:

>>> from servesim import server_window
>>> page = "vllm:num_preemptions_total %d\\nvllm:generation_tokens_total %d"
>>> window = server_window(page % (2, 100), page % (5, 900), window_s=4.0)
>>> window["dialect"], window["preemptions"], window["output_tokens"]
('vllm', 3, 800)

The pool of KV blocks by itself, for those who build on it:

>>> from servesim import BlockPool
>>> pool = BlockPool(plan.num_blocks, 16)
>>> pool.take(10)
>>> pool.free
1931

Whatever is wrong with an argument or a file is an `InputError`, whatever cannot be done a `RunError`, of one line each.
The names are resolved on first use: `import servesim` imports nothing, and one name imports one room.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servesim.catalog.hardware import load_hardware as load_hardware
    from servesim.catalog.models import load_model as load_model
    from servesim.client.window import server_window as server_window
    from servesim.comparison.compare import compare as compare
    from servesim.cost.memory import plan_capacity as plan_capacity
    from servesim.cost.roofline import critical_batch as critical_batch
    from servesim.cost.roofline import step_seconds as step_seconds
    from servesim.engine.blocks import BlockPool as BlockPool
    from servesim.errors import CapacityError as CapacityError
    from servesim.errors import InputError as InputError
    from servesim.errors import RunError as RunError
    from servesim.fleet.simulate import simulate as simulate
    from servesim.runs.reader import read_run as read_run
    from servesim.runs.writer import write_run as write_run
    from servesim.summary.slo import parse_slos as parse_slos
    from servesim.summary.summary import summarize as summarize

__version__ = "0.1.0"

_HOMES = {
    "BlockPool": "servesim.engine.blocks",
    "CapacityError": "servesim.errors",
    "InputError": "servesim.errors",
    "RunError": "servesim.errors",
    "compare": "servesim.comparison.compare",
    "critical_batch": "servesim.cost.roofline",
    "load_hardware": "servesim.catalog.hardware",
    "load_model": "servesim.catalog.models",
    "parse_slos": "servesim.summary.slo",
    "plan_capacity": "servesim.cost.memory",
    "read_run": "servesim.runs.reader",
    "server_window": "servesim.client.window",
    "simulate": "servesim.fleet.simulate",
    "step_seconds": "servesim.cost.roofline",
    "summarize": "servesim.summary.summary",
    "write_run": "servesim.runs.writer",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
