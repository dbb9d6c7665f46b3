"""What a device draws: its peak by the datasheet, and at rest with a model loaded where somebody published that.

The peak is the board or module power that a datasheet calls TDP, TGP or TBP. No datasheet has a figure at rest, and
nvidia-smi without a process shows less than a server at rest draws: a CUDA context alone holds the clocks up and adds
26-66 W. Figures at rest are therefore taken only from measurements with a context; elsewhere they are unknown, and no
energy can be told.
"""

from __future__ import annotations

from dataclasses import dataclass

_DATASHEET = "peak: the datasheet's maximum power"
_PARKED = "at rest with a CUDA context: arXiv:2605.23918 and its authors' code (H100 SXM, A100 PCIe, L40S)"


@dataclass(slots=True, frozen=True)
class Power:
    """Watts of one device; None is unknown."""

    peak_w: float
    idle_w: float | None = None

    @property
    def source(self) -> str:
        return _DATASHEET if self.idle_w is None else f"{_DATASHEET}; {_PARKED}"


POWER: dict[str, Power] = {
    "h100-sxm-80gb": Power(700, 121.7),
    "h100-pcie-80gb": Power(350),
    "h100-nvl-94gb": Power(400),
    "h200-sxm-141gb": Power(700),
    "b200-sxm-180gb": Power(1000),
    "gb200-186gb": Power(1200),
    "a100-sxm-80gb": Power(400),
    "a100-pcie-80gb": Power(300, 80.0),
    "a100-sxm-40gb": Power(400),
    "l4-24gb": Power(72),
    "l40s-48gb": Power(350, 102.0),
    "l40-48gb": Power(300),
    "a10-24gb": Power(150),
    "a40-48gb": Power(300),
    "rtx-a6000-48gb": Power(300),
    "rtx-6000-ada-48gb": Power(300),
    "rtx-pro-6000-96gb": Power(600),
    "rtx-5090-32gb": Power(575),
    "rtx-4090-24gb": Power(450),
    "rtx-3090-24gb": Power(350),
    "t4-16gb": Power(70),
    "mi300x-192gb": Power(750),
    "mi325x-256gb": Power(1000),
}
"""By preset of hardware; a device that is not here has no figure that a datasheet gives for it alone."""
