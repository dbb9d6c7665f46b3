"""What a plan chooses among: servers, how many devices each takes, what they cost, and the workload they all meet.

A candidate is one server, or a unit of prefill and decode servers over a link. Here is also what can be said of it
without running it: a latency that no request can beat, and roughly the rate that it can sustain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from servesim.config.build import Server
from servesim.config.fleet import FleetSpec, price_of, prices_by_device
from servesim.config.server import ServerSpec
from servesim.errors import CapacityError, InputError
from servesim.fleet.build import Deployment, build_deployment
from servesim.stats import nearest_rank
from servesim.summary.slo import Slo
from servesim.units import format_ms
from servesim.workload.requests import Requests

DEFAULT_LINK = "25GB/s"  # a 200 Gb/s network card


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One choice: the server asked for, and whether it is disaggregated. A unit is what one replica takes."""

    server: ServerSpec
    fleet: FleetSpec = field(default_factory=FleetSpec)

    @property
    def devices(self) -> int:
        """Devices of one unit: one server, or one set of prefill and decode servers."""
        spec = self.server
        servers = sum(kind.count for kind in self.fleet.kinds())
        return servers * spec.tensor_parallel_size * spec.pipeline_parallel_size * spec.data_parallel_size

    @cached_property
    def key(self) -> str:
        """A short name that depends on nothing but what the candidate is."""
        return digest({"server": asdict(self.server), "fleet": asdict(self.fleet)})[:12]

    def describe(self) -> dict[str, Any]:
        """Return what was asked for, as JSON: the fields of the server that were given, and the split."""
        blank = ServerSpec()
        given = {
            each.name: value
            for each in fields(ServerSpec)
            if (value := getattr(self.server, each.name)) != getattr(blank, each.name)
        }
        always = ("model", "hardware", "tensor_parallel_size")
        base = {name: getattr(self.server, name) for name in always}
        return {**base, **given, "disagg": self.fleet.disagg}


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def candidates(servers: Sequence[ServerSpec], fleets: Sequence[FleetSpec]) -> list[Candidate]:
    """Return every server in every form, in order, none twice."""
    found = {c.key: c for spec in servers for fleet in fleets for c in [Candidate(server=spec, fleet=fleet)]}
    return list(found.values())


def possible(found: Sequence[Candidate], notes: list[str]) -> list[Candidate]:
    """Return the candidates whose options go together, and note the others; raise `InputError` if there are none.

    A grid has corners: more sequences than tokens per step, devices that do not divide a model's heads.
    """
    refused: dict[str, InputError] = {}
    kept = []
    for candidate in found:
        try:
            build_deployment(candidate.server, candidate.fleet)
        except CapacityError:
            pass  # which the plan tells in its own words
        except InputError as error:
            refused.setdefault(str(error), error)
            continue
        kept.append(candidate)
    if not kept:
        raise next(iter(refused.values()))
    notes += [f"left out of the grid: {told}" for told in refused]
    return kept


def prices_an_hour(found: Sequence[Candidate], prices: Sequence[str]) -> dict[str, float]:
    """Return the price of every device among the candidates; empty if there are no `prices`.

    Raises `InputError` for a price of another device, and for a device without one.
    """
    devices = list(dict.fromkeys(candidate.server.hardware for candidate in found))
    for device in prices_by_device(prices):
        if device and device not in devices:
            raise InputError(f"price of {device}, which is not among the hardware of the plan: {', '.join(devices)}")
    known: dict[str, float] = {}
    for device in devices if prices else ():
        an_hour = price_of(device, prices)
        if an_hour is None:
            raise InputError(f"{device} has no price; give one for every device, or none")
        known[device] = an_hour
    return known


@dataclass(slots=True, frozen=True, kw_only=True)
class Prospect:
    """A candidate before any run. `impossible` says why no rate at all can do, with the bound; else None."""

    deployment: Deployment | None
    estimate: float | None  # requests a second that the roofline allows, latencies aside
    impossible: str | None = None

    @property
    def server(self) -> Server | None:
        return None if self.deployment is None else self.deployment.kinds[0].server


def prospect_of(candidate: Candidate, requests: Requests, slos: Sequence[Slo]) -> Prospect:
    """Say of `candidate` what needs no run: whether it fits, whether one request alone meets `slos`, about its rate."""
    try:
        deployment = build_deployment(candidate.server, candidate.fleet)
        server = deployment.kinds[0].server
        server.plan.require_start()
    except CapacityError as error:
        return Prospect(deployment=None, estimate=None, impossible=str(error))
    too_slow = _floor(server, requests, slos)
    return Prospect(deployment=deployment, estimate=_estimate(candidate, server, requests), impossible=too_slow)


def _floor(server: Server, requests: Requests, slos: Sequence[Slo]) -> str | None:
    """Return the bound by which some objective cannot be met even by a request that is alone, None if all can.

    Every gap is at least a decode step of one sequence, and at least the share of the prompts above a percentile's
    rank is computed in no less than one step; what the prefix cache holds is not computed.
    """
    cost = server.cost()
    prompts = sorted(requests.prompt_tokens)
    gap_s = cost.decode(1, prompts[0])
    speculates = server.config.spec_tokens > 0  # a step may then give several tokens
    for slo in slos:
        at_least_s = 0.0
        if slo.metric in ("tpot", "itl") and not speculates:
            at_least_s, what = gap_s, f"one decode step of one sequence takes {format_ms(gap_s * 1000)}"
        elif slo.metric in ("ttft", "ttfo", "e2e", "ttft_from_planned", "e2e_from_planned"):
            tokens = prompts[nearest_rank(slo.percentile, len(prompts)) - 1]
            if server.spec.prefix_caching and requests.content is not None:
                tokens = 1
            at_least_s = cost.step(0, 0, [(tokens, tokens)])
            what = f"a prompt of {tokens:,} tokens alone takes {format_ms(at_least_s * 1000)}"
        if at_least_s > slo.limit_s:
            return f"no rate meets {slo.name} <= {format_ms(slo.limit_s * 1000)}: {what}"
    return None


def _estimate(candidate: Candidate, server: Server, requests: Requests) -> float:
    """Return about the requests a second at which the unit's time is used up; a place to begin, not a bound."""
    plan, spec = server.plan, server.spec
    count = len(requests)
    prompt, output = sum(requests.prompt_tokens) / count, sum(requests.output_tokens) / count
    roofline = server.roofline()
    batch = max(1.0, min(server.config.max_num_seqs, plan.kv_tokens / (prompt + output / 2)))
    decode_s = roofline.seconds(round(batch), round(batch * (prompt + output / 2))) / batch
    prefill_s = prompt * roofline.token_s
    if spec.prefix_caching and requests.content is not None:
        prefill_s /= 2
    ranks = spec.data_parallel_size
    if candidate.fleet.disagg is None:
        return ranks / (prefill_s + output * decode_s)
    prefill, decode = (kind.count * ranks for kind in candidate.fleet.kinds())
    return min(prefill / prefill_s, decode / (output * decode_s))
