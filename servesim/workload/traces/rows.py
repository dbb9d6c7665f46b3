"""From the rows of a trace to request columns: what the rows say together.

Order of arrival, sessions, shared content, ids that must differ. Line numbers come from the caller; the file's name
is added by it to every error.
"""

from __future__ import annotations

import difflib
import math
from array import array
from collections.abc import Sequence
from typing import Any

from servesim.errors import InputError
from servesim.units import shown
from servesim.workload.content import ANY_ROOT, BlockChains, Streams, follow, renumber
from servesim.workload.lengths import MAX_TOKENS
from servesim.workload.requests import OPEN_END, Content, Requests
from servesim.workload.traces.fields import (
    FIELDS,
    HASHES,
    PLAIN,
    TIME_FIELDS,
    Extras,
    Row,
    TraceClock,
    parse_chain,
    parse_extras,
    parse_tokens,
)
from servesim.workload.traces.format import TraceFacts
from servesim.workload.workload import link_turns

NEEDS_NO_TIMES = "a closed loop needs no times: --concurrency N"


class TraceRows:
    """Takes rows one by one and gives the columns at the end.

    `time_unit` overrules what a field's name, or the format by its `facts`, says of the unit. With `arrivals_required`,
    every request but a session's later turns needs its arrival. `notes` collects sentences about what was accepted but
    should be known.
    """

    def __init__(
        self, *, time_unit: str | None = None, arrivals_required: bool = True, facts: TraceFacts | None = None
    ) -> None:
        self._facts = facts or TraceFacts()
        self.notes: list[str] = []
        self.clock: TraceClock | None = None
        self._time_unit = time_unit
        self._time_field = "arrival_s"
        self._arrivals_required = arrivals_required
        self._prompt_tokens = array("q")
        self._output_tokens = array("q")
        self._arrival_s = array("d")
        self._lines = array("Q")
        self._ids: dict[str, int] = {}  # id -> line
        self._unknown: set[str] = set()
        self._streams = Streams()
        self._chains = BlockChains()
        self._interned: dict[Content, Content] = {}
        self._turns: dict[str, dict[int, int]] = {}  # session -> turn -> row
        self._turns_given: dict[str, bool] = {}
        # What few rows or all of them have: row -> value.
        self._content: dict[int, Content] = {}
        self._explicit: set[int] = set()  # rows that say themselves all that they share
        self._leaf: dict[int, int] = {}  # last node of the chain of hashes
        self._session: dict[int, tuple[str, int]] = {}
        self._others: dict[str, dict[int, Any]] = {column.name: {} for column in PLAIN}

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: int, row: Row) -> None:
        """Take one row; raise InputError naming the field, and keep nothing of the row, if it is a bad one."""
        if not FIELDS.issuperset(row):
            self._look_at_unknown(line, row)
        prompt_tokens, output_tokens = row.get("prompt_tokens"), row.get("output_tokens")
        if type(prompt_tokens) is not int or not 1 <= prompt_tokens <= MAX_TOKENS:
            prompt_tokens = parse_tokens(row, "prompt_tokens")
        if type(output_tokens) is not int or not 1 <= output_tokens <= MAX_TOKENS:
            output_tokens = parse_tokens(row, "output_tokens")
        at = row.get(self._time_field)
        arrival_s = self._look_for_arrival(row) if self.clock is None or at is None else self.clock.seconds(at)
        is_plain = arrival_s == arrival_s and not self._ids
        if is_plain and len(row) == 5 and HASHES.issubset(row) and None not in row.values():
            self._leaf[len(self._lines)] = self._chains.add(*parse_chain(row, prompt_tokens))  # there may be millions
        elif len(row) > 3 or not is_plain:
            self._add_extras(line, parse_extras(row, prompt_tokens), arrival_s)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)
        self._arrival_s.append(arrival_s)
        self._lines.append(line)

    def finish(self) -> Requests:
        """Return the columns in order of arrival; raise InputError for what does not fit together, with its line."""
        untimed = sum(row not in self._session for row, at in enumerate(self._arrival_s) if at != at)
        if self.clock is not None and untimed:
            self.notes.append(f"{untimed:,} of {len(self):,} requests have no {self.clock.field}")
        self._shift_to_first()
        order = self._order()
        requests = Requests()
        requests.prompt_tokens = array("q", map(self._prompt_tokens.__getitem__, order))
        requests.output_tokens = array("q", map(self._output_tokens.__getitem__, order))
        requests.arrival_s = array("d", map(self._arrival_s.__getitem__, order))
        if self._ids:
            ids = list(self._ids)
            requests.ids = [ids[row] for row in order]
        if self._session:
            requests.sessions = [self._session[row][0] if row in self._session else None for row in order]
            requests.turns = array("q", (self._session[row][1] if row in self._session else 0 for row in order))
        for column in PLAIN:
            if values := self._others[column.name]:
                setattr(requests, column.name, column.gather(values.get(row, column.absent) for row in order))
        contents = self._contents(requests, order)
        if any(contents):  # chains alone have their streams numbered in order
            requests.content = renumber(contents) if self._content or self._session else contents
        return requests

    def _look_for_arrival(self, row: Row) -> float:
        """Return the arrival of a row which may have none, or none in the field that those before it had it in."""
        given = [field for field in TIME_FIELDS if row.get(field) is not None]
        if not given:
            if self._arrivals_required and row.get("session") is None:
                name = self._facts.time_field or self._time_field
                wrong = f"{name} is {'null' if name in row and not self._facts.time_field else 'missing'}"
                raise InputError(wrong if self.clock else f"{wrong}; {NEEDS_NO_TIMES}")
            return math.nan
        if self.clock is None:
            self._time_field, facts = given[0], self._facts
            unit = facts.time_unit or TIME_FIELDS[self._time_field]
            name = facts.time_field or self._time_field
            self.clock = TraceClock(name, unit=self._time_unit, unit_of_field=unit)
        if given != [self._time_field]:
            raise InputError(f"{given[-1]} is given, but the times of this trace are in {self._time_field}")
        return self.clock.seconds(row[self._time_field])

    def _look_at_unknown(self, line: int, row: Row) -> None:
        for field in row:
            if field in FIELDS or field in self._unknown:
                continue
            close = difflib.get_close_matches(field[:64].lower(), sorted(FIELDS), n=1, cutoff=0.8)
            if close:
                raise InputError(f"unknown field {shown(field)}; did you mean {close[0]!r}?")
            if not self._unknown:
                self.notes.append(f"unknown field {shown(field)} (line {line}) and any others are ignored")
            if len(self._unknown) < 1000:
                self._unknown.add(field)

    def _add_extras(self, line: int, extras: Extras, arrival_s: float) -> None:
        """Keep a row's optional fields. Whatever may be wrong is looked at before anything is kept."""
        row = len(self._lines)
        if extras.id is None and self._ids:
            raise InputError("id is missing, but the lines before have one")
        if extras.id is not None and len(self._ids) < row:
            raise InputError(f"id is {shown(extras.id)}, but the lines before have none")
        if extras.id in self._ids:
            raise InputError(f"id is {shown(extras.id)}, which line {self._ids[extras.id]} has, too")
        if extras.session is not None:
            self._add_turn(row, extras.session, extras.turn)
        if extras.id is not None:
            self._ids[extras.id] = line
        content: Content = ()
        if extras.prefix is not None:
            name, tokens = extras.prefix
            content = ((self._streams.named(("prefix", name)), tokens),) if tokens else ()
        elif extras.content is not None:
            content = tuple((self._streams.named(("content", number)), end) for number, end in extras.content)
        if extras.content is not None or extras.chain is not None:
            self._explicit.add(row)
        if content:
            self._content[row] = self._interned.setdefault(content, content)
        if extras.chain is not None:
            self._leaf[row] = self._chains.add(*extras.chain)
        for name, value in extras.others:
            if value:  # a priority of 0 or no pause is what the others have
                self._others[name][row] = value

    def _add_turn(self, row: int, session: str, turn: int | None) -> None:
        turns = self._turns.get(session)
        if turns is None:
            turns = self._turns[session] = {}
            self._turns_given[session] = turn is not None
        elif (turn is not None) != self._turns_given[session]:
            raise InputError(f"session {shown(session)} has lines with a turn and lines without")
        if turn is None:
            turn = len(turns) + 1
        if turn in turns:
            raise InputError(f"turn is {turn}, which line {self._lines[turns[turn]]} has in this session, too")
        turns[turn] = row
        self._session[row] = (session, turn)

    def _shift_to_first(self) -> None:
        if self.clock is None or not self.clock.is_absolute:
            return
        first_s = min((at for at in self._arrival_s if at == at), default=0.0)
        self._arrival_s = array("d", (at - first_s for at in self._arrival_s))
        self.notes.append(f"{self.clock.field} has {self.clock.understood} times, shifted so that the first is 0")

    def _order(self) -> Sequence[int]:
        """Return the rows by arrival, equal ones as in the file; one without an arrival stays behind the one before."""
        keys = array("d")
        latest_s = before_s = -math.inf
        late = 0
        for at in self._arrival_s:
            if at == at:
                before_s = at
                if at >= latest_s:
                    latest_s = at
                else:
                    late += 1
            keys.append(before_s)
        if not late:
            return range(len(keys))
        self.notes.append(f"{late} of {len(keys)} arrivals were not in order of time; sorted")
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _contents(self, requests: Requests, order: Sequence[int]) -> list[Content]:
        contents: list[Content] = [()] * len(order)
        if self._leaf:
            leaves = [self._leaf.get(row, ANY_ROOT) for row in order]
            contents = self._chains.contents(leaves, requests.prompt_tokens, self._streams)
        if self._content:
            contents = [self._content.get(row, content) for row, content in zip(order, contents, strict=True)]
        if self._session:
            self._give_histories(requests, order, contents)
        return contents

    def _give_histories(self, requests: Requests, order: Sequence[int], contents: list[Content]) -> None:
        """Let the turns of each session share its history, unless the trace says itself what they share."""
        firsts, following = link_turns(requests)
        shortened = 0
        for first in firsts:
            if self._arrivals_required and math.isnan(requests.arrival_s[first]):
                line = self._lines[order[first]]
                raise InputError(f"{line}: arrival_s is missing on the first turn of a session; {NEEDS_NO_TIMES}")
            if following[first] < 0 or order[first] in self._explicit:
                continue
            opening = contents[first]
            before, turn = first, following[first]
            contents[first] = (*opening, (self._streams.new(), OPEN_END))
            while turn >= 0 and order[turn] not in self._explicit:
                if contents[turn] not in ((), opening):
                    raise InputError(
                        f"{self._lines[order[turn]]}: prefix differs from that of the session's first turn"
                    )
                history_tokens = requests.prompt_tokens[before] + requests.output_tokens[before]
                contents[turn], was_cut = follow(
                    contents[before], history_tokens, requests.prompt_tokens[turn], self._streams
                )
                shortened += was_cut
                before, turn = turn, following[turn]
        if shortened:
            self.notes.append(
                f"{shortened} turns have prompts shorter than the turns before them, whose history is cut"
            )
