"""What a run used: device-hours, money, energy.

A replica's devices are paid for from the start to the end of the run; of a fleet that grows and shrinks, from each
launch to the end of its drain. Energy is an estimate from two figures of the catalogue,

    energy = idle power x paid time + (peak power - idle power) x time at the roofline,

where the time at the roofline is that of all steps without their host overhead: a device waits for the host at rest and
else works as hard as the roofline lets it, be it on arithmetic or on memory. Measured decode draws less than the peak
(half to three quarters of it), so that this is an upper estimate for memory-bound work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.catalog.hardware import Hardware
from servesim.config.build import Server
from servesim.config.fleet import price_of
from servesim.cost.detailed import DetailedParameters
from servesim.errors import InputError
from servesim.runs.records import Outcome, Run

ESTIMATE = "an estimate: idle power x paid time + (peak - idle) x time of steps without their host overhead"


@dataclass(slots=True, frozen=True, kw_only=True)
class Worked:
    """One replica: the devices that it has, the seconds that they are paid for, those of its steps, and how many."""

    server: Server
    paid_s: float
    busy_s: float
    steps: int

    @property
    def devices(self) -> int:
        return self.server.spec.tensor_parallel_size * self.server.spec.pipeline_parallel_size


def usage(run: Run, worked: Sequence[Worked], prices: Sequence[str], *, energy: bool) -> dict[str, Any]:
    """Return what a run used, for its report. Raises `InputError` for a device without the price that it needs."""
    completed = run.records.outcome.count(Outcome.COMPLETED)
    tokens = sum(
        tokens
        for tokens, outcome in zip(run.records.output_tokens, run.records.outcome, strict=True)
        if outcome == Outcome.COMPLETED
    )
    hours: dict[str, float] = {}
    for one in worked:
        device = one.server.spec.hardware
        hours[device] = hours.get(device, 0.0) + one.devices * one.paid_s / 3600
    total_hours = math.fsum(hours.values())
    used: dict[str, Any] = {
        "device_hours": total_hours,
        "device_hours_by_kind": hours,
        "device_seconds_per_request": total_hours * 3600 / completed if completed else None,
    }
    if prices:
        cost = _cost(hours, prices)
        used["cost"] = cost
        used["cost_per_1m_output_tokens"] = cost / tokens * 1e6 if tokens else None
        used["cost_per_1k_requests"] = cost / completed * 1e3 if completed else None
    if energy:
        used["energy"] = _energy(worked, tokens, completed)
    return used


def _cost(hours: Mapping[str, float], prices: Sequence[str]) -> float:
    costs = []
    for device, device_hours in hours.items():
        price = price_of(device, prices)
        if price is None:
            raise InputError(f"{device} has no price; give one for every device, such as {device}=2.5/h")
        costs.append(price * device_hours)
    return math.fsum(costs)


def _energy(worked: Sequence[Worked], tokens: int, completed: int) -> dict[str, Any] | None:
    """Return the energy in joules and what it comes to; None where a device's power is unknown."""
    joules = paid_s = active_s = 0.0
    sources = {}
    for one in worked:
        hardware = one.server.hardware
        if hardware.peak_w is None or hardware.idle_w is None:
            return None
        active = max(0.0, one.busy_s - one.steps * _host_s(one.server.spec.cost_model, hardware))
        joules += one.devices * (hardware.idle_w * one.paid_s + (hardware.peak_w - hardware.idle_w) * active)
        paid_s += one.devices * one.paid_s
        active_s += one.devices * active
        sources[hardware.name] = hardware.power_source
    return {
        "joules": joules,
        "mean_w": joules / paid_s if paid_s else None,  # of one device
        "at_roofline": active_s / paid_s if paid_s else None,
        "joules_per_output_token": joules / tokens if tokens else None,
        "joules_per_request": joules / completed if completed else None,
        "method": ESTIMATE,
        "source": sources,
    }


def _host_s(cost_model: str | None, hardware: Hardware) -> float:
    """Return the seconds of a step in which its device waits for the host."""
    if cost_model == "detailed":
        return DetailedParameters.of(hardware).overhead_ms / 1e3
    return hardware.overhead_s
