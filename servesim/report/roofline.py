"""The roofline with a run's steps on it: what a step may reach at most, and what it reached.

Across is the arithmetic intensity of a step, its FLOPs for each byte of weights and KV that it reads; up is what it
computed in a second. The step log has no context lengths, so the tokens in the KV blocks in use stand for the context
that a step reads. The device is known of a simulated run; for a measured one it must be named.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Model
from servesim.config.build import build_server
from servesim.config.option import given_of
from servesim.config.server import ServerSpec
from servesim.cost.roofline import critical_batch
from servesim.errors import ServesimError
from servesim.report.figure import Figure, Key, Panel, logarithmic
from servesim.report.input import ReportInput, number_at
from servesim.report.series import cloud_points
from servesim.report.svg import dots_path, line_path
from servesim.report.timeline import STYLES
from servesim.runs.records import Run
from servesim.units import format_number

TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the picture needs of a model on a device, of one of its `tensor_parallel` parts."""

    model: Model
    hardware: Hardware
    tensor_parallel: int
    block_size: int
    kv_bytes_per_token: int

    @property
    def flop_per_token(self) -> float:
        return 2 * self.model.compute_params / self.tensor_parallel

    @property
    def weights_bytes(self) -> float:
        return self.model.weights_bytes / self.tensor_parallel

    @property
    def batch_1_intensity(self) -> float:
        """FLOPs per byte of one sequence with no context: 1 in 16-bit, whatever the model's size."""
        return self.flop_per_token / self.weights_bytes

    @property
    def critical_intensity(self) -> float:
        """FLOPs per byte at which arithmetic takes as long as reading, by the efficiencies that are reached."""
        return self.hardware.ridge_flop_per_byte * self.hardware.mfu / self.hardware.mbu

    def intensity(self, tokens: float, context_tokens: float) -> float:
        """Return the FLOPs per byte of a step of `tokens` over `context_tokens`."""
        read = self.weights_bytes + context_tokens * self.kv_bytes_per_token
        return tokens * self.flop_per_token / read

    def roof(self, intensity: float, mfu: float = 1.0, mbu: float = 1.0) -> float:
        """Return the most FLOP/s at `intensity`."""
        return min(self.hardware.tflops * TERA * mfu, intensity * self.hardware.bandwidth_gb_s * 1e9 * mbu)


def device_of(config: Mapping[str, Any], hardware: str | None = None, model: str | None = None) -> Device | None:
    """Return the device that a configuration names, or the one that is named here; None where neither is known."""
    asked = given_of(ServerSpec, config)
    if hardware is not None:
        asked = {"hardware": hardware, "model": model or config.get("model")}
    if not isinstance(asked.get("model"), str) or "hardware" not in asked:
        return None
    try:
        server = build_server(ServerSpec(**asked))
    except (ServesimError, TypeError):
        return None
    return Device(
        model=server.model,
        hardware=server.hardware,
        tensor_parallel=server.spec.tensor_parallel_size,
        block_size=server.config.block_size,
        kv_bytes_per_token=server.model.kv_bytes_per_token(server.spec.tensor_parallel_size),
    )


def roofline(report: ReportInput) -> Figure | None:
    """Return the picture on the first run's device that is known; None where no run's is."""
    runs = report.runs[:STYLES]
    configs = [named.run.config for named in runs] + [grid.config for grid in report.grids]
    known = (device_of(config, report.hardware, report.model) for config in configs)
    device = next((device for device in known if device is not None), None)
    if device is None:
        return None
    own = [device_of(named.run.config) or device for named in runs]
    steps = [(number, list(step_places(named.run, own[number]))) for number, named in enumerate(runs)]
    means = [(number, place) for number, named in enumerate(runs) if (place := mean_place(named.run, device))]
    places = [place for _, cloud in steps for place in cloud]
    panel = _axes(device, [(x, y) for x, y, _ in places] + [place for _, place in means])
    keys = [
        Key("roof", "line", "roof by the datasheet"),
        Key("roof reached", "line", "roof that is reached (mfu, mbu)"),
    ]
    several = len(runs) > 1
    for number, cloud in steps:
        decodes, prefills = ([(x, y) for x, y, prefill in cloud if prefill == with_it] for with_it in (False, True))
        panel.mark(dots_path(cloud_points(panel, decodes)), f"dot big s{number}")
        panel.mark(dots_path(cloud_points(panel, prefills)), f"dot s{number if several else 1}")
        if cloud:
            name = f" of {runs[number].name}" if several else ""
            keys.append(Key(f"dot big s{number}", "dot", f"steps{name} that only decode (large)"))
            keys.append(Key(f"dot s{number if several else 1}", "dot", f"steps{name} with a prefill (small)"))
    for number, place in means:
        panel.mark(dots_path([panel.point(*place)]), f"square s{number}")
        keys.append(Key(f"square s{number}", "square", f"{runs[number].name}, on average"))
    others = [
        f"{named.name} ran {each.model.name} on {each.hardware.name}, whose roof is not drawn."
        for named, each in zip(runs, own, strict=True)
        if (each.model.name, each.hardware.name) != (device.model.name, device.hardware.name)
    ]
    caption = " ".join([_caption(device), *others])
    return Figure(name="roofline", title="Roofline", caption=caption, panels=[panel], keys=keys)


def step_places(run: Run, device: Device) -> Iterator[tuple[float, float, bool]]:
    """Yield (FLOP per byte, FLOP/s, whether it had a prefill) of every step, of one device."""
    if run.steps is None:
        return
    steps, per_token = run.steps, device.flop_per_token
    rows = zip(steps.durations_s(), steps.decodes, steps.prefill_tokens, steps.kv_blocks, strict=False)
    for duration_s, decodes, prefill_tokens, blocks in rows:
        tokens = decodes + prefill_tokens
        if tokens and duration_s > 0:
            intensity = device.intensity(tokens, blocks * device.block_size)
            yield intensity, tokens * per_token / duration_s, prefill_tokens > 0


def mean_place(run: Run, device: Device) -> tuple[float, float] | None:
    """Return where a measured run lies on average, from its server's mean batch and tokens; None where unknown."""
    if run.steps is not None:
        return None
    batch, window_s = number_at(run.server, "mean_batch"), number_at(run.server, "window_s")
    prompt, output = number_at(run.server, "prompt_tokens"), number_at(run.server, "output_tokens")
    if not batch or not window_s or output is None or batch <= 0 or window_s <= 0:
        return None
    reached = (output + (prompt or 0.0)) * device.flop_per_token / window_s
    return (device.intensity(batch, 0), reached) if reached > 0 else None


def _axes(device: Device, places: list[tuple[float, float]]) -> Panel:
    """Return the panel with roofs, ridge and the batches that matter."""
    ridge, hardware = device.hardware.ridge_flop_per_byte, device.hardware
    least = min([device.batch_1_intensity, *(x for x, _ in places)]) / 1.6
    most = max([ridge * 4, device.critical_intensity * 4, *(x for x, _ in places)]) * 1.05
    lowest = min([device.roof(least, hardware.mfu, hardware.mbu), *(y for _, y in places)]) / 1.3
    panel = Panel(
        logarithmic("arithmetic intensity, FLOP per byte read (log)", least, most),
        logarithmic(
            "TFLOP/s (log)", lowest, max([hardware.tflops * TERA, *(y for _, y in places)]) * 1.5, divisor=TERA
        ),
        300,
    )
    low, high = panel.x.low, panel.x.high
    for mfu, mbu, classes in ((1.0, 1.0, "roof"), (hardware.mfu, hardware.mbu, "roof reached")):
        corner = ridge * mfu / mbu
        start = max(low, panel.y.low / (hardware.bandwidth_gb_s * 1e9 * mbu))
        points = [(x, device.roof(x, mfu, mbu)) for x in (start, min(max(corner, start), high), high)]
        panel.mark(line_path([panel.point(x, y) for x, y in points]), classes)
    panel.upright(ridge, f"ridge {ridge:.0f} FLOP/byte", "guide", low=True)
    panel.upright(device.batch_1_intensity, f"batch 1: {device.batch_1_intensity:.2g} FLOP/byte", "guide")
    batch = critical_batch(device.model, hardware, 0, device.tensor_parallel)
    if batch is not None:
        label = f"critical batch {format_number(batch, 0)}"
        panel.upright(device.critical_intensity, label, "guide", row=1, low=True)
    return panel


def _caption(device: Device) -> str:
    hardware = device.hardware
    parts = f", one of {device.tensor_parallel} devices" if device.tensor_parallel > 1 else ""
    return (
        f"{device.model.name} on {hardware.name}{parts}: "
        f"{hardware.tflops:g} TFLOP/s and {hardware.bandwidth_gb_s:g} GB/s, "
        f"of which mfu {hardware.mfu:g} and mbu {hardware.mbu:g} are reached. Left of the ridge a step waits for "
        "memory, right of it for arithmetic; the critical batch is where decoding crosses over, context aside. "
        "A step's context is taken to be the tokens in its KV blocks; its overhead keeps it below the roof."
    )
