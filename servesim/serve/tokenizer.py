"""Text in and out of a server without a model: a pretended tokenizer, answers, and which prompts begin alike.

`Tokenizer` has one documented rule, the same for prompts and `/tokenize`. A token is up to eight letters, digits or
underscores, with the one space in front of them if there is one; or any other single character. A longer word is cut
every eight characters. A token's number is a checksum of its text, so the same text has the same numbers everywhere and
always.

Where a token begins is decided by what stands before it and never by what follows: the tokens of a text stay what they
are when text is put behind it, all but the last, and the last one too unless the new text goes on with its word. So
prompts with a common beginning have common token numbers, and prefix caching finds them.

Chat messages are put between marks that no text contains: begin, role, content, end. It does not know how many tokens
a real tokenizer would make of the same text: about as many for English prose, other numbers for everything else.

`PretendedText` is what the model says: a passage of plain words, one token each under that rule. An answer begins at
some sentence of the passage and goes on, round and round, so that token `k` of an answer costs a look into a table. It
says the same for the same `start`; it does not read its prompt.

`Prefixes` turns token numbers into the engine's shared content, by chained block hashes. As in vLLM
(vllm/v1/core/kv_cache_utils.py) the hash of a block takes in the hash of the block before it, so equal hashes mean
equal texts from the first token on. The engine wants streams (see `servesim.workload.requests`): the blocks of a prompt
that are known run along streams of earlier prompts, those that are new become a stream of their own, and the tail
behind the last whole block, with the answer, is a stream that only the next turn of the same talk joins.

It does not know which blocks still exist: the pool does, and tells it now and then, so that it forgets with the pool.
Two answers that are word for word the same count as different, unless the second request came when the first was over.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, islice
from zlib import crc32

from servesim.workload.content import Streams
from servesim.workload.requests import OPEN_END, Content

VOCAB = 1 << 17
BEGIN, END = 1, 2  # around a chat message
_ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6, "developer": 7}
_OTHER_ROLE = 8
_MARKS = 16  # numbers below are marks, not text
_MARK_TEXTS = {BEGIN: "<|begin|>", END: "<|end|>", _OTHER_ROLE: "<|role|>"} | {
    number: f"<|{role}|>" for role, number in _ROLES.items()
}
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


class PretendedText:
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


FEW_NODES = 1 << 15
_DEPTH_BITS = 24


class Prefixes:
    """The blocks that were seen and may still exist: hash -> the stream and the depth at which the block lies."""

    __slots__ = ("_many_nodes", "_nodes", "_streams", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._nodes: dict[bytes, int] = {}
        self._many_nodes = FEW_NODES
        self._streams = Streams()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def crowded(self) -> bool:
        """Whether it is time to `forget`."""
        return len(self._nodes) >= self._many_nodes

    def content(self, numbers: array[int]) -> tuple[Content, bytes]:
        """Return the content of a prompt, and the hash of its last whole block (what an answer goes on from)."""
        nodes, size = self._nodes, self.block_size
        segments: list[tuple[int, int]] = []
        parent, new = b"", -1
        for depth, start in enumerate(range(0, len(numbers) - size + 1, size), 1):
            parent = _hash(parent, numbers[start : start + size])
            node = nodes.get(parent) if new < 0 else None
            if node is None:
                if new < 0:
                    new = self._streams.new()
                nodes[parent] = new << _DEPTH_BITS | depth
                stream = new
            else:
                stream = node >> _DEPTH_BITS
            if segments and segments[-1][0] == stream:
                segments[-1] = stream, depth * size
            else:
                segments.append((stream, depth * size))
        segments.append((self._streams.new(), OPEN_END))
        return tuple(segments), parent

    def add_answer(self, content: Content, parent: bytes, tail: array[int], prompt_blocks: int) -> None:
        """Make an answer's blocks known: `tail` is what follows the prompt's last whole block, hashed to `parent`."""
        stream, size = content[-1][0], self.block_size
        for depth, start in enumerate(range(0, len(tail) - size + 1, size), prompt_blocks + 1):
            parent = _hash(parent, tail[start : start + size])
            self._nodes.setdefault(parent, stream << _DEPTH_BITS | depth)

    def forget(self, alive: Mapping[int, int], in_use: Iterable[int]) -> None:
        """Forget the blocks that no longer exist: all but the first `alive[stream]`, and those of streams `in_use`."""
        used = set(in_use)
        mask = (1 << _DEPTH_BITS) - 1
        self._nodes = {
            key: node
            for key, node in self._nodes.items()
            if (stream := node >> _DEPTH_BITS) in used or node & mask <= alive.get(stream, 0)
        }
        self._many_nodes = max(FEW_NODES, 2 * len(self._nodes))


def _hash(parent: bytes, block: array[int]) -> bytes:
    return blake2b(parent + block.tobytes(), digest_size=16).digest()
