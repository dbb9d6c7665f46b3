"""What a fit says beside its figures: what the runs do not tell and which would, what was parted, what is unphysical.

Reads a `Solution` whose parameters have the names of a cost model's; knows no measurement.
"""

from __future__ import annotations

import math

from servesim.analysis.fit import Solution

PHYSICAL = ("mfu", "mbu", "kv_mbu", "attention_mfu", "expert_mfu", "bus_share")
"""Shares of a datasheet's peak: above 1 they say that something else was not what it was taken for."""

REMEDIES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"overhead_ms", "mbu"}), "add a run at concurrency 32 or more"),
    (frozenset({"overhead_ms", "mfu"}), "add a run with prompts of 1,024 tokens or more"),
    (frozenset({"overhead_ms", "sequence_us"}), "add a run at another concurrency: 1 beside 32 or more"),
    (frozenset({"mfu", "request_ms"}), "add a run with prompts of another length"),
    (frozenset({"ingest_ms", "request_ms"}), "add a run at concurrency 1 beside one at 32 or more"),
    (frozenset({"mfu"}), "add a run with prompts of 1,024 tokens or more"),
    (frozenset({"expert_mfu"}), "add a run of a mixture with prompts of 1,024 tokens or more"),
    (frozenset({"mbu"}), "add a run at concurrency 1, and one of a larger model"),
    (frozenset({"kv_mbu"}), "add a run at concurrency 32 or more with contexts of 4,096 tokens or more"),
    (frozenset({"mixed_kv"}), "add a run at concurrency 32 or more with short outputs"),
    (frozenset({"decode_work"}), "add a run at concurrency 32 or more"),
    (frozenset({"allreduce_us"}), "add a run at another tensor-parallel size"),
    (frozenset({"overhead_ms"}), "add a run at concurrency 1 with short prompts"),
    (frozenset({"ingest_ms"}), "add a run at concurrency 1 with short prompts"),
)
"""What tells parameters apart that the runs at hand do not; the first that the group contains."""

PARTED: dict[str, str] = {
    "decode_work": "a decoding token takes {:.2g} times the compute of a prompt's: prefill and decode were parted",
    "mixed_kv": "a KV read beside a prompt takes {:.2g} times as long as alone: steps with a prompt were parted",
}
PARTED_FROM = 0.22  # of a logarithm: a quarter more, or a fifth less


def hints(solution: Solution) -> tuple[set[str], list[str]]:
    """Return the names of what the runs do not tell, and sentences about it with their remedies."""
    told, names = list[str](), set[str]()
    priors = {parameter.name for parameter in solution.parameters if parameter.prior is not None}
    kept = [name for name in priors if solution.told[name] < 0.5]
    for group in solution.untold():
        if set(group) <= priors:
            continue  # its default stands, which the table says
        names.update(group)
        remedy = next((text for wanted, text in REMEDIES if wanted <= set(group)), "add a run of another kind")
        what = f"{' and '.join(group)} cannot be told apart" if len(group) > 1 else f"{group[0]} cannot be told"
        told.append(f"{what} from these runs: {remedy}")
    kept.sort(key=[parameter.name for parameter in solution.parameters].index)
    if kept:
        advice = next((f": {text}" for wanted, text in REMEDIES if wanted <= set(kept)), "")
        told.append(f"these runs say little about {', '.join(kept)}, which stay near their defaults{advice}")
    return names, told


def parted(solution: Solution) -> list[str]:
    """Return which efficiencies had to be told apart that are one where a device does its best."""
    notes = []
    for name, text in PARTED.items():
        value = solution.values.get(name, 1.0)
        if abs(math.log(value)) > PARTED_FROM and solution.told[name] >= 0.5:
            notes.append(text.format(value))
    return notes


def unphysical(solution: Solution, untold: set[str], *, has_peaks: bool) -> list[str]:
    """Return a sentence for each share of a datasheet's peak above 1, and for each parameter that a bound stopped."""
    warnings = []
    for parameter in solution.parameters:
        value, name = solution.values[parameter.name], parameter.name
        if name in PHYSICAL and value > 1 and has_peaks:
            warnings.append(
                f"{name} is {value:.3g}, above 1: no device beats its datasheet, so another term is short of the truth "
                "or the device is another one"
            )
        elif solution.at_bound(name) and name not in untold and solution.told[name] >= 0.5:
            warnings.append(f"{name} ran into its bound, {value:.4g}")
    return warnings
