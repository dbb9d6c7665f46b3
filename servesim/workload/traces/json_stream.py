"""One huge JSON text, pulled apart value by value while a piece of it is held: for arrays of hundreds of megabytes.

Whoever pulls says what comes: `items` of an array, `members` of an object, a `value` as a whole, or `skip`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.workload.traces.jsonl import json_fault, no_constant

MAX_VALUE_CHARS = 64 * 2**20  # of one value that is taken as a whole
_CUT = 16  # an error so near the end of what is held may only be that the rest is not there yet


class JsonStream:
    """The JSON of `file`, from its start. Raises InputError, with file and line, for text that is no JSON."""

    def __init__(self, file: InputFile) -> None:
        self._name = file.name
        self._pieces = file.pieces()
        self._text = ""
        self._at = 0
        self._ended = False
        self._lines_before = 1  # the line of the first character held
        self._decode = json.JSONDecoder(parse_constant=no_constant).raw_decode

    @property
    def line(self) -> int:
        """The line, from 1, that comes next."""
        return self._lines_before + self._text.count("\n", 0, self._at)

    def peek(self) -> str:
        """Return the next character that is not blank, without taking it; nothing at the end."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in " \t\r\n":
                at += 1
            self._at = at
            if at < len(text) or not self._more():
                return text[at : at + 1]

    def items(self) -> Iterator[None]:
        """Yield before each item of an array, which is to be taken then."""
        self._take("[")
        if self.peek() != "]":
            yield
            while self.peek() == ",":
                self._at += 1
                yield
        self._take("]")

    def members(self) -> Iterator[str]:
        """Yield the key of each member of an object, whose value is to be taken then."""
        self._take("{")
        if self.peek() != "}":
            yield self._key()
            while self.peek() == ",":
                self._at += 1
                yield self._key()
        self._take("}")

    def value(self) -> Any:
        """Take and return the next value, of whatever kind."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _CUT
                if unfinished and self._more():
                    continue
                raise self._wrong(json_fault(error)) from None
            except RecursionError:
                raise self._wrong("nested too deeply") from None
            except ValueError:
                raise self._wrong("a number is too long") from None
            except InputError as error:
                raise self._wrong(str(error)) from None
            if end == len(self._text) and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def array(self) -> list[Any]:
        """Take and return an array, item by item."""
        return [self.value() for _ in self.items()]

    def skip(self) -> None:
        """Take the next value and forget it, holding no more than one of its items."""
        first = self.peek()
        if first == "[":
            for _ in self.items():
                self.value()
        elif first == "{":
            for _ in self.members():
                self.value()
        else:
            self.value()

    def end(self) -> None:
        """Refuse whatever follows the text that was taken, such as a second one."""
        if self.peek():
            raise self._wrong("not JSON: the text goes on behind its end; one result a file")

    def _key(self) -> str:
        if self.peek() != '"':
            raise self._wrong("not JSON: expecting a key in double quotes")
        key: str = self.value()
        self._take(":")
        return key

    def _take(self, character: str) -> None:
        found = self.peek()
        if found != character:
            raise self._wrong(f"not JSON: expecting {character!r}" + ("" if found else ", the text ends here"))
        self._at += 1

    def _more(self) -> bool:
        """Let go of what was taken and hold as much again; False at the end of the file."""
        if self._ended:
            return False
        self._lines_before += self._text.count("\n", 0, self._at)
        pieces = [self._text[self._at :]]
        self._at = 0
        wanted = held = len(pieces[0])
        if held > MAX_VALUE_CHARS:
            raise self._wrong(f"a value is longer than {MAX_VALUE_CHARS // 2**20} MiB")
        for piece in self._pieces:
            pieces.append(piece)
            held += len(piece)
            if held >= 2 * wanted:
                break
        else:
            self._ended = True
        self._text = "".join(pieces)
        return held > wanted

    def _wrong(self, message: str) -> InputError:
        return InputError(f"{self._name}:{self.line}: {message}")
