"""A fleet: how many engines, of which kinds, behind which router, with which link; every option declared once.

A fleet file is a JSON object that says what the replicas are; a server option that a kind leaves out is that of the
command line:

    {"replicas": [{"count": 2, "hardware": "h100-sxm-80gb"},
                  {"count": 4, "hardware": "l4-24gb", "max_num_seqs": 64, "name": "small"}]}

With `"role": "prefill"` and `"role": "decode"` the kinds are disaggregated: one computes prompts, the other answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.config.option import (
    Check,
    check_fields,
    checks_of,
    count,
    one_of,
    option,
    seconds,
    switch,
    text,
    values_of,
)
from servesim.config.server import ServerSpec
from servesim.errors import InputError
from servesim.inputs import MAX_CONFIG_BYTES, read_object
from servesim.units import parse_bandwidth, parse_duration, parse_finite, shown, suggest

MAX_REPLICAS = 10_000

ROLES = {
    "both": "computes prompts and answers, as any engine does",
    "prefill": "computes prompts, and sends their KV away",
    "decode": "receives KV, and computes answers",
}

LINK_SCOPES = {
    "shared": "one link for all engines",
    "pair": "a link of its own for every pair of a prefill and a decode engine",
}

TRANSFER_OVERLAPS = {
    "none": "the KV leaves when the whole prompt is computed",
    "chunk": "the KV of a chunk of the prompt leaves when the step that computed it ends",
    "layer": "the KV of a layer leaves when the layer is computed, while the step goes on",
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
        value = read_object(value, limit_bytes=MAX_CONFIG_BYTES)
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
    checks = checks_of(ServerSpec)
    for key, value in values.items():
        if key in ("name", "count", "role", "effective") or value is None:
            continue
        if key not in checks:
            raise InputError(f"{where}: {suggest('option', str(key), ('name', 'count', 'role', *checks))}")
        options[key] = _checked(checks[key], value, key, where)
    given = values.get("name")
    return KindSpec(
        name=None if given is None else _checked(text, given, "name", where),
        count=_checked(count(maximum=MAX_REPLICAS), values.get("count", 1), "count", where),
        role=_checked(one_of("role", ROLES), values.get("role", "both"), "role", where),
        options=tuple(options.items()),
    )


def _checked(check: Check, value: Any, name: str, where: str) -> Any:
    try:
        return check(value, name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def split(value: Any, name: str) -> str:
    """Check for `P:D`, the numbers of prefill and decode engines."""
    parts = value.split(":") if isinstance(value, str) else ()
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part[:6]) >= 1 for part in parts):
        raise InputError(f"{name} is {shown(value)}, must be prefill:decode engines such as 1:1 or 3:1")
    return ":".join(str(count(maximum=MAX_REPLICAS)(part, name)) for part in parts)


def bandwidth(value: Any, name: str) -> float:
    """Check for a bandwidth: text with its unit, or a number of bytes per second from a document or a program."""
    return parse_bandwidth(value, name) if isinstance(value, str) else parse_finite(value, name, above=0.0)


def limits(value: Any, name: str) -> str:
    """Check for `MIN:MAX`, the fewest and the most replicas of a fleet that grows and shrinks."""
    parts = value.split(":") if isinstance(value, str) else ()
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"{name} is {shown(value)}, must be the fewest and the most replicas such as 1:8")
    fewest, most = (count(maximum=MAX_REPLICAS)(part, name) for part in parts)
    if fewest > most:
        raise InputError(f"{name} is {shown(value)}, must have no more at least than at most")
    return f"{fewest}:{most}"


def target(value: Any, name: str) -> float:
    """Check for what a figure is held at: a number, or a time where it is a latency."""
    if isinstance(value, str) and value[-1:].isalpha():
        return parse_duration(value, name, positive=True)
    return parse_finite(value, name, above=0.0)


def interval(value: Any, name: str) -> float:
    """Check for the time between two decisions: 0, or one that a simulation of days can afford."""
    between_s: float = seconds()(value, name)
    if 0.0 < between_s < 1e-3:
        raise InputError(f"{name} is {shown(value)}, must be 0 or at least 1ms")
    return between_s


def parse_prices(value: Any, name: str) -> tuple[str, ...]:
    """Check for prices an hour: `2.5/h` of any device, or `l4-24gb=0.7/h` of one; text or a list of such."""
    if isinstance(value, (list, tuple)):
        return tuple(price for item in value for price in parse_prices(item, name))
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}, must be a device and its price an hour such as l4-24gb=0.7/h")
    prices = tuple(part.strip() for part in value.split(","))
    for price in prices:
        _price(price, name)
    return prices


def price_of(hardware: str, prices: Sequence[str]) -> float | None:
    """Return the price of one device an hour; None if it has none.

    >>> price_of("l4-24gb", ["2.5/h", "l4-24gb=0.7/h"])
    0.7
    """
    known = prices_by_device(prices)
    return known.get(hardware, known.get(""))


def prices_by_device(prices: Sequence[str]) -> dict[str, float]:
    """Return the prices that are given, by device; that of any other device by ""."""
    return dict(_price(price, "price") for price in prices)


def _price(text: str, name: str) -> tuple[str, float]:
    device, _, price = text.rpartition("=")
    if not price.endswith("/h"):
        raise InputError(f"{name} is {shown(text)}, must be a device and its price an hour such as l4-24gb=0.7/h")
    return device.strip(), parse_finite(price[:-2], name, above=0.0)


FLEET = "fleet"
PRICES = "what it costs"

_SCALING = ("scale_on", "scale_target", "cold_start_s", "cool_down_s", "scale_every_s")


@dataclass(slots=True, frozen=True, kw_only=True)
class FleetSpec:
    """How many engines serve together, and how. One replica is no fleet at all.

    The names of routers and of figures to scale on are checked where these are: `fleet.router`, `fleet.autoscale`.
    """

    replicas: int = option(
        1, count(maximum=MAX_REPLICAS), "engines of this kind behind one router", group=FLEET, common=True
    )
    router: str = option("least-loaded", text, "who gets a request: {choices}", "NAME")
    fleet: tuple[KindSpec, ...] | None = option(
        None, fleet_kinds, "a JSON file with several kinds of replicas", "FILE", swept=False
    )
    disagg: str | None = option(
        None, split, "prefill and decode on engines of their own: P of the one, D of the other", "P:D"
    )
    link_bytes_per_s: float | None = option(
        None, bandwidth, "bandwidth of the link that KV crosses with --disagg: 25GB/s", "RATE", flag="--link"
    )
    link_latency_s: float = option(0.0, seconds(), "added to every transfer", "TIME")
    link_scope: str = option("shared", one_of("link scope", LINK_SCOPES), "{each}", "NAME")
    transfer_overlap: str = option("none", one_of("transfer overlap", TRANSFER_OVERLAPS), "{each}", "NAME")
    autoscale: str | None = option(
        None,
        limits,
        "from MIN to MAX replicas, as the load asks",
        "MIN:MAX",
        shown_default="off",
        when_used=True,
    )
    scale_on: str | None = option(
        None, text, "figure held at a target: {each}", "NAME", shown_default="concurrency", when_used=True
    )
    scale_target: float | None = option(
        None, target, "of that figure", "X", flag="--target", shown_default="of the figure", when_used=True
    )
    cold_start_s: float | None = option(
        None, seconds(), "from a replica's launch to its first request", "TIME", shown_default="90s", when_used=True
    )
    cool_down_s: float | None = option(
        None, seconds(), "least time from a change to the next step down", "TIME", shown_default="5m", when_used=True
    )
    scale_every_s: float | None = option(
        None, interval, "time between decisions; 0: at every arrival", "TIME", shown_default="15s", when_used=True
    )
    price: tuple[str, ...] | None = option(
        None,
        parse_prices,
        "of a device an hour: 2.5/h, or l4-24gb=0.7/h for each; a comma list",
        "[DEVICE=]X/h",
        swept=False,
        repeat=True,
        when_used=True,
        group=PRICES,
    )
    energy: bool = option(False, switch, "estimate energy, where the catalogue knows a device's power", when_used=True)

    def __post_init__(self) -> None:
        check_fields(self)
        given = [
            name
            for name, is_given in (
                ("replicas", self.replicas > 1),
                ("fleet", self.fleet is not None),
                ("disagg", self.disagg is not None),
                ("autoscale", self.autoscale is not None),
            )
            if is_given
        ]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} all say what engines there are; give one of them")
        if self.autoscale is None:
            for name in _SCALING:
                if getattr(self, name) is not None:
                    raise InputError(f"{name} is given, but nothing grows or shrinks; give --autoscale, such as 1:8")
        if self.is_disaggregated and self.link_bytes_per_s is None:
            raise InputError("disaggregated prefill and decode need a link; give its bandwidth, such as --link 25GB/s")
        if not self.is_disaggregated:
            for name, default in (
                ("link_bytes_per_s", None),
                ("link_latency_s", 0.0),
                ("link_scope", "shared"),
                ("transfer_overlap", "none"),
            ):
                if getattr(self, name) != default:
                    raise InputError(f"{name} is given, but no KV crosses a link; give --disagg, or roles in --fleet")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, those of features that are off left out."""
        values = values_of(self)
        if self.price is not None:
            values["price"] = list(self.price)
        return values

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode run on engines of their own."""
        return self.disagg is not None or any(kind.role != "both" for kind in self.fleet or ())

    def kinds(self) -> tuple[KindSpec, ...]:
        """Return the kinds of replicas, prefill before decode."""
        if self.fleet is not None:
            return tuple(sorted(self.fleet, key=lambda kind: kind.role == "decode"))
        if self.disagg is not None:
            prefill, decode = map(int, self.disagg.split(":"))
            return KindSpec(count=prefill, role="prefill"), KindSpec(count=decode, role="decode")
        return (KindSpec(count=self.replicas if self.autoscale is None else int(self.autoscale.partition(":")[2])),)
