"""`servesim capacity`: what fits, what a step costs at least, and whether the server would start."""

from __future__ import annotations

from typing import Any

from servesim.cli.options import ADAPTERS, CONFIG, COST, DEVICE, JSON, LIMITS, OUTPUT, QUIET, TIERS
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.build import build_server
from servesim.config.option import Group, Option, count, spec_of
from servesim.config.server import ServerSpec
from servesim.cost.memory import CapacityPlan
from servesim.errors import CapacityError
from servesim.report.capacity import beside_lines, capacity_of, capacity_text
from servesim.runs.as_json import as_json

EXAMPLES = (
    "servesim capacity --hardware l4-24gb",
    "servesim capacity --hardware l4-24gb --tokens-per-request 1500",
    "servesim capacity --hardware rtx-3090-24gb --max-model-len 29000",
    "servesim capacity --model llama-3.1-70b --tensor-parallel-size 4 --context 8k --json",
)

# What decides memory and the cost of a step; the scheduler's other limits change neither.
_LIMITS = ("max_model_len", "like_vllm", "rules", "prefix_caching")

EXPLAIN_COST = Option("--explain-cost", "explain_cost", "also the share of each term of the cost model in a step")

QUESTIONS = Group(
    "questions",
    (
        Option(
            "--tokens-per-request",
            "tokens_per_request",
            "tokens of one request, for the most requests at once",
            count(maximum=2**40),
            default="4096",
            common=True,
        ),
        Option(
            "--context",
            "context",
            "also the critical batch at N cached tokens per sequence",
            count(maximum=2**40),
            common=True,
        ),
        EXPLAIN_COST,
    ),
)


def build_parser() -> Parser:
    output = Group("output", (JSON, OUTPUT, CONFIG, QUIET))
    return Parser(
        "capacity",
        "The memory plan of a model on a device, with its arithmetic, and the critical batch.",
        EXAMPLES,
        (DEVICE, LIMITS.only(*_LIMITS), TIERS, ADAPTERS, QUESTIONS, COST, output),
    )


def run(call: Call) -> Result:
    values = call.values
    server = build_server(spec_of(ServerSpec, values), tokens_per_request=values.get("tokens_per_request"))
    plan, context = server.plan, values.get("context")

    def document() -> dict[str, Any]:
        # Reads of runs and their summaries, which a plan printed as text should not wait for.
        from servesim.report.documents import document

        known = server.describe() | {"tokens_per_request": plan.tokens_per_request, "context": context}
        config = {key: known[key] for key in call.parser.options if key in known}
        body = as_json(capacity_of(plan, context, server))
        if values.get("explain_cost"):
            from servesim.report.explain import plan_shares, step_costs

            body["cost"] = as_json(step_costs(plan_shares(server, context)))
        return document("capacity", config, body)

    def text() -> str:
        plain = capacity_text(plan, context, beside_lines(server))
        if not values.get("explain_cost"):
            return plain
        from servesim.report.explain import cost_text, plan_shares

        return plain + "\n" + cost_text(plan_shares(server, context))

    return Result(document=document, text=text, warnings=plan.warnings, error=_start_error(plan))


def _start_error(plan: CapacityPlan) -> CapacityError | None:
    """Return what keeps the server from starting; None where it starts."""
    try:
        plan.require_start()
    except CapacityError as error:
        return error
    return None
