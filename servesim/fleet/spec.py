"""The fleet that is asked for: how many engines, of which kinds, behind which router, with which link.

The fields of `FleetSpec` are the command line's options and keys of a document's `config`. A fleet file is a JSON
object that says what the replicas are; a server option that a kind leaves out is that of the command line:

    {"replicas": [{"count": 2, "hardware": "h100-sxm-80gb"},
                  {"count": 4, "hardware": "l4-24gb", "max_num_seqs": 64, "name": "small"}]}

With `"role": "prefill"` and `"role": "decode"` the kinds compute prompts and answers apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from servesim.catalog.json_file import read_object
from servesim.engine.spec import SERVER_CHECKS, Check, ServerSpec, count, one_of, seconds, text
from servesim.errors import InputError
from servesim.fleet.link import OVERLAPS, SCOPES
from servesim.fleet.router import ROUTERS
from servesim.units import parse_bandwidth, parse_finite, shown, suggest

MAX_BYTES = 2**20
MAX_REPLICAS = 10_000

ROLES = {
    "both": "computes prompts and answers, as any engine does",
    "prefill": "computes prompts, and sends their KV away",
    "decode": "receives KV, and computes answers",
}

_OTHER_CACHE = {"kv_tokens": "kv_blocks", "kv_blocks": "kv_tokens"}  # two ways to size one cache


@dataclass(slots=True, frozen=True, kw_only=True)
class KindSpec:
    """`count` replicas of one kind: the server options that are their own, beside those of the whole fleet."""

    name: str | None = None
    count: int = 1
    role: str = "both"
    options: tuple[tuple[str, Any], ...] = ()

    def server(self, base: ServerSpec) -> ServerSpec:
        """Return the server of this kind; `base` has the options of the whole fleet."""
        own = dict(self.options)
        dropped = {_OTHER_CACHE[key]: None for key in own if key in _OTHER_CACHE}
        return replace(base, **{**dropped, **own})

    def as_dict(self) -> dict[str, Any]:
        """Return the kind as a fleet file has it."""
        return {"name": self.name, "count": self.count, "role": self.role, **dict(self.options)}


def fleet_kinds(value: Any, name: str) -> tuple[KindSpec, ...]:
    """Check for a fleet: the path of a file, the object that is in it, or kinds that were checked before."""
    if isinstance(value, tuple) and all(isinstance(kind, KindSpec) for kind in value):
        return value
    if isinstance(value, str):
        name = text(value, name)
        value = read_object(value, limit_bytes=MAX_BYTES)
    listed = value.get("replicas") if isinstance(value, Mapping) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(kind, dict) for kind in listed):
        raise InputError(f'{name}: must be {{"replicas": [...]}}, a list of one or more objects with a count each')
    for key in value:
        if key not in ("replicas", "schema"):
            raise InputError(f"{name}: {suggest('field', str(key), ('replicas',))}")
    kinds = tuple(_kind(kind, f"{name}: replicas[{place}]") for place, kind in enumerate(listed))
    roles = {kind.role for kind in kinds}
    if roles != {"both"} and roles != {"prefill", "decode"}:
        raise InputError(f"{name}: roles are {', '.join(sorted(roles))}, must be prefill and decode, or none at all")
    return kinds


def _kind(values: Mapping[str, Any], where: str) -> KindSpec:
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("name", "count", "role", "effective") or value is None:
            continue
        if key not in SERVER_CHECKS:
            raise InputError(f"{where}: {suggest('option', str(key), ('name', 'count', 'role', *SERVER_CHECKS))}")
        options[key] = SERVER_CHECKS[key](value, f"{where}: {key}")
    given = values.get("name")
    return KindSpec(
        name=None if given is None else text(given, f"{where}: name"),
        count=count(maximum=MAX_REPLICAS)(values.get("count", 1), f"{where}: count"),
        role=one_of("role", ROLES)(values.get("role", "both"), f"{where}: role"),
        options=tuple(options.items()),
    )


def split(value: Any, name: str) -> str:
    """Check for `P:D`, the numbers of prefill and decode engines."""
    parts = value.split(":") if isinstance(value, str) else ()
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part[:6]) >= 1 for part in parts):
        raise InputError(f"{name} is {shown(value)}, must be prefill:decode engines such as 1:1 or 3:1")
    return ":".join(str(count(maximum=MAX_REPLICAS)(part, name)) for part in parts)


def bandwidth(value: Any, name: str) -> float:
    """Check for a bandwidth: text with its unit, or a number of bytes per second from a document or a program."""
    return parse_bandwidth(value, name) if isinstance(value, str) else parse_finite(value, name, above=0.0)


FLEET_CHECKS: dict[str, Check] = {
    "replicas": count(maximum=MAX_REPLICAS),
    "router": one_of("router", ROUTERS),
    "fleet": fleet_kinds,
    "disagg": split,
    "link_bytes_per_s": bandwidth,
    "link_latency_s": seconds(),
    "link_scope": one_of("link scope", SCOPES),
    "transfer_overlap": one_of("transfer overlap", OVERLAPS),
}
"""What each field of `FleetSpec` accepts: a flag's text or a JSON value, with the name it was given under."""


@dataclass(slots=True, frozen=True, kw_only=True)
class FleetSpec:
    """How many engines serve together, and how. One replica is no fleet at all."""

    replicas: int = 1
    router: str = "least-loaded"
    fleet: tuple[KindSpec, ...] | None = None
    disagg: str | None = None
    link_bytes_per_s: float | None = None
    link_latency_s: float = 0.0
    link_scope: str = "shared"
    transfer_overlap: str = "none"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, FLEET_CHECKS[field.name](value, field.name))
        given = [
            name
            for name, is_given in (
                ("replicas", self.replicas > 1),
                ("fleet", self.fleet is not None),
                ("disagg", self.disagg is not None),
            )
            if is_given
        ]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} all say what engines there are; give one of them")
        if self.is_apart and self.link_bytes_per_s is None:
            raise InputError("prefill and decode apart need a link; give its bandwidth, such as --link 25GB/s")
        if not self.is_apart:
            for name, default in (
                ("link_bytes_per_s", None),
                ("link_latency_s", 0.0),
                ("link_scope", "shared"),
                ("transfer_overlap", "none"),
            ):
                if getattr(self, name) != default:
                    raise InputError(f"{name} is given, but no KV crosses a link; give --disagg, or roles in --fleet")

    @property
    def is_apart(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.disagg is not None or any(kind.role != "both" for kind in self.fleet or ())

    def kinds(self) -> tuple[KindSpec, ...]:
        """Return the kinds of replicas, prefill before decode."""
        if self.fleet is not None:
            return tuple(sorted(self.fleet, key=lambda kind: kind.role == "decode"))
        if self.disagg is not None:
            prefill, decode = map(int, self.disagg.split(":"))
            return KindSpec(count=prefill, role="prefill"), KindSpec(count=decode, role="decode")
        return (KindSpec(count=self.replicas),)
