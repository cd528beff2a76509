"""CSV files as people and spreadsheets write them, read with one-line errors that name file and line."""

import csv
import io
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.files import read_text


def read_rows(
    path: Path, what: str, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row, in the order of `required` and `optional`.

    Cells of missing optional columns are empty. The columns of the file may be in any order. `what` describes the file
    in error messages.
    """
    return _rows(path, _read_text(path, what, required), required, optional)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a header and rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def number(cell: str) -> float:
    """Return the number in a cell; NaN if it is not a number, or in a notation only Python accepts, such as 1_000."""
    try:
        return float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        return math.nan


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file that has a column of names, such as `client`, and columns of numbers; empty cells are NaN.

    `names` are the clients' names; `client` is each row's index in them. `kind` is the name of their column. A column
    of words holds the place of each word among those that are allowed.
    """

    path: Path
    names: Sequence[int | str]
    line: IntArray
    client: IntArray
    numbers: dict[str, FloatArray]
    kind: str

    def sorted_by(self, column: str) -> "Table":
        """Return the rows sorted by client, then by a column."""
        order = np.lexsort((self.numbers[column], self.client))
        numbers = {name: values[order] for name, values in self.numbers.items()}
        return replace(self, line=self.line[order], client=self.client[order], numbers=numbers)

    def where(self, row: int) -> str:
        """Return the location of a row, for an error message."""
        return f"{self.path} line {self.line[row]}"

    def who(self, row: int) -> str:
        """Return the name of a row's client, for an error message."""
        return f"{self.kind} '{str(self.names[self.client[row]])[:40]}'"

    def check(self, column: str, right: BoolArray, wanted: str) -> None:
        """Raise InputError for the first row that is not `right`."""
        if not right.all():
            row = int(np.argmin(right))
            value = self.numbers[column][row]
            got = "an empty cell" if np.isnan(value) else f"{value:.12g}"
            raise InputError(f"{self.where(row)}: {column} must be {wanted}, got {got}")

    def check_finite(self, *columns: str) -> None:
        """Raise InputError for the first negative, infinite or missing number in these columns."""
        for column in columns:
            values = self.numbers[column]
            self.check(column, (values >= 0) & (values < np.inf), "finite and >= 0")

    def check_pairs(self, clash: BoolArray, what: str, remedy: str = "change one") -> None:
        """Raise InputError for the first row of a sorted table that conflicts with the previous row of the same client.

        `clash[i]` is about rows i and i + 1. `what` may refer to the row's numbers as {column}.
        """
        clash = clash & (self.client[1:] == self.client[:-1])
        if clash.any():
            row = int(np.argmax(clash)) + 1
            first, second = sorted(self.line[row - 1 : row + 1])
            said = what.format_map({name: values[row] for name, values in self.numbers.items()})
            raise InputError(f"{self.path} line {second}: {self.who(row)} {said}, first on line {first}; {remedy}")

    def offsets(self) -> IntArray:
        """Return where each client's rows start in a sorted table, and where the last client's end.

        Shape (num_clients + 1,). Raises InputError if a client has no row.
        """
        counts = np.bincount(self.client, minlength=len(self.names))
        if not counts.all():
            missing, name = np.count_nonzero(counts == 0), str(self.names[int(np.argmin(counts))])[:40]
            rest = f" and {missing - 1} more" if missing > 1 else ""
            everyone = f"all {len(self.names)} clients must be listed"
            raise InputError(f"{self.path} has no row for client '{name}'{rest}; {everyone}")
        return np.concatenate([[0], np.cumsum(counts)])

    def of_fleet(self, names: Sequence[int | str]) -> "Table":
        """Return the rows with the indices of their clients in `names`; raise InputError for one that is not there."""
        places = {str(name): place for place, name in enumerate(names)}
        client = np.array([places.get(str(name), -1) for name in self.names])[self.client]
        if np.any(client < 0):
            row = int(np.argmin(client))
            some = ", ".join([*map(str, names[:3]), "…"][: len(names)])
            raise InputError(f"{self.where(row)}: unknown {self.who(row)}; the fleet has {len(names)} clients: {some}")
        return replace(self, names=names, client=client)


def read_table(
    path: Path | str,
    what: str,
    columns: tuple[str, ...],
    optional: tuple[str, ...] = (),
    kind: str = "client",
    words: tuple[tuple[str, tuple[str, ...]], ...] = (),
) -> Table:
    """Read a file with a column of names, called `kind`, and columns of numbers.

    The names are in the order of their first rows. `words` lists columns of words, each with the words that it may
    have. Tables are cached by the content of the file, whose parsing takes far longer than reading it.
    """
    path = Path(path)
    return _table(path, _read_text(path, what, (kind, *columns)), columns, optional, kind, words)


@lru_cache(maxsize=3)
def _table(
    path: Path,
    text: str,
    columns: tuple[str, ...],
    optional: tuple[str, ...],
    kind: str,
    words: tuple[tuple[str, tuple[str, ...]], ...],
) -> Table:
    places, allowed = dict[str, int](), dict(words)
    lines, clients, flat = array("q"), array("q"), array("d")
    columns_read = columns + optional
    for line, (name, *cells) in _rows(path, text, (kind, *columns), optional):
        if not name:
            raise InputError(f"{path} line {line}: {kind} must have a name, got an empty cell")
        for column, cell in zip(columns_read, cells, strict=True):
            value = _value(cell, allowed.get(column)) if cell else math.nan
            if cell and math.isnan(value):
                wanted = " or ".join(allowed.get(column, ["a number"]))
                raise InputError(f"{path} line {line}: {column} must be {wanted}, got {cell[:40]!r}")
            flat.append(value)
        lines.append(line)
        clients.append(places.setdefault(name, len(places)))
    if not lines:
        raise InputError(f"{path} has no rows; add some below the header")
    numbers = np.array(flat).reshape(-1, len(columns_read))
    by_column = {column: numbers[:, place].copy() for place, column in enumerate(columns_read)}
    return Table(path, tuple(places), np.array(lines), np.array(clients), by_column, kind)


def _value(cell: str, words: tuple[str, ...] | None) -> float:
    """Return the number in a cell, or the place of its word among those that are allowed; NaN if it has neither."""
    if words is None:
        return number(cell)
    return words.index(cell) if cell in words else math.nan


def _read_text(path: Path, what: str, required: Sequence[str]) -> str:
    return read_text(path, "a CSV file", f"{what} must be a CSV file with the columns {','.join(required)}")


def _rows(path: Path, text: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, required, optional)
        places = [header.index(name) if name in header else len(header) for name in (*required, *optional)]
        for values in reader:
            cells = [value.strip() for value in values]
            if not any(cells):
                continue
            if len(cells) != len(header):
                wanted = f"a row must have {len(header)} values, as many as the header, got {len(cells)}"
                raise InputError(f"{path} line {reader.line_num}: {wanted}")
            cells.append("")
            yield reader.line_num, [cells[place] for place in places]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: after line {reader.line_num}, {error}") from None


def _check_header(path: Path, header: list[str], required: Sequence[str], optional: Sequence[str]) -> None:
    wrong = [name for name in header if name not in (*required, *optional)]
    missing = [name for name in required if name not in header]
    if wrong or missing or len(set(header)) != len(header):
        allowed = ",".join(required) + (f", optionally with {','.join(optional)}" if optional else "")
        hint = "; separate columns with commas" if any(";" in name or "\t" in name for name in header) else ""
        raise InputError(f"{path} line 1: the header must be {allowed}, got '{','.join(header)[:80]}'{hint}")
