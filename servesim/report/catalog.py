"""What is known of models, devices and formats: a row each, a block each, and the dicts of the JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Attention, Model
from servesim.catalog.weights import WeightFormat
from servesim.units import format_bytes, format_gb, format_number, format_si

WIDTH = 98
LABEL = 14
CONTEXT = 4096  # tokens over which a KV that is no single figure per token is averaged

Fact = tuple[str, str]


def models_text(models: Iterable[Model]) -> str:
    """Return one row for each model."""
    header = ("model", "parameters", "active", "layers", "weights", "format", "kv/token", "date")
    rows = [
        (
            model.name,
            format_si(model.params),
            format_si(model.compute_params) if model.experts else "-",
            str(model.layers),
            format_gb(model.weights_bytes),
            model.weight_dtype,
            format_bytes(model.kv_bytes_per_token(context=CONTEXT)),
            model.date or "-",
        )
        for model in models
    ]
    return _table(header, rows, left=(0, 5, 7))


def model_text(model: Model, repositories: Sequence[str] = ()) -> str:
    """Return what is known of one model as a labelled block."""
    matrices = "gate, up and down" if model.gated else "up and down"
    dense = f"{model.intermediate:,} wide, {matrices}" if model.mlp_params else ""
    facts = [
        ("parameters", f"{model.params:,} ({format_si(model.params)})"),
        ("shape", f"{model.layers:,} layers, {model.hidden:,} channels, {model.heads:,} heads"),
        ("vocabulary", f"{model.vocab:,}, {'the head is the table' if model.tied_embeddings else 'a head of its own'}"),
        ("feed-forward", dense),
        *(("keeps", _group_text(group, model)) for group in model.attention),
        (
            "parts",
            ", ".join(f"{name.replace('_', ' ')} {format_si(count)}" for name, count in _parts(model).items() if count),
        ),
        ("weights", f"{format_gb(model.weights_bytes)}, {_format_text(model)}"),
        ("kv per token", _kv_text(model)),
    ]
    if model.experts is not None:
        experts = model.experts
        shared = f" and {experts.shared} for every token" if experts.shared else ""
        text = f"{experts.top_k} of {experts.count}{shared} in {experts.layers} layers, {experts.intermediate:,} wide"
        facts.insert(1, ("active", f"{model.compute_params:,} ({format_si(model.compute_params)}) for one token"))
        facts.insert(5, ("experts", text))
    if repositories:
        facts.append(("also as", ", ".join(repositories)))
    facts.append(("source", f"{model.source}{f' ({model.date})' if model.date else ''}"))
    return _block(model.name, [fact for fact in facts if fact[1]])


def model_dict(model: Model) -> dict[str, Any]:
    """Return one model under its fields' names, with what follows from them."""
    return {
        **asdict(model),
        "compute_params": model.compute_params,
        "layers": model.layers,
        "parts": _parts(model),
        "weights_bytes": model.weights_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token() if model.kv_is_linear else None,
        "kv_bytes_of_4096_tokens": model.kv_bytes_of_sequence(CONTEXT),
    }


def devices_text(devices: Iterable[Hardware]) -> str:
    """Return one row for each device."""
    header = ("hardware", "memory", "GB/s", "TFLOP/s", "FP8", "bus GB/s", "mfu", "mbu", "overhead", "date")
    rows = [
        (
            *(device.name, f"{device.memory_gib:g} GiB", f"{device.bandwidth_gb_s:g}", f"{device.tflops:g}"),
            *("-" if value is None else f"{value:g}" for value in (device.fp8_tflops, device.bus_gb_s)),
            *(f"{device.mfu:g}", f"{device.mbu:g}", f"{device.overhead_ms:g} ms", device.date or "-"),
        )
        for device in devices
    ]
    return _table(header, rows, left=(0, 9))


def device_text(device: Hardware) -> str:
    """Return what is known of one device as a labelled block."""
    fp8 = f", {device.fp8_tflops:g} in FP8" if device.fp8_tflops else ", no FP8 units"
    bus = f"{device.bus_gb_s:g} GB/s to its peers, one direction" if device.bus_gb_s else "-"
    facts = [
        ("memory", f"{device.memory_gib:g} GiB ({device.kind}), {device.reserve_gib:g} GiB of it reserved"),
        ("bandwidth", f"{device.bandwidth_gb_s:g} GB/s, of which a step reaches {device.mbu:g} (mbu)"),
        ("compute", f"{device.tflops:g} TFLOP/s dense BF16{fp8}, of which a step reaches {device.mfu:g} (mfu)"),
        ("ridge", f"{format_number(device.ridge_flop_per_byte, 0)} FLOP per byte, by the datasheet"),
        ("overhead", f"{device.overhead_ms:g} ms of a step"),
        ("bus", bus),
        ("power", _power_text(device)),
        ("detailed", ", ".join(f"{name} {value:g}" for name, value in (device.detailed or {}).items())),
        ("fitted", device.fitted),
        ("note", device.note),
        ("source", f"{device.source}{f' ({device.date})' if device.date else ''}"),
    ]
    return _block(device.name, [fact for fact in facts if fact[1]])


def _power_text(device: Hardware) -> str:
    """Return what a device draws, and who says so."""
    if device.peak_w is None:
        return ""
    idle = "unknown" if device.idle_w is None else f"{device.idle_w:g} W"
    return f"{device.peak_w:g} W at full load, {idle} at rest ({device.power_source})"


def formats_text(formats: Iterable[WeightFormat]) -> str:
    """Return one row for each way to write weights."""
    rows = [(form.name, f"{form.bits:.4g}", form.covers, form.compute, form.source) for form in formats]
    return _table(("format", "bits", "covers", "computes in", "source"), rows, left=(0, 2, 3, 4))


def _parts(model: Model) -> dict[str, int]:
    """Return the parameters of each part; together they are all of them."""
    return {
        "attention": model.attention_params,
        "feed_forward": model.mlp_params,
        "routed_experts": model.expert_params,
        "shared_experts": model.shared_expert_params,
        "routers": model.router_params,
        "head": model.head_params,
        "table": model.embedding_params,
    }


def _group_text(group: Attention, model: Model) -> str:
    layers = f"{group.layers} layers"
    if group.idle:
        return f"{layers}: nothing"
    if group.state_bytes:
        return f"{layers}: a state of {format_bytes(group.state_bytes)}, whatever the length"
    if group.latent_dim:
        index = f", and {group.index_bytes} bytes of an indexer" if group.index_bytes else ""
        return f"{layers}: a latent of {group.latent_dim} numbers{index}"
    value = f" and {group.value_dim}" if group.value_dim else ""
    window = f", of the last {group.window:,} tokens" if group.window is not None else ""
    return f"{layers}: {group.kv_heads} heads of {group.head_dim}{value}, keys and values{window}"


def _format_text(model: Model) -> str:
    kept = f", {format_si(model.kept_params)} parameters in {model.kept_dtype}" if model.kept_params else ""
    own = ", by its own file" if model.file_bytes is not None else ""
    return f"{model.weight_dtype}{kept}{own}"


def _kv_text(model: Model) -> str:
    if model.kv_is_linear:
        return f"{format_bytes(model.kv_bytes_per_token())} ({model.kv_dtype})"
    mean = format_bytes(model.kv_bytes_per_token(context=CONTEXT))
    return f"{mean} ({model.kv_dtype}), the mean over {CONTEXT:,} tokens"


def _block(title: str, facts: Iterable[Fact]) -> str:
    lines = [title]
    for label, text in facts:
        for line in wrap(text, WIDTH - LABEL - 2, break_long_words=True, break_on_hyphens=False) or [""]:
            lines.append(f"  {label:<{LABEL}}{line}".rstrip())
            label = ""
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Iterable[int]) -> str:
    """Return columns two spaces apart, those of `left` aligned to it."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    aligned = set(left)
    lines = []
    for row in (header, *rows):
        cells = (
            cell.ljust(width) if column in aligned else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
