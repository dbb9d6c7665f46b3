"""The roofline's three figures from two measurements, by algebra: where a fit may start.

    prefill: an unqueued prompt, ruled by compute        ttft = overhead + flop x prompt / compute
    slow: one sequence or few, ruled by the weight read  tpot = overhead + read / bandwidth
    fast: at or beyond the critical batch                tpot = overhead + flop x batch / compute

`read` is weights and contexts. Of each `tpot` the time is taken off in which the prompts of the others are computed,
`batch x prompt x flop / compute` during the whole of an answer. Three equations for overhead, bandwidth and compute,
which hold only if the answer agrees that they do: else there is none. Queueing is left out, which is why it is a start
and not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.analysis.measurement import Measurement

_ROUNDS = 20  # of the fixed point: prefills stall decodes, and what is left of these tells what a prefill costs


@dataclass(slots=True, frozen=True, kw_only=True)
class ClosedForm:
    """The roofline's figures, and the labels of the two measurements that they came from."""

    mfu: float
    mbu: float
    overhead_ms: float
    slow: str
    fast: str


@dataclass(slots=True, frozen=True)
class _Load:
    """What a closed form needs of a measurement, of one device."""

    first_s: float
    token_s: float
    batch: float
    prompt: float
    output: float
    read_bytes: float  # of a decode step in mid-answer
    flop: float  # of one token

    @classmethod
    def of(cls, measurement: Measurement) -> _Load:
        model, parallel = measurement.server.model, measurement.server.spec.tensor_parallel_size
        batch = min(measurement.concurrency, measurement.server.config.max_num_seqs)
        context = batch * (measurement.prompt_tokens + measurement.output_tokens / 2)
        figures = measurement.figures
        return cls(
            first_s=figures.get("ttft_p50", figures["ttft_mean"]),
            token_s=figures["tpot_mean"],
            batch=batch,
            prompt=measurement.prompt_tokens,
            output=measurement.output_tokens,
            read_bytes=(model.weights_bytes + context * model.kv_bytes_per_token()) / parallel,
            flop=2 * model.compute_params / parallel,
        )

    def decode_s(self, flop_per_s: float) -> float:
        """Return the time of a decode step: a token's, less what the prompts of the others take of it."""
        return self.token_s - (self.batch - 1) * self.prompt * self.flop / flop_per_s / max(self.output, 1.0)


def roofline_from(measurements: Sequence[Measurement]) -> ClosedForm | None:
    """Return the roofline that the least and the most concurrent measurement tell; None where they tell none."""
    useful = [m for m in measurements if "tpot_mean" in m.figures and "ttft_mean" in m.figures]
    if len(useful) < 2:
        return None
    least, most = min(useful, key=lambda m: m.concurrency), max(useful, key=lambda m: m.concurrency)
    if least.server.model != most.server.model or least.concurrency >= most.concurrency:
        return None
    slow, fast = _Load.of(least), _Load.of(most)
    found = _solve(slow, fast)
    if found is None:
        return None
    overhead_s, bandwidth, flop_per_s = found
    if 0.8 * fast.read_bytes / bandwidth > fast.flop * fast.batch / flop_per_s:
        return None  # the batch was still ruled by its reads
    device = least.server.hardware
    return ClosedForm(
        mfu=flop_per_s / (device.tflops * 1e12),
        mbu=bandwidth / (device.bandwidth_gb_s * 1e9),
        overhead_ms=overhead_s * 1e3,
        slow=least.label,
        fast=most.label,
    )


def _solve(slow: _Load, fast: _Load) -> tuple[float, float, float] | None:
    """Return (overhead, bytes/s, FLOP/s), None where the figures contradict each other."""
    flop_per_s, overhead_s = slow.flop * slow.prompt / slow.first_s, 0.0
    for _ in range(_ROUNDS):
        fast_s = fast.decode_s(flop_per_s)
        if slow.prompt <= fast.batch or not 0 < fast_s < slow.first_s:
            return None
        flop_per_s = slow.flop * (slow.prompt - fast.batch) / (slow.first_s - fast_s)
        overhead_s = max(fast_s - fast.flop * fast.batch / flop_per_s, 0.0)
    slow_s = slow.decode_s(flop_per_s)
    if slow_s <= overhead_s:
        return None
    return overhead_s, slow.read_bytes / (slow_s - overhead_s), flop_per_s
