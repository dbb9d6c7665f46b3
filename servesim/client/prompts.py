"""Prompts that land on a requested number of tokens, made without a tokenizer.

The text is made of common four-letter English words: one token each in the vocabularies that people serve, and of one
length, so that a tokenizer of bytes or characters charges every word the same too. The token count of `n` words is then
`overhead + per_word x n` (the overhead is the chat template and the begin-of-text token), and both numbers are learned
from the `usage` that the server itself reports during the warm-up.

Every request's text is its own from the first words on, so that a server's prompt cache does not flatter it; the tokens
that two requests share by their `Content` segments are the same words. Does not know: what the words mean to the
model, and what it answered (`conversation` puts that into a session's later turns).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from servesim.client.flavour import Prompt
from servesim.errors import InputError
from servesim.units import refuse_constant
from servesim.workload.requests import Requests

COMMON_WORDS = """
that with this from have they been were will more some time very when your into them than then only many most over such
take back just also know year good much well even work last long make made life down both same each like high part case
home hand want give find tell feel keep turn help show play move live real away"""
WORDS = tuple(COMMON_WORDS.split())
TOLERANCE_TOKENS, TOLERANCE_FRACTION = 2, 0.01  # a prompt "lands" within the larger of the two


def _shuffles() -> tuple[tuple[int, ...], ...]:
    sample, size = random.Random(0).sample, len(WORDS)
    return tuple(tuple(sample(range(size), size)) for _ in range(256))


PLACES = _shuffles()
ORDERS = tuple(tuple(WORDS[place] for place in places) for places in PLACES)
"""Each holds every word once: a text made of whole orders costs the same even where a tokenizer splits some words."""


def words_of(salt: str, name: str, count: int) -> list[str]:
    """Return the first `count` words of a named endless text; a shorter count gives a prefix of a longer one.

    >>> words_of("s", "a", 3) == words_of("s", "a", 500)[:3]
    True
    """
    blocks = max(0, count) // len(WORDS) + 1
    digest = hashlib.shake_128(f"{salt}/{name}".encode()).digest(2 * blocks)
    words: list[str] = []
    for order, places in zip(digest[::2], digest[1::2], strict=True):
        words += map(ORDERS[order].__getitem__, PLACES[places])
    return words[: max(0, count)]


def serial_words(number: int) -> list[str]:
    """Spell a number in two words or more, lowest digit first: neighbours differ from the first word on."""
    number, low = divmod(number, len(WORDS))
    digits = [WORDS[low]]
    while number or len(digits) < 2:
        number, digit = divmod(number, len(WORDS))
        digits.append(WORDS[digit])
    return digits


@dataclass(slots=True)
class TokenRate:
    """What a server charges for a text of `n` words: `overhead + per_word x n` tokens, learned from its usage.

    >>> rate = TokenRate(); rate.learn(100, 131); rate.learn(400, 431)
    >>> rate.overhead, rate.per_word, rate.words_for(512)
    (31.0, 1.0, 481)
    """

    overhead: float = 0.0
    per_word: float = 1.0
    seen: dict[int, list[int]] = field(default_factory=dict)  # words -> token counts reported for them

    @property
    def learned(self) -> bool:
        return bool(self.seen)

    def words_for(self, tokens: int) -> int:
        """Return how many words come closest to `tokens`; at least one, since an empty prompt is refused."""
        return max(1, round((tokens - self.overhead) / self.per_word))

    def learn(self, words: int, tokens: int) -> None:
        """Take in one usage report. Words are all charged alike, so a slope next to a whole number is that number."""
        if words < 1 or tokens < 1:
            return
        self.seen.setdefault(words, []).append(tokens)
        points = [(words, tokens) for words, counts in self.seen.items() for tokens in counts]
        low, high = min(self.seen), max(self.seen)
        if low == high:
            excess = sum(tokens for _, tokens in points) / len(points) - low
            plausible = 0 <= excess <= max(64, low / 2)  # a chat template, at one token a word
            self.per_word, self.overhead = (1.0, excess) if plausible else (1 + excess / low, 0.0)
            return
        mean_words = sum(words for words, _ in points) / len(points)
        mean_tokens = sum(tokens for _, tokens in points) / len(points)
        slope = sum((words - mean_words) * (tokens - mean_tokens) for words, tokens in points) / sum(
            (words - mean_words) ** 2 for words, _ in points
        )
        if slope <= 0:  # the server does not count the prompt (or counts only what its cache lacked)
            return
        whole = round(slope)
        if whole >= 1 and abs(slope - whole) * (high - low) < 1.5:
            slope = float(whole)
        self.per_word = slope
        self.overhead = mean_tokens - slope * mean_words


class Prompts(Protocol):
    """What the client asks for the text of a request."""

    def prompt(self, index: int) -> Prompt:
        """Return the prompt of request `index`."""

    def learn(self, index: int, tokens: int) -> None:
        """Take in the prompt tokens that the server reported for request `index`."""


class SyntheticPrompts:
    """Texts of the requested lengths, by `rate`, unique but for the segments that `requests.content` shares.

    `salt` sets the texts of one run apart from those of the run before it, which a server may still have cached.
    `first_serial` sets the requests of one phase (a warm-up, a repeat) apart from those of the others.
    """

    def __init__(self, requests: Requests, rate: TokenRate, *, salt: str, first_serial: int = 0) -> None:
        self.requests = requests
        self.rate = rate
        self.salt = salt
        self.first_serial = first_serial
        self.sent_words: dict[int, int] = {}  # of the requests whose usage is not in yet: the rate may move meanwhile

    def prompt(self, index: int) -> str:
        """Return the text of request `index`: its shared segments, then words of its own."""
        total = self.rate.words_for(self.requests.prompt_tokens[index])
        self.sent_words[index] = total
        words: list[str] = []
        content = () if self.requests.content is None else self.requests.content[index]
        for stream, end_token in content:
            start, end = len(words), min(total, self.rate.words_for(end_token))
            if end > start:
                words += words_of(self.salt, f"stream {stream}", end - start)
        return " ".join(words + self.own_words(index, total - len(words)))

    def own_words(self, index: int, count: int) -> list[str]:
        """Return `count` words that no other request has in this place."""
        serial = self.first_serial + index
        own = serial_words(serial)
        return (own + words_of(self.salt, f"request {serial}", count - len(own)))[: max(0, count)]

    def learn(self, index: int, tokens: int) -> None:
        """Take in the prompt tokens that the server reported for request `index`."""
        words = self.sent_words.pop(index, 0)
        self.rate.learn(words, tokens)


@dataclass(slots=True, frozen=True)
class FixedPrompts:
    """Given prompts, one after the other, from the beginning again when they run out. Nothing is learned."""

    prompts: tuple[Prompt, ...]

    def prompt(self, index: int) -> Prompt:
        """Return prompt `index`, counted round and round."""
        return self.prompts[index % len(self.prompts)]

    def learn(self, index: int, tokens: int) -> None:
        """Ignore the usage: a given text is sent as it is."""


@dataclass(slots=True, frozen=True)
class GivenPrompt:
    """One line of a `--prompts` file."""

    prompt: Prompt
    output_tokens: int | None = None


def read_prompts(lines: Iterable[str], name: str) -> list[GivenPrompt]:
    """Read `{"prompt": text}` or `{"messages": [...]}` a line, with an optional `output_tokens` (or `max_tokens`).

    Raises InputError with file, line and field.
    """
    given = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            given.append(_given_prompt(line, f"{name}:{number}"))
    if not given:
        raise InputError(f"{name} holds no prompt")
    return given


def _given_prompt(line: str, where: str) -> GivenPrompt:
    try:
        row = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be a JSON object with 'prompt' or 'messages'")
    prompt: Prompt
    messages, text = row.get("messages"), row.get("prompt", row.get("text"))
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        prompt = messages
    elif isinstance(text, str) and text:
        prompt = text
    else:
        raise InputError(f"{where}: needs 'prompt' (a non-empty text) or 'messages' (a list of objects)")
    output_tokens = row.get("output_tokens", row.get("max_tokens"))
    if output_tokens is not None and (type(output_tokens) is not int or output_tokens < 1):
        raise InputError(f"{where}: output_tokens is {json.dumps(output_tokens)}, must be 1 or more")
    return GivenPrompt(prompt=prompt, output_tokens=output_tokens)


@dataclass(slots=True, frozen=True, kw_only=True)
class PromptAccuracy:
    """How close the prompts came to the requested length, in tokens as the server counted them."""

    count: int
    within_tolerance: Annotated[float, "fraction"]  # within max(2 tokens, 1 %)
    mean_error_tokens: float
    max_error_tokens: int


def prompt_accuracy(requested: Sequence[int], counted: Sequence[int]) -> PromptAccuracy | None:
    """Compare requested and counted prompt lengths; a count of 0 is unknown, and None means that nothing was counted.

    >>> prompt_accuracy([1000, 100], [1010, 103]).within_tolerance
    0.5
    """
    pairs = [(want, got) for want, got in zip(requested, counted, strict=True) if got > 0]
    if not pairs:
        return None
    errors = [abs(got - want) for want, got in pairs]
    landed = sum(
        error <= max(TOLERANCE_TOKENS, TOLERANCE_FRACTION * want)
        for error, (want, _) in zip(errors, pairs, strict=True)
    )
    return PromptAccuracy(
        count=len(pairs),
        within_tolerance=landed / len(pairs),
        mean_error_tokens=sum(errors) / len(errors),
        max_error_tokens=max(errors),
    )
