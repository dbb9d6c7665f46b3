"""A device in a JSON file: what `--hardware FILE` reads and what `calibrate` writes.

    {
      "schema": "servesim.device/1",
      "name": "rtx-4090-in-my-office",          the file's name where it is left out
      "base": "rtx-4090-24gb",                  a preset; what is not said here is the preset's
      "mfu": 0.61, "mbu": 0.87, "overhead_ms": 1.9,                the roofline's figures
      "detailed": {"mfu": 0.9, "mixed_kv": 1.7},                   parameters of `--cost-model detailed`
      "fitted": "from 2 runs: error 0.6 %",     how the figures came about, in a sentence
      "fitted_for": "detailed",                 the cost model to use where nobody names one
      "provenance": {...}                       anything: runs, residuals, versions; kept, not read
    }

Any other field of `Hardware` may stand beside them (`memory_gib`, `bandwidth_gb_s`, `tflops`, `fp8_tflops`, `bus_gb_s`,
`reserve_gib`, `peak_w`, `idle_w`, `kind`, `source`, `date`, `note`); without a base the first three must. A field that
is not known is an error, so that a slip of the pen does not become a default; null stands for a field that is left out,
or for a device without FP8 units, a bus, known power or parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from servesim.catalog.hardware import Hardware, find_hardware
from servesim.catalog.json_file import Fields, read_object
from servesim.errors import InputError
from servesim.units import suggest

SCHEMA = "servesim.device/1"
MAX_BYTES = 16 * 2**20

_TEXTS = ("name", "kind", "source", "date", "fitted", "fitted_for", "note", "power_source")
_EFFICIENCY = ("mfu", "mbu", "overhead_ms")
_MAY_BE_NULL = ("fp8_tflops", "bus_gb_s", "detailed", "peak_w", "idle_w")  # null: the device has none
_FIELDS = tuple(field.name for field in fields(Hardware))
_BESIDE = ("schema", "base", "provenance", "servesim", "command", "config", "partial")


def read_hardware(path: str) -> Hardware:
    """Return the device in the JSON file at `path`; raise `InputError` with the file's name and the field."""
    document = Fields(read_object(path, limit_bytes=MAX_BYTES), path)
    schema = document.text("schema", default=SCHEMA)
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema[:60]!r}, must be {SCHEMA!r}, a device")
    for key in document.values:
        if key not in _FIELDS and key not in _BESIDE:
            raise InputError(f"{path}: {suggest('field', key, (*_FIELDS, *_BESIDE))}")
    base = document.text("base")
    given = _given(document)
    given.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    try:
        if base:
            preset = find_hardware(base)
            if any(given.get(name, getattr(preset, name)) != getattr(preset, name) for name in _EFFICIENCY):
                given.setdefault("fitted", "")
            return replace(preset, **given)
        for name in ("memory_gib", "bandwidth_gb_s", "tflops"):
            if name not in given:
                raise InputError(f"{name} is missing; give it, or a preset as base")
        return Hardware(**{"source": f"the file {os.path.basename(path)}", "date": "", **given})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def device_document(
    hardware: Hardware, *, base: str | None = None, provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON document of `hardware`, in full, so that it reads back equal whatever becomes of its base.

    `base` is then only a reference to the preset it came from.
    """
    document: dict[str, Any] = {"schema": SCHEMA}
    for field in fields(Hardware):
        value = getattr(hardware, field.name)
        document[field.name] = dict(value) if isinstance(value, Mapping) else value
        if field.name == "name" and base is not None:
            document["base"] = base
    if provenance is not None:
        document["provenance"] = dict(provenance)
    return document


def _given(document: Fields) -> dict[str, Any]:
    """Return the fields of `Hardware` that the file gives, each of its type."""
    given: dict[str, Any] = {}
    for name in _FIELDS:
        if document.get(name) is None:
            if name in document.values and name in _MAY_BE_NULL:
                given[name] = None
            continue
        if name in _TEXTS:
            given[name] = document.text(name)
        elif name == "detailed":
            part = document.part(name)
            given[name] = {key: part.number(key) for key in part.values} if part else None
        else:
            given[name] = document.number(name)
    return given
