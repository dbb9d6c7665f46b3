"""Inputs that nobody should send: mutations of good ones, and the smallest part of one that still does the harm."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    *("0", "-1", "1", "-0.0", "1e308", "1e999", "-1e999", "NaN", "Infinity", "0.1", "1e-320", "2147483648"),
    *("9007199254740993", "18446744073709551616", "9" * 400, "1" * 5000, "0x10", "1_000", "٣", "1,5", "1e", "00"),
)
TEXTS = ("", "\0", "\x1b[2J", "\u202e", "\ud800", "😀" * 50, "a" * 10_000, '"', "\\", "{", "[" * 2000, "null", "🙂\n\n")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**70, -(2**70), 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324),
    *(
        "",
        "x",
        "\0",
        "\x1b[31m",
        "\ud800",
        "9" * 30,
        "../../etc",
        [],
        {},
        [[]],
        [None],
        {"": None},
        [1, 2, 3],
        [1e300] * 3,
    ),
)
BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r\n",
    b"\r",
    b"\xef\xbb\xbf",
    b"\x1f\x8b\x08\0",
    b"\xed\xa0\x80",
    b"\n\n",
    b",",
    b":",
    b'"',
)

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of `seeds`, changed in one to four places."""
    data = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_MUTATIONS)(rng, data, seeds)
    return data[: 2**20]


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return bytes([rng.randrange(256)])
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(BYTES) * rng.choice((1, 1, 1, 2, 50)) + data[at:]


def _delete(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.choice((1, 2, 8, 64)) :]


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, size = rng.randint(0, len(data)), rng.choice((1, 8, 80))
    return data[:at] + data[at : at + size] * rng.choice((2, 3, 20)) + data[at + size :]


def _splice(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data[: 2**16]))
    if not found:
        return data
    at = rng.choice(found)
    return data[: at.start()] + rng.choice(NUMBERS).encode() + data[at.end() :]


def _line(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [b""], [lines[at][::-1]], [rng.choice(lines)]))
    return b"\n".join(lines)


def _json(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Change a value somewhere in the JSON that the data is, or that one of its lines is."""
    try:
        return json.dumps(spoil(rng, json.loads(data))).encode()
    except (ValueError, RecursionError):
        pass
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = json.dumps(spoil(rng, json.loads(lines[at]))).encode()
    except (ValueError, RecursionError):
        return data
    return b"\n".join(lines)


_MUTATIONS: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _insert, _delete, _cut, _repeat, _splice, _number, _number, _line, _json, _json, _json, _json),
)


def spoil(rng: random.Random, tree: Any) -> Any:
    """Return JSON with another value, another key, or one key or item less, in one place."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        changed = dict(tree)
        if rng.random() < 0.1:
            del changed[key]
        elif rng.random() < 0.05:
            changed[rng.choice(TEXTS)] = changed.pop(key)
        else:
            changed[key] = spoil(rng, tree[key])
        return changed
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at = rng.randrange(len(tree))
        items = [spoil(rng, tree[at])] if rng.random() < 0.8 else rng.choice(([], [tree[at]] * 2))
        return [*tree[:at], *items, *tree[at + 1 :]]
    return rng.choice(VALUES)


def minimise(data: bytes, still: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """Return a part of `data` from which no run of bytes can be left out without losing what `still` looks for."""
    size = max(1, len(data) // 2)
    while size and tries > 0:
        at, shorter = 0, False
        while at < len(data) and tries > 0:
            less = data[:at] + data[at + size :]
            tries -= 1
            if still(less):
                data, shorter = less, True
            else:
                at += size
        if not shorter:
            size //= 2
    return data


def minimise_words(words: list[str], still: Callable[[list[str]], bool]) -> list[str]:
    """Return `words` without those that are not needed for what `still` looks for."""
    at = 0
    while at < len(words):
        for size in (2, 1):
            less = words[:at] + words[at + size :]
            if len(less) < len(words) and still(less):
                words = less
                break
        else:
            at += 1
    return words
