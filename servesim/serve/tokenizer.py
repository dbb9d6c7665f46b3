"""How text is cut into tokens: a pretended tokenizer with one documented rule, the same for prompts and `/tokenize`.

A token is up to eight letters, digits or underscores, with the one space in front of them if there is one; or any other
single character. A longer word is cut every eight characters. A token's number is a checksum of its text, so the same
text has the same numbers everywhere and always.

Where a token begins is decided by what stands before it and never by what follows: the tokens of a text stay what they
are when text is put behind it, all but the last, and the last one too unless the new text goes on with its word. So
prompts with a common beginning have common token numbers, and prefix caching finds them.

Chat messages are put between marks that no text contains: begin, role, content, end. It does not know how many tokens
a real tokenizer would make of the same text: about as many for English prose, other numbers for everything else.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from zlib import crc32

VOCAB = 1 << 17
BEGIN, END = 1, 2  # around a chat message
_ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6, "developer": 7}
_OTHER_ROLE = 8
_MARKS = 16  # numbers below are marks, not text
_MARK_TEXTS = {BEGIN: "<|begin|>", END: "<|end|>", _OTHER_ROLE: "<|role|>"} | {
    number: f"<|{role}|>" for role, number in _ROLES.items()
}
MAX_TOKEN_CHARACTERS = 9
_TOKEN = re.compile(r" ?\w{1,8}|\s|[^\w\s]")
_MAX_KNOWN = 1 << 14


class _Numbers(dict[str, int]):
    """The numbers of tokens seen before; a bounded memory of `token_number`."""

    def __missing__(self, token: str) -> int:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        number = self[token] = token_number(token)
        return number


def token_number(token: str) -> int:
    """Return the number of one token's text."""
    return _MARKS + crc32(token.encode("utf-8", "surrogatepass")) % (VOCAB - _MARKS)


def cut(text: str) -> Iterator[str]:
    """Yield the tokens of `text`; together they are the text.

    >>> list(cut("Hello, unbelievably  large world"))
    ['Hello', ',', ' unbeliev', 'ably', ' ', ' large', ' world']
    """
    return (found.group() for found in _TOKEN.finditer(text))


class Tokenizer:
    """Text to token numbers, up to a limit: what is beyond it is not looked at."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = _Numbers()

    def encode(self, text: str, limit: int | None = None) -> array[int]:
        """Return the numbers of the tokens of `text`, at most `limit` of them."""
        tokens: Iterable[str]
        if limit is None or len(text) <= limit:
            tokens = _TOKEN.findall(text)
        else:
            tokens = islice(cut(text), limit)
        return array("I", map(self._numbers.__getitem__, tokens))

    def encode_chat(self, messages: Iterable[tuple[str, str]], limit: int | None = None) -> array[int]:
        """Return the tokens of a conversation of (role, text), ready for the assistant's answer."""
        numbers = array("I")
        for role, text in messages:
            numbers.extend((BEGIN, _ROLES.get(role, _OTHER_ROLE)))
            if limit is not None and len(numbers) > limit:
                break
            numbers.extend(self.encode(text, None if limit is None else limit - len(numbers) + 1))
            numbers.append(END)
        numbers.extend((BEGIN, _ROLES["assistant"]))
        return numbers


def chat_tokens(messages: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the texts of what `encode_chat` numbers, marks spelled out."""
    for role, text in messages:
        yield from (_MARK_TEXTS[BEGIN], _MARK_TEXTS[_ROLES.get(role, _OTHER_ROLE)])
        yield from cut(text)
        yield _MARK_TEXTS[END]
    yield from (_MARK_TEXTS[BEGIN], _MARK_TEXTS[_ROLES["assistant"]])


ROLES: Mapping[str, int] = _ROLES
