"""LoRA adapters: how many may run at once, which are on the device, what loading and reading them takes.

As in vLLM (`--max-loras`, vllm/v1/core/sched/scheduler.py), a request whose adapter is not among those that run is
passed over while as many run as may; those behind it go on. An adapter that is not on the device is loaded in the step
that admits its first request; the least recently used one makes room. A step reads every running adapter once and
multiplies every token through its own, beside the base model's weights.

What it does not know: adapters of different rank, and the kernels' own overhead: both cost terms are plain traffic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Listing
from typing import TYPE_CHECKING

from servesim.config.engine import AdapterConfig

if TYPE_CHECKING:
    from servesim.cost.model import CostModel


class Adapters:
    """The adapters of one engine. `names[i]` is the adapter of request `i`, None for the base model."""

    __slots__ = ("_resident", "config", "loads", "names", "running")

    def __init__(self, config: AdapterConfig, names: Listing[str | None]) -> None:
        self.config = config
        self.names = names
        self.running: dict[str, int] = {}  # adapter: its running requests
        self.loads = 0
        self._resident: OrderedDict[str, None] = OrderedDict()  # least recently used first

    def admits(self, index: int) -> bool:
        """Tell whether request `index` may run beside those that do."""
        name = self.names[index]
        return name is None or name in self.running or len(self.running) < self.config.max_loras

    def enter(self, index: int) -> float:
        """Count a request that is admitted; return the seconds that loading its adapter takes."""
        name = self.names[index]
        if name is None:
            return 0.0
        self.running[name] = self.running.get(name, 0) + 1
        if name in self._resident:
            self._resident.move_to_end(name)
            return 0.0
        if len(self._resident) == self.config.max_loras:
            idle = next(other for other in self._resident if other not in self.running)
            del self._resident[idle]
        self._resident[name] = None
        self.loads += 1
        return self.config.load_s

    def leave(self, index: int) -> None:
        """Count off a request that gave up its slot."""
        name = self.names[index]
        if name is not None:
            self.running[name] -= 1
            if not self.running[name]:
                del self.running[name]

    def read_s(self) -> float:
        """Return what reading the running adapters adds to a step, in seconds."""
        return len(self.running) * self.config.read_s


class AdapterCost:
    """A cost model with the reading of the running adapters on top."""

    __slots__ = ("_adapters", "inner")

    def __init__(self, inner: CostModel, adapters: Adapters) -> None:
        self.inner = inner
        self._adapters = adapters

    def decode(self, sequences: int, context_tokens: int, /) -> float:
        return self.inner.decode(sequences, context_tokens) + self._adapters.read_s()

    def step(self, sequences: int, context_tokens: int, chunks: Listing[tuple[int, int]], /) -> float:
        return self.inner.step(sequences, context_tokens, chunks) + self._adapters.read_s()
