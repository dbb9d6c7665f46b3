"""How many tokens a request has: fixed, a range, or a named distribution, spelled alike for prompts and outputs.

`512` and `256-1024` are a fixed length and a range with both ends; the others are a name and its parameters, as
`LENGTHS` lists them, without commas, since a list between commas is swept. A draw outside the bounds is set to the
nearer bound. This module knows lengths, not requests.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from servesim.errors import InputError
from servesim.units import parse_finite, parse_range, shown, suggest

MAX_TOKENS = 10**9
DEFAULT_BOUNDS = (1, 2**20)  # of a distribution with a tail; a million tokens is the longest context on offer

Draw = Callable[[], int]


@dataclass(slots=True, frozen=True, kw_only=True)
class Lengths:
    """A distribution of lengths: `text` as it was asked for, what bounds it, and how to draw from a generator."""

    text: str
    low: int
    high: int
    sampler: Callable[[random.Random], Draw] | None  # None: every length from `low` to `high` is as likely

    def draw_from(self, rng: random.Random) -> Draw:
        """Return a function that draws one length from `rng`."""
        if self.sampler is not None:
            return self.sampler(rng)
        low, high, randint = self.low, self.high, rng.randint
        return lambda: randint(low, high)


@dataclass(slots=True, frozen=True, kw_only=True)
class LengthKind:
    """A named distribution: how it is written, what it does, and how its parameters become a sampler."""

    usage: str
    summary: str
    parameters: int
    sampler: Callable[[list[float], int, int], Callable[[random.Random], Draw] | None]
    needs_bounds: bool = False


def _lognormal(parameters: list[float], low: int, high: int) -> Callable[[random.Random], Draw]:
    mean, sigma = parameters
    if not (mean >= 1 and 0 <= sigma <= 10):
        raise InputError("its mean must be 1 or more and its sigma between 0 and 10")
    mu = math.log(mean) - sigma * sigma / 2  # the mean of a lognormal is exp(mu + sigma^2/2)
    return lambda rng: lambda: _clamp(math.exp(mu + sigma * _gauss(rng)), low, high)


def _normal(parameters: list[float], low: int, high: int) -> Callable[[random.Random], Draw]:
    mean, deviation = parameters
    if not (mean >= 1 and deviation >= 0):
        raise InputError("its mean must be 1 or more and its standard deviation 0 or more")
    return lambda rng: lambda: _clamp(mean + deviation * _gauss(rng), low, high)


def _exponential(parameters: list[float], low: int, high: int) -> Callable[[random.Random], Draw]:
    (mean,) = parameters
    if not mean >= 1:
        raise InputError("its mean must be 1 or more")
    return lambda rng: lambda: _clamp(-mean * math.log(1.0 - rng.random()), low, high)


def _zipf(parameters: list[float], low: int, high: int) -> Callable[[random.Random], Draw]:
    (exponent,) = parameters
    if not 0 <= exponent <= 20:
        raise InputError("its exponent must be between 0 and 20")
    if high - low >= DEFAULT_BOUNDS[1]:
        raise InputError(f"its bounds must span at most {DEFAULT_BOUNDS[1]} lengths")
    cumulative = array("d", accumulate(rank**-exponent for rank in range(1, high - low + 2)))
    total, last = cumulative[-1], high - low
    return lambda rng: lambda: low + min(bisect_left(cumulative, rng.random() * total), last)


LENGTHS: dict[str, LengthKind] = {
    "uniform": LengthKind(
        usage="uniform:LOW-HIGH",
        summary="every length in the range is as likely; the same as LOW-HIGH",
        parameters=0,
        sampler=lambda parameters, low, high: None,
        needs_bounds=True,
    ),
    "lognormal": LengthKind(
        usage="lognormal:MEAN:SIGMA[:LOW-HIGH]",
        summary="MEAN tokens on average, SIGMA the deviation of the logarithm: chats (0.5-1), documents (1-2)",
        parameters=2,
        sampler=_lognormal,
    ),
    "normal": LengthKind(
        usage="normal:MEAN:DEVIATION[:LOW-HIGH]",
        summary="a bell curve around MEAN",
        parameters=2,
        sampler=_normal,
    ),
    "exponential": LengthKind(
        usage="exponential:MEAN[:LOW-HIGH]",
        summary="MEAN tokens on average, short ones most common",
        parameters=1,
        sampler=_exponential,
    ),
    "zipf": LengthKind(
        usage="zipf:EXPONENT:LOW-HIGH",
        summary="LOW is the most common; the k-th length is k**EXPONENT times rarer",
        parameters=1,
        sampler=_zipf,
        needs_bounds=True,
    ),
}


def parse_lengths(text: object, name: str = "lengths") -> Lengths:
    """Return the distribution that `text` asks for, such as `512`, `256-1024` or `lognormal:512:0.8`.

    >>> parse_lengths("256-1k").high
    1000

    Raises InputError, in one line that begins with `name`, for anything else.
    """
    kind_name, *parts = text.split(":") if isinstance(text, str) and text[:1].isalpha() else ("",)
    if not kind_name:
        low, high = parse_range(text, name, maximum=MAX_TOKENS)
        return Lengths(text=str(low) if low == high else f"{low}-{high}", low=low, high=high, sampler=None)
    kind = LENGTHS.get(kind_name)
    if kind is None:
        raise suggest(f"distribution of {name}", kind_name, LENGTHS)
    bounded = len(parts) == kind.parameters + 1
    if not bounded and (kind.needs_bounds or len(parts) != kind.parameters):
        raise InputError(f"{name} is {shown(text)}, must be {kind.usage}")
    low, high = parse_range(parts.pop(), name, maximum=MAX_TOKENS) if bounded else DEFAULT_BOUNDS
    parameters = [parse_finite(part, name, minimum=0.0, maximum=float(MAX_TOKENS)) for part in parts]
    try:
        sampler = kind.sampler(parameters, low, high)
    except InputError as error:
        raise InputError(f"{name} is {shown(text)}: {error}") from None
    return Lengths(text=str(text), low=low, high=high, sampler=sampler)


def draw_lengths(count: int, prompt: Lengths, output: Lengths, seed: int) -> tuple[array[int], array[int]]:
    """Return the prompt and output lengths of `count` requests.

    For each request in turn, the prompt's and then the output's are drawn from one `random.Random(seed)`; a range (a
    fixed length too) is drawn as `randint` would.
    """
    if prompt.sampler is None and output.sampler is None:
        return _draw_ranges(count, prompt, output, seed)
    rng = random.Random(seed)
    draw_prompt, draw_output = prompt.draw_from(rng), output.draw_from(rng)
    prompts, outputs = array("q"), array("q")
    for _ in range(count):
        prompts.append(draw_prompt())
        outputs.append(draw_output())
    return prompts, outputs


def _draw_ranges(count: int, prompt: Lengths, output: Lengths, seed: int) -> tuple[array[int], array[int]]:
    """Draw what two calls of `randint` per request would, several times faster.

    `randint(a, b)` is a + the first of getrandbits(k) below n, where n = b - a + 1 has k bits. (The same in every
    CPython since 3.2; a test holds it against `randint`.)
    """
    if prompt.low == prompt.high and output.low == output.high:
        return array("q", [prompt.low]) * count, array("q", [output.low]) * count
    getrandbits = random.Random(seed).getrandbits
    prompts, outputs = array("q"), array("q")
    add_prompt, add_output = prompts.append, outputs.append
    prompt_low, prompt_size = prompt.low, prompt.high - prompt.low + 1
    output_low, output_size = output.low, output.high - output.low + 1
    prompt_bits, output_bits = prompt_size.bit_length(), output_size.bit_length()
    for _ in range(count):
        drawn = getrandbits(prompt_bits)
        while drawn >= prompt_size:
            drawn = getrandbits(prompt_bits)
        add_prompt(prompt_low + drawn)
        drawn = getrandbits(output_bits)
        while drawn >= output_size:
            drawn = getrandbits(output_bits)
        add_output(output_low + drawn)
    return prompts, outputs


def _clamp(value: float, low: int, high: int) -> int:
    return round(min(max(value, low), high))


def _gauss(rng: random.Random) -> float:
    """Draw a standard normal by Box and Muller (1958), two uniforms a draw: no state is left behind in `rng`."""
    return math.sqrt(-2.0 * math.log(1.0 - rng.random())) * math.cos(2.0 * math.pi * rng.random())
