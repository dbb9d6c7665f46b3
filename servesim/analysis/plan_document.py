"""What a plan says, as the body of its JSON document: every candidate, the front, the choice and how to start it."""

from __future__ import annotations

from typing import Any

from servesim.analysis.plan import Offer, Planner, interval_95
from servesim.analysis.plan_space import Candidate
from servesim.analysis.remedies import REMEDIES
from servesim.analysis.server_flags import command_lines
from servesim.engine.server import Server, build_server


def plan_body(planner: Planner) -> dict[str, Any]:
    """Return the body of the document of a plan of which every row is there, or which was interrupted."""
    spec = planner.spec
    finalists, front, chosen = planner.finalists(), planner.front(), planner.chosen()
    workload = spec.question.workload
    return {
        "workload": {
            "requests": workload.requests,
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.output_tokens,
            "trace": workload.trace,
        },
        "slo": [
            {"name": slo.name, "metric": slo.metric, "percentile": slo.percentile, "limit_ms": slo.limit_s * 1000}
            for slo in spec.question.slos
        ],
        "rate": spec.rate,
        "cost_unit": _cost_unit(planner),
        "search_seeds": spec.search_seeds(),
        "fresh_seeds": spec.unused_seeds(),
        "candidates": [_candidate(planner, each, finalists) for each in planner.searched()],
        "front": [_offer(planner, offer) for offer in front],
        "chosen": None if chosen is None else _chosen(planner, chosen),
        "next": [] if chosen is None else _next_steps(planner, chosen, front),
        "runs": _runs(planner),
    }


def _cost_unit(planner: Planner) -> str:
    what = "price" if planner.spec.prices else "devices"
    if planner.spec.rate is not None:
        return f"{what} per hour" if planner.spec.prices else what
    return f"{what} per million requests" if planner.spec.prices else "device-hours per million requests"


def _candidate(planner: Planner, candidate: Candidate, finalists: list[Candidate]) -> dict[str, Any]:
    edge = planner.edge(candidate)
    rates = planner.rates(candidate) if candidate in finalists else None
    interval = interval_95(rates) if rates else None
    offers = planner.offers(candidate) if rates else []
    cost = planner.cost(candidate, edge["rate"]) if edge["rate"] else None
    return {
        "key": candidate.key,
        **candidate.describe(),
        "devices": candidate.devices,
        "estimate": edge["estimate"],
        "rate": edge["rate"] if rates is None else min(rates) or None,
        "next_rate": edge.get("next_rate"),
        "rates": rates,
        "interval": None if interval is None else {"low": interval[0], "high": interval[1]},
        "cost": offers[0].cost if offers else cost,
        "steps_back": planner.steps_back(candidate) if offers else 0,
        "finalist": candidate in finalists,
        "same_as": _same_as(planner, candidate),
        "cut": edge["impossible"] or _left_out(planner, candidate, finalists),
        "too_short": edge.get("too_short", False),
        "missed": edge.get("missed"),
        "binds": edge.get("binds"),
        "at": edge.get("at"),
    }


def _same_as(planner: Planner, candidate: Candidate) -> str | None:
    """Return the key of the first candidate that did exactly the same, None for itself."""
    if not planner.edge(candidate)["rate"]:
        return None
    first = planner.equals(candidate)[0]
    return None if first == candidate else first.key


def _left_out(planner: Planner, candidate: Candidate, finalists: list[Candidate]) -> str | None:
    """Return the bound by which a candidate was not searched any further."""
    if candidate in finalists:
        return None
    edge = planner.edge(candidate)
    if edge["next_rate"] is None:
        return "not among the cheapest"
    least = planner.cost(candidate, edge["next_rate"])
    return f"misses at {edge['next_rate']:.4g} requests/s, so costs {least:,.2f} or more"


def _offer(planner: Planner, offer: Offer) -> dict[str, Any]:
    return {
        "key": offer.candidate.key,
        **offer.candidate.describe(),
        "replicas": offer.replicas,
        "devices": offer.replicas * offer.candidate.devices,
        "rate": offer.rate,
        "cost": offer.cost,
        "at": planner.at(offer),
    }


def _chosen(planner: Planner, offer: Offer) -> dict[str, Any]:
    candidate = offer.candidate
    server = build_server(candidate.server)
    rates = planner.rates(candidate)
    interval = interval_95(rates)
    fresh = planner.confirmed(offer) or []
    fleet_unit = planner.fleet_unit()
    fleet = None if fleet_unit is None else planner.rows.get(fleet_unit.id)
    return {
        **_offer(planner, offer),
        "limits": _limits(server),
        "rates": rates,
        "interval": None if interval is None else {"low": interval[0], "high": interval[1]},
        "binds": planner.edge(candidate).get("binds"),
        "fresh": [{"seed": row["seed"], "met": row["at"]["met"], "at": row["at"]} for row in fresh],
        "steps_back": planner.steps_back(candidate),
        "fleet": None if fleet is None else {"router": fleet["router"], "at": fleet["at"]},
        "flags": command_lines(server, apart=candidate.fleet.disagg is not None),
    }


def _limits(server: Server) -> dict[str, Any]:
    config = server.config
    return {
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "prefix_caching": config.prefix_caching,
    }


def _next_steps(planner: Planner, chosen: Offer, front: list[Offer]) -> list[dict[str, Any]]:
    """Return what would have to change for lower latency, for more load on one server, and for more of what binds."""
    steps: list[dict[str, Any]] = []
    share = (planner.at(chosen) or {}).get("share_of_limit")
    faster = [o for o in front if share is not None and (planner.at(o) or {})["share_of_limit"] < share]
    if faster:
        steps.append({"for": "lower latency", **_offer(planner, faster[0])})
    rate = min(planner.rates(chosen.candidate))
    larger = [each for each in planner.possible() if planner.edge(each)["rate"] > 1.05 * rate]
    if larger:
        edge = planner.edge(larger[0])
        steps.append(
            {
                "for": "more load on one unit",
                **larger[0].describe(),
                "devices": larger[0].devices,
                "rate": edge["rate"],
                "cost": planner.cost(larger[0], edge["rate"]),
            }
        )
    if planner.spec.rate is not None:
        steps.append(
            {
                "for": "more load",
                "up_to": chosen.replicas * rate,
                "then": f"{chosen.replicas + 1} replicas, up to {(chosen.replicas + 1) * rate:.4g} requests/s",
            }
        )
    binds = planner.edge(chosen.candidate).get("binds")
    if binds is not None and binds["budget"] in REMEDIES:
        remedy = REMEDIES[binds["budget"]]
        steps.append({"for": f"more {binds['budget']}", "change": remedy.change, "knobs": remedy.knobs()})
    return steps


def _runs(planner: Planner) -> int:
    return sum(len(row.get("probes", ())) or row["kind"] == "at" for row in planner.rows.values())
