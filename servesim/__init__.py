"""A token-level simulator, load generator and tuning aid for servers of large language models.

The public names are resolved on first use, so that `import servesim` costs nothing and one name imports one room.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servesim.client.window import server_window as server_window
    from servesim.cost.memory import plan_capacity as plan_capacity
    from servesim.cost.roofline import critical_batch as critical_batch
    from servesim.cost.roofline import step_seconds as step_seconds
    from servesim.engine.blocks import BlockPool as BlockPool
    from servesim.fleet.simulate import simulate as simulate
    from servesim.errors import CapacityError as CapacityError
    from servesim.summary import summarize as summarize

__version__ = "0.1.0"

_HOMES = {
    "BlockPool": "servesim.engine.blocks",
    "CapacityError": "servesim.errors",
    "critical_batch": "servesim.cost.roofline",
    "plan_capacity": "servesim.cost.memory",
    "server_window": "servesim.client.window",
    "simulate": "servesim.fleet.simulate",
    "step_seconds": "servesim.cost.roofline",
    "summarize": "servesim.summary",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
