"""Turn the knob that a diagnosis names, in the simulator: the same workload on the changed server, figure by figure.

Only what was simulated can be tried: its report has the whole server and workload in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from servesim.analysis.rules import Rule
from servesim.engine.server import Server, build_server
from servesim.engine.simulate import run_workload
from servesim.errors import ServesimError
from servesim.summary import summarize
from servesim.workload.spec import WorkloadSpec


def figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a summary that rules make promises about, under the names they use; times in ms."""
    engine, requests = summary["engine"], summary["requests"]
    found = {
        "preemptions": engine["preemptions"],
        "kv_peak": engine["kv_peak"],
        "mean_batch": engine["mean_batch"],
        "prefix_hit_rate": engine["prefix_hit_rate"] or 0.0,
        "throughput": summary["throughput"]["output_tokens_per_s"],
        "rejected": requests["rejected"],
        "completed": requests["completed"],
    }
    for metric in ("ttft", "tpot", "itl", "queue"):
        for percentile in ("p50", "p95", "p99"):
            found[f"{metric}_{percentile}"] = (summary[f"{metric}_ms"] or {}).get(percentile)
    return {name: float(value) for name, value in found.items() if value is not None}


def turned(
    rule: Rule, server: Server, summary: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return what the knob of `rule` does to the run that `summary` and `config` tell of, or why it was not tried."""
    if rule.remedy.turn is None:
        return None, f"the knob of {rule.name} is not one of the simulated server's"
    change = rule.remedy.turn(server)
    try:
        changed = build_server(replace(server.spec, **change))
        known = {each.name for each in fields(WorkloadSpec)}
        spec = WorkloadSpec(**{key: value for key, value in config.items() if key in known and value is not None})
        run = run_workload(changed, spec, horizon_s=config.get("horizon_s"))
    except ServesimError as error:
        return None, f"the knob cannot be tried: {error}"
    before, after = figures(summary), figures(summarize(run).as_dict())
    return {
        "changed": change,
        "figures": {
            name: {"before": before.get(name), "after": after.get(name)}
            for name in rule.expect
            if name in before or name in after
        },
    }, None
