"""The options of a fleet, each defined once: replicas and their router, prefill and decode apart, the link."""

from __future__ import annotations

from typing import Any

from servesim.cli.parser import Group, Option
from servesim.config.fleet import FLEET_CHECKS, LINK_SCOPES, TRANSFER_OVERLAPS, FleetSpec
from servesim.config.server import one_of
from servesim.fleet.autoscale import FIGURES
from servesim.fleet.router import ROUTERS

CHOICES = {"router": one_of("router", ROUTERS), "scale_on": one_of("figure to scale on", FIGURES)}
"""Checks for names in registries whose objects live above the configuration."""


def _fleet(
    flag: str, about: str, metavar: str = "N", default: str = "", *, key: str = "", swept: bool = True
) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    return Option(flag, key, about, CHOICES.get(key, FLEET_CHECKS[key]), metavar, default, swept=swept)


FLEET = Group(
    "fleet",
    (
        _fleet("--replicas", "engines of this kind behind one router", default="1"),
        _fleet("--router", f"who gets a request: {', '.join(ROUTERS)}", "NAME", "least-loaded"),
        _fleet("--fleet", "a JSON file with several kinds of replicas", "FILE", swept=False),
        _fleet("--disagg", "prefill and decode apart: P engines of the one, D of the other", "P:D"),
        _fleet("--link", "bandwidth of the link that KV crosses with --disagg: 25GB/s", "RATE", key="link_bytes_per_s"),
        _fleet("--link-latency", "added to every transfer", "TIME", "0s", key="link_latency_s"),
        _fleet("--link-scope", "; ".join(f"{name}: {about}" for name, about in LINK_SCOPES.items()), "NAME", "shared"),
        _fleet("--autoscale", "from MIN to MAX replicas, as the load asks", "MIN:MAX", "off"),
        _fleet(
            "--scale-on",
            "figure held at a target: " + "; ".join(f"{name}, {figure.about}" for name, figure in FIGURES.items()),
            "NAME",
            "concurrency",
        ),
        _fleet("--target", "of that figure", "X", "of the figure", key="scale_target"),
        _fleet("--cold-start", "from a replica's launch to its first request", "TIME", "90s", key="cold_start_s"),
        _fleet("--cool-down", "least time from a change to the next step down", "TIME", "5m", key="cool_down_s"),
        _fleet("--scale-every", "time between decisions; 0: at every arrival", "TIME", "15s", key="scale_every_s"),
        _fleet(
            "--transfer-overlap",
            "; ".join(f"{name}: {about}" for name, about in TRANSFER_OVERLAPS.items()),
            "NAME",
            "none",
        ),
    ),
)


PRICE = Option(
    "--price",
    "price",
    "of a device an hour: 2.5/h, or l4-24gb=0.7/h for each; a comma list",
    FLEET_CHECKS["price"],
    "[DEVICE=]X/h",
    repeat=True,
)

USAGE = Group(
    "what it costs",
    (
        PRICE,
        Option("--energy", "energy", "estimate energy, where the catalogue knows a device's power"),
    ),
)


def fleet_spec(values: dict[str, Any]) -> FleetSpec:
    """Return the fleet that `values` ask for."""
    return FleetSpec(**{key: values[key] for key in FLEET_CHECKS if key in values})
