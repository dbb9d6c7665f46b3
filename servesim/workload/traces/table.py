"""Tables with commas: a header that names the columns, one row a line, quotes where somebody wanted them.

A row never spans lines, so that a stray quote spoils one row and not the rest of the file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from operator import itemgetter

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.units import shown
from servesim.workload.traces.format import plain

Cells = tuple[str, ...]


def table_cells(
    file: InputFile, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield (line, the cells of `columns` and then of `optional`) of every row; a cell that is not there is empty.

    Raises InputError for a header without one of `columns`, whatever their order and whatever else it has.
    """
    lines = file.lines()
    line, header = next(lines, (1, ""))
    if isinstance(header, InputError):
        raise InputError(f"{file.name}:{line}: {header}")
    if not header:
        return
    try:
        names = _split(header)
    except InputError as error:
        raise InputError(f"{file.name}:{line}: {error}") from None
    known = [plain(name) for name in names]
    for column in columns:
        if plain(column) not in known:
            raise InputError(f"{file.name}:{line}: no column {column!r}; the header is {shown(header.strip())}")
    for name in (*columns, *optional):
        if known.count(plain(name)) > 1:
            raise InputError(f"{file.name}:{line}: column {name!r} is there twice")
    width = len(names)
    places = [known.index(plain(name)) if plain(name) in known else width for name in (*columns, *optional)]
    pick = itemgetter(*places)
    padded = width in places
    for line, text in lines:
        if isinstance(text, InputError):
            yield line, text
            continue
        try:
            cells = _split(text)
        except InputError as error:
            yield line, error
            continue
        if len(cells) != width:
            yield line, InputError(f"the row has {len(cells)} fields, must have {width} as the header has")
            continue
        if padded:
            cells.append("")
        yield line, pick(cells)


def _split(text: str) -> list[str]:
    text = text.rstrip("\r\n")
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InputError(f"quotes that do not close: {shown(text)} ({error})") from None
