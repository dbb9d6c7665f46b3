"""The choices of options whose registries live above the configuration: who gets a request, what to scale on."""

from __future__ import annotations

from servesim.config.fleet import FLEET, PRICES, FleetSpec
from servesim.config.option import Group, groups_of, one_of
from servesim.fleet.autoscale import FIGURES
from servesim.fleet.router import ROUTERS


def fleet_groups() -> dict[str, Group]:
    """Return the options of a fleet by their headings, with the routers and figures that there are."""
    groups = {group.title: group for group in groups_of(FleetSpec)}
    routed = groups[FLEET].changed("router", check=one_of("router", ROUTERS))
    return {
        FLEET: routed.changed("scale_on", check=one_of("figure to scale on", FIGURES)),
        PRICES: groups[PRICES],
    }
