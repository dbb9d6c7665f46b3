"""How a model is spread over devices: what the fullest of them holds of the weights, and whether it can be done.

Tensor parallelism divides every layer, pipeline parallelism the layers; data parallelism repeats both, each rank with
a cache of its own, but shares the routed experts over all ranks, as vLLM does: cut like any matrix, or whole under
expert parallelism. What tensor parallelism cannot divide (MLA's down projections, KV heads beyond their number) is
small and counted as divided. This module knows no device and no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.catalog.model import Model
from servesim.errors import InputError
from servesim.units import shown


@dataclass(slots=True, frozen=True, kw_only=True)
class Parallel:
    """The sizes of the groups of devices that share a model."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False  # each device has whole experts, not a part of each

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 2**20:
                raise InputError(f"{name}_parallel_size is {shown(value)}, must be a whole number of 1 or more")

    @property
    def devices(self) -> int:
        """Devices of the whole server."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_devices(self) -> int:
        """Devices that share the routed experts of one layer."""
        return self.tensor * self.data

    def check(self, model: Model) -> None:
        """Raise `InputError` for a model that cannot be spread so."""
        model.check_tensor_parallel(self.tensor)
        if self.pipeline > model.layers:
            raise InputError(
                f"pipeline_parallel_size is {self.pipeline}, must be at most the {model.layers} layers of {model.name}"
            )
        if self.expert and model.experts is None:
            raise InputError(f"expert parallelism is asked for, but {model.name} has no experts")

    def device_weights_bytes(self, model: Model) -> int:
        """Return the bytes of weights on the fullest device.

        Of the stages of a pipeline the one with most layers, and with the larger of embedding table and output head.
        """
        experts = model.expert_bytes if self.data > 1 or self.expert else 0
        rest = model.weights_bytes - experts
        if self.pipeline > 1:
            ends = model.embedding_bytes + model.head_bytes
            layers = -(-model.layers // self.pipeline)
            rest = -(-(rest - ends) * layers // model.layers) + max(model.embedding_bytes, model.head_bytes)
            experts = -(-experts * layers // model.layers)
        held = -(-experts // self.expert_devices)
        if self.expert and model.experts is not None:
            count = model.experts.count
            held = -(-experts * -(-count // self.expert_devices) // count)
        return -(-rest // self.tensor) + held
