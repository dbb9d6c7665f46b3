"""What the pretended model says: an endless passage of plain words, one token each under the tokenizer's rule.

An answer begins at some sentence of the passage and goes on, round and round, so that token `k` of an answer costs a
look into a table. It says the same for the same `start`; it does not read its prompt.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from servesim.serve.tokenizer import cut, token_number

PASSAGE = (
    " This is a server without a GPU. No model has read your prompt, and what you read here means nothing."
    " What is real is the pace: each word comes at the end of a step that a batch of requests took together."
    " A step takes as long as the device needs to read its weights and the cache of every request in it."
    " When many come at once they share the steps, and each of them waits a little longer for its next word."
    " When the cache is full the youngest gives up its place, and its reader sees one long pause."
    " A prompt that begins like another one is read faster, since its first blocks are still there."
    " Turn the knobs and watch the queue. Ask for more than there is and see who has to wait."
    " The numbers on the page of metrics are those of this very run, and they add up."
    " If they do not, that is a fault, and somebody would like to hear of it."
)
TOKENS: tuple[str, ...] = tuple(cut(PASSAGE))
NUMBERS = array("I", map(token_number, TOKENS))
JSON_TOKENS: tuple[bytes, ...] = tuple(json.dumps(token)[1:-1].encode() for token in TOKENS)
SENTENCES = (0, *(at + 1 for at, token in enumerate(TOKENS[:-1]) if token == "."))
_SIZE = len(TOKENS)


class Speech:
    """One answer, as tokens. `bare`: its first word has no space in front, as behind a chat mark.

    A `stop` string ends it: `end` is then the number of tokens with the one in which it is complete, `stopped_by` the
    string; the string itself is not in the text, unless it was asked for.
    """

    __slots__ = ("_bare", "_rest", "_start", "_whole", "end", "stopped_by")

    def __init__(self, start: int, *, bare: bool = False) -> None:
        self._start = SENTENCES[start % len(SENTENCES)]
        self._bare = bare
        self._whole: int | None = None  # tokens in front of the one that a stop string begins in
        self._rest = ""  # what is to be read of that one
        self.end: int | None = None
        self.stopped_by: str | None = None

    def token(self, number: int) -> str:
        """Return the text of token `number`, counted from 0."""
        token = TOKENS[(self._start + number) % _SIZE]
        return token if number or not self._bare else token.lstrip()

    def text(self, first: int, after: int) -> str:
        """Return what is to be read of tokens [first, after)."""
        return json.loads(b'"%b"' % self.json(first, after))  # type: ignore[no-any-return]

    def json(self, first: int, after: int) -> bytes:
        """Return what is to be read of tokens [first, after), as it stands between the quotes of a JSON string."""
        at, rest = self._start, b""
        if self._whole is not None and after > self._whole:
            rest = _json(self._rest) if first <= self._whole else b""
            after = self._whole
        elif after == first + 1 and (first or not self._bare):
            return JSON_TOKENS[(at + first) % _SIZE]
        pieces = [JSON_TOKENS[(at + number) % _SIZE] for number in range(first, after)]
        if self._bare and first == 0 and pieces:
            pieces[0] = pieces[0].lstrip()
        return b"".join(pieces) + rest

    def numbers(self, count: int) -> array[int]:
        """Return the numbers of the first `count` tokens."""
        at = self._start
        numbers = (NUMBERS[at:] + NUMBERS * (count // _SIZE + 1))[:count]
        if self._bare and count:
            numbers[0] = token_number(self.token(0))
        return numbers

    def stop_at(self, stop: Sequence[str], limit: int, least: int = 0, *, include: bool = False) -> None:
        """End at the first of the `stop` strings that is complete within `limit` tokens, but not in the first `least`.

        The passage repeats itself, so nobody looks further than twice through it, or for a longer string than it.
        """
        stop = [string for string in stop if 0 < len(string) <= len(PASSAGE)]
        if not stop or least >= limit:
            return
        first = max(0, least - max(map(len, stop)))
        tokens = [self.token(number) for number in range(first, min(limit, least + 2 * _SIZE))]
        ends = list(accumulate(map(len, tokens)))
        text = "".join(tokens)
        searched = ends[least - first - 1] if least > first else 0
        found: tuple[int, int, str] | None = None
        for string in stop:
            at = text.find(string, max(0, searched - len(string) + 1))
            if at >= 0 and (found is None or at + len(string) < found[0]):
                found = at + len(string), at, string
        if found is None:
            return
        after, at, self.stopped_by = found
        self.end = first + bisect_left(ends, after) + 1
        visible = after if include else at
        place = bisect_right(ends, visible)
        self._whole = first + place
        self._rest = text[ends[place - 1] if place else 0 : visible]


def _json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()
