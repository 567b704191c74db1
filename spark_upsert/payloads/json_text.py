"""JSON payloads, decoded by Arrow's reader many at once.

Each payload becomes a line ``{"v":<payload>}``, and a block of lines is read with a fixed
schema. What Arrow says is believed where it cannot be wrong; every payload that it refuses or
that is not plainly good is read again, alone, by `read_exactly`, which has the last word:

1. The payload is UTF-8: Arrow checks that only in what it keeps.
2. As many documents come out as lines went in. No document spans two lines: a line ends with
   ``}`` and a raw line feed, which is illegal inside a text, and behind which a value, not a
   comma, would have to follow. So each line holds at least one, and exactly one if the
   numbers agree.
3. A payload with a comma at its top level (``{},"w":{}``) would be read as two members. Those
   that could be are read again as ``{"v":[<payload>]}``, where this is a syntax error.
4. A value is converted by Arrow only if any outcome is right or seen. Integers are read as
   64 bits and compared with their range; floats that came out infinite, NaN or zero are
   doubted; decimals, dates and times are read as text, and `decimals` and `times` check it.
5. Arrow would not give a number as text. So a number that follows the name of a decimal gets
   quotes before it is read: one value takes the place of another, so that what was no JSON is
   none afterwards. The quotes of a name are its own: inside of a text they were escaped, and
   behind a text there is no name. Where all decimals of a block are short numbers, this is
   saved: they are read as floats, which tell them apart (`decimals_of_floats`).

Arrow stops at the first line that is no JSON or of another type than declared, and says which:
that one is read alone, and Arrow goes on behind it. A bad payload costs some 10 us, and where
Arrow finds it 100 to 250 us if there are many; a rare one costs a second reading of its block.

Rejected: ``json.loads`` for all (several times slower, before a column is made of it), halving
a failing block until one payload is left (milliseconds for each), and Spark's ``from_json``
(turns what it cannot read into nulls, so that an undecodable row is a row).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_upsert.errors import SchemaError
from spark_upsert.payloads.decimals import (
    decimals,
    decimals_of_floats,
    is_short,
    no_short_number,
)
from spark_upsert.payloads.decoder import (
    Bad,
    Payloads,
    Undecodable,
    built_type,
    decode_blocks,
    row_type,
)
from spark_upsert.payloads.json_exact import TooDeep, read_exactly
from spark_upsert.payloads.raw import NOT_UTF8, as_texts
from spark_upsert.payloads.times import times

_MEMBER = "v"

_TWO_VALUES = r"\}\s*\{"
"""Where a second document may begin; nothing that is JSON has it outside of texts."""

_TWO = r'\}\s*(?:\{|,\s*")'
"""The same, or where a second member may begin; most nested payloads match, too."""

_ESCAPE = r"\\u00[0-7]"
"""It could hide a name that is made of ASCII."""

_SCALAR = r'\A\s*(?:"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+)\s*\z'
"""One value that is no object and no array, if it is JSON."""

_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
"""As JSON has it. What is longer or other keeps its rest outside of the quotes: no JSON."""

_TINY = r"(?:[0-9][eE]-[0-9]+\s*(?:[,}\]]|$)|0{40})"
"""A number that is written as zero and is none has a negative exponent, or many zeros."""

_MISSPELT = "-NaN|Inf(?:[^i]|$)"
"""Arrow reads more spellings as NaN and infinity than Python does."""

_NEAR = 4
"""Bad payloads that are nearer than this cost less alone than one by one out of a block."""


_WINDOW = 64
"""Lines of the next attempt behind bad ones, at the least."""

_ELEMENT = ""
"""What stands for a name before the elements of a list."""

_SURE, _SEEN_IN_TEXT, _DOUBTED = range(3)
"""How sure a value is: as read, if its text does not speak against it, or to be read alone."""

_MAY_BEGIN, _MAY_END = (
    np.isin(np.arange(256), [ord(char) for char in chars]) for chars in ("{ \n\r\t", "} \n\r\t")
)


class _Stopped(Exception):
    """Arrow stopped at a line; `line` is None if it does not say at which."""

    def __init__(self, line: int | None) -> None:
        super().__init__(line)
        self.line = line


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects, or bare values if ``is_bare``.

    Parameters
    ----------
    fields : pyarrow.Schema
        The members to keep, in storage types. One that is not nullable must be there.
    is_bare : bool
        Whether a payload is the value of the only field, instead of an object that holds it.
    """

    fields: pa.Schema
    is_bare: bool = False

    def __post_init__(self) -> None:
        for field in self.fields:
            _require_decodable(field.name, field.type)
        if self.is_bare and pa.types.is_nested(self.fields.types[0]):
            raise SchemaError(
                "a JSON payload that is not an object must be of a simple type.",
                hint='declare the members of the objects, for example "id BIGINT, name STRING".',
            )

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the declared members of each payload."""
        return decode_blocks(self.fields, payloads, self._decode_block)

    @cached_property
    def _type(self) -> pa.DataType:
        return row_type(self.fields)

    @cached_property
    def _quoted(self) -> str | None:
        """The pattern of a name and a number that gets quotes; empty if there is no decimal.

        None if a name does not tell a decimal from others: then each payload is read alone.
        """
        if self.is_bare:
            is_decimal = pa.types.is_decimal128(self.fields.types[0])
            return rf'("{_MEMBER}"\s*:\s*)({_NUMBER})' if is_decimal else ""
        leaves = list(_leaves(self._type))
        decimal_names = {name for name, type_ in leaves if pa.types.is_decimal128(type_)}
        others = {name for name, type_ in leaves if not pa.types.is_decimal128(type_)}
        if not decimal_names:
            return ""
        if (
            decimal_names & others
            or _ELEMENT in decimal_names
            or any('"' in name for name in decimal_names | others)
        ):
            return None
        return rf"({_named(decimal_names)}\s*:\s*)({_NUMBER})"

    @cached_property
    def _long(self) -> tuple[str, ...]:
        """The patterns of a name and a decimal that no float tells from others; empty for none."""
        leaves = list(_leaves(self._type))
        if self.is_bare:
            leaves = [(_MEMBER, type_) for _, type_ in leaves]
        found = {(n, t) for n, t in leaves if pa.types.is_decimal128(t)}
        if not all(is_short(t) and name.isascii() and name.isidentifier() for name, t in found):
            return ()
        # One by one: Arrow finds what begins with a fixed text in no time.
        long = (rf'"{name}"\s*:\s*{no_short_number(type_)}' for name, type_ in found)
        return (_ESCAPE, *long)

    @cached_property
    def _no_integer(self) -> str:
        """The pattern of a name and a number that is no BIGINT, or might be none."""
        names = {name for name, type_ in _leaves(self._type) if pa.types.is_integer(type_)}
        before = f'"{_MEMBER}"' if self.is_bare else _named(names)
        return rf"{before}\s*:\s*-?[0-9]*(?:[0-9][.eE]|[0-9]{{19}})"

    def _decode_block(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        texts, is_text = as_texts(payloads)
        bad = {int(row): NOT_UTF8 for row in np.flatnonzero(~is_text)}
        rows, found = self._read(texts, np.flatnonzero(is_text))
        if len(rows) == len(texts):
            return found, bad
        places = np.full(len(texts), -1, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        alone: list[int] = []
        values: list[dict[str, Any]] = []
        pieces = [found]
        for row in np.flatnonzero(is_text & (places < 0)).tolist():
            try:
                values.append(read_exactly(texts[row].as_py(), self.fields, is_bare=self.is_bare))
                alone.append(row)
            except Undecodable as error:
                bad[row] = str(error)
            except TooDeep as error:
                # It may be here for its neighbours: what Arrow is sure of stays good.
                sure, found = self._read(texts, np.array([row]))
                if len(sure):
                    places[row] = sum(map(len, pieces))
                    pieces.append(found)
                else:
                    bad[row] = str(error)
        places[alone] = sum(map(len, pieces)) + np.arange(len(alone))
        pieces.append(pa.array(values, built_type(self._type)).cast(self._type))
        return pa.concat_arrays(pieces).take(pa.array(places, mask=places < 0)), bad

    def _read(self, texts: pa.Array, rows: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """Return those of some rows that Arrow is sure of, and their values."""
        if self._quoted is None:
            return rows[:0], pa.nulls(0, self._type)
        rows = rows[self._is_one_value(_taken(texts, rows))]
        taken = _taken(texts, rows)
        lines = _lines(taken, "", "")
        as_floats = bool(self._quoted and self._long) and not any(
            _is_anywhere(pattern, lines) for pattern in self._long
        )
        if self._quoted and not as_floats:
            lines = pc.replace_substring_regex(lines, self._quoted, r'\1"\2"')
        is_read, parsed = self._read_lines(lines, _read_type(self._type, as_floats=as_floats))
        rows, taken = rows[is_read], _taken(taken, np.flatnonzero(is_read))
        found, doubts = _converted(parsed, self._type)
        self._doubt_nulls(found, doubts)
        self._doubt_texts(taken, doubts)
        is_sure = doubts == _SURE
        return rows[is_sure], found if is_sure.all() else found.filter(pa.array(is_sure))

    def _is_one_value(self, texts: pa.Array) -> np.ndarray:
        """Return which texts are one JSON value, if they are JSON."""
        if self.is_bare:
            return _mask(pc.match_substring_regex(texts, _SCALAR))
        is_one = _ends_as_object(texts)
        nested = np.flatnonzero(is_one & _mask(pc.match_substring_regex(texts, _TWO)))
        if len(nested):
            is_two = pc.match_substring_regex(_taken(texts, nested), _TWO_VALUES)
            is_one[nested] = ~_mask(is_two)
            nested = nested[is_one[nested]]
            lines = _lines(_taken(texts, nested), "[", "]")
            is_read, lists = _read_lines(lines, pa.list_(pa.struct([])))
            is_one[nested] = is_read
            is_one[nested[is_read]] = _mask(pc.equal(pc.list_value_length(lists), 1))
        return is_one

    def _read_lines(self, lines: pa.Array, type_: pa.DataType) -> tuple[np.ndarray, pa.Array]:
        """Return which lines Arrow reads, and their rows."""
        member = type_[0].type if self.is_bare else type_
        try:
            is_read, found = _read_lines(lines, member)
        except _Stopped:
            # A number was no BIGINT; Arrow does not say which.
            is_plain = ~_mask(pc.match_substring_regex(lines, self._no_integer))
            try:
                is_read, found = _read_lines(lines.filter(pa.array(is_plain)), member)
            except _Stopped:
                return np.zeros(len(lines), dtype=np.bool_), pa.nulls(0, type_)
            is_plain[is_plain] = is_read
            is_read = is_plain
        if self.is_bare:
            found = pa.StructArray.from_arrays([found], fields=list(type_))
        return is_read, found

    def _doubt_nulls(self, found: pa.Array, doubts: np.ndarray) -> None:
        """Doubt payloads that are null, or lack what is declared NOT NULL."""
        doubts[_mask(found.is_null())] = _DOUBTED
        for index, field in enumerate(self.fields):
            if not field.nullable:
                doubts[_mask(found.field(index).is_null())] = _DOUBTED

    def _doubt_texts(self, texts: pa.Array, doubts: np.ndarray) -> None:
        """Settle by their texts which floats are what they seem to be."""
        floats = np.flatnonzero(doubts == _SEEN_IN_TEXT)
        if len(floats):
            is_other = pc.match_substring_regex(_taken(texts, floats), f"{_TINY}|{_MISSPELT}")
            doubts[floats] = np.where(_mask(is_other), _DOUBTED, _SURE)


def _is_anywhere(pattern: str, lines: pa.Array) -> bool:
    """Return whether a pattern is in one of lines that stand one behind the other."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(ends), data])
    return bool(pc.match_substring_regex(text, pattern)[0].as_py())


def _taken(texts: pa.Array, rows: np.ndarray) -> pa.Array:
    return texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def _mask(found: pa.Array) -> np.ndarray:
    """Return a boolean array without nulls for numpy to change."""
    return np.array(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _named(names: Iterable[str]) -> str:
    """Return the pattern of a member's name, in its usual spelling."""
    return f"(?:{'|'.join(re.escape(json.dumps(n, ensure_ascii=False)) for n in sorted(names))})"


def _leaves(type_: pa.DataType, name: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the simple types inside of a type, each with the name that stands before it."""
    if pa.types.is_struct(type_):
        for field in type_.fields:
            yield from _leaves(field.type, field.name)
    elif pa.types.is_list(type_):
        yield from _leaves(type_.value_type, _ELEMENT)
    else:
        yield name, type_


def _ends_as_object(texts: pa.Array) -> np.ndarray:
    """Return which texts begin and end like an object; most broken ones do not."""
    if not len(texts):
        return np.zeros(0, dtype=np.bool_)
    _, offsets_buffer, data = texts.buffers()
    chars = np.frombuffer(data or b"", np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    is_some = offsets[1:] > offsets[:-1]
    found = np.zeros(len(texts), dtype=np.bool_)
    found[is_some] = (
        _MAY_BEGIN[chars[offsets[:-1][is_some]]] & _MAY_END[chars[offsets[1:][is_some] - 1]]
    )
    return found


def _lines(texts: pa.Array, before: str, after: str) -> pa.Array:
    """Return one line per text."""
    # Large: the longest payload that Arrow can hold gets longer here.
    head, tail, nothing = (
        pa.scalar(piece, pa.large_string())
        for piece in (f'{{"{_MEMBER}":{before}', f"{after}}}\n", "")
    )
    return pc.binary_join_element_wise(head, texts.cast(pa.large_string()), tail, nothing)


def _read_lines(lines: pa.Array, type_: pa.DataType) -> tuple[np.ndarray, pa.Array]:
    """Return which lines Arrow reads, and their values.

    Raises
    ------
    _Stopped
        Arrow does not say at which.

    Notes
    -----
    Once it stopped, it goes on in windows of twice the distance to the next bad line, because an
    attempt costs as much as it is given.
    """
    is_read = np.ones(len(lines), dtype=np.bool_)
    at, window = 0, len(lines)
    while at < len(lines):
        try:
            found = _parsed(lines.slice(at, window), type_)
        except _Stopped as stopped:
            if stopped.line is None:
                raise
            first = at + stopped.line
            at = first + 1 + (_NEAR if stopped.line < _NEAR else 0)
            is_read[first:at] = False
            window = max(_WINDOW, 2 * stopped.line)
        else:
            if at == 0:  # All of them, at the first attempt.
                return is_read, found
            at, window = at + window, 2 * window
    return is_read, _parsed(lines.filter(pa.array(is_read)), type_)


def _parsed(lines: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the value of each line; all or nothing."""
    if not len(lines):
        return pa.nulls(0, type_)
    _, offsets_buffer, data = lines.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)
    start, stop = int(offsets[lines.offset]), int(offsets[lines.offset + len(lines)])
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data.slice(start, stop - start)),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=stop - start + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([(_MEMBER, type_)]), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        line = re.search(r" in row (\d+)\Z", str(error))
        raise _Stopped(int(line[1]) if line else None) from error
    if table.num_rows != len(lines):
        raise _Stopped(None)
    found: pa.Array = table.column(_MEMBER).combine_chunks()
    return found


def _read_type(type_: pa.DataType, *, as_floats: bool) -> pa.DataType:
    """Return the type that Arrow reads, from which `_converted` makes the one declared."""
    if pa.types.is_struct(type_):
        fields = [(f.name, _read_type(f.type, as_floats=as_floats)) for f in type_.fields]
        return pa.struct(fields)
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _read_type(type_.value_type, as_floats=as_floats)))
    if pa.types.is_integer(type_):
        return pa.int64()
    if pa.types.is_floating(type_) or (as_floats and pa.types.is_decimal128(type_)):
        return pa.float64()
    return pa.bool_() if pa.types.is_boolean(type_) else pa.string()


def _converted(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return an array as Arrow read it in the declared type, and how sure each value is."""
    doubts = np.full(len(array), _SURE, dtype=np.uint8)
    if pa.types.is_struct(type_):
        columns = []
        for index, field in enumerate(type_.fields):
            column, doubts_inside = _converted(array.field(index), field.type)
            columns.append(column)
            np.maximum(doubts, doubts_inside, out=doubts)
        mask = array.is_null() if array.null_count else None
        fields = list(type_.fields)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask), doubts
    if pa.types.is_list(type_):
        values, doubts_inside = _converted(array.values, type_.value_type)
        inside = np.flatnonzero(doubts_inside)
        parents = np.searchsorted(np.asarray(array.offsets), inside, side="right") - 1
        np.maximum.at(doubts, parents, doubts_inside[inside])
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask), doubts
    if pa.types.is_floating(type_):
        found = array.cast(type_)
        doubts[_mask(pc.fill_null(pc.is_inf(found), False))] = _DOUBTED
        is_odd = pc.or_(pc.is_nan(found), pc.equal(found, 0.0))
        doubts[_mask(pc.fill_null(is_odd, False))] = _SEEN_IN_TEXT
        return found, doubts
    if pa.types.is_integer(type_):
        found, bad = _in_range(array, type_)
    elif pa.types.is_decimal128(type_) and pa.types.is_floating(array.type):
        found, bad = decimals_of_floats(array, type_)
    elif pa.types.is_decimal128(type_):
        found, bad = decimals(array, type_)
    elif pa.types.is_string(type_) or pa.types.is_boolean(type_):
        return array, doubts
    else:
        found, bad = times(array, type_)
    doubts[bad] = _DOUBTED
    return found, doubts


def _in_range(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return 64-bit integers in the declared type, and which do not fit."""
    limit = 1 << (type_.bit_width - 1)
    if type_.bit_width == 64:
        return array, np.zeros(len(array), dtype=np.bool_)
    fits = pc.and_(pc.greater_equal(array, -limit), pc.less(array, limit))
    found = pc.if_else(fits, array, None).cast(type_)
    return found, _mask(pc.fill_null(pc.invert(fits), False))


_DECODABLE: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)


def _require_decodable(name: str, type_: pa.DataType) -> None:
    if pa.types.is_struct(type_):
        for field in type_.fields:
            _require_decodable(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(type_):
        _require_decodable(name, type_.value_type)
    elif not any(check(type_) for check in _DECODABLE):
        raise SchemaError(
            f"the JSON member '{name}' is declared as {type_}, which has no form in JSON that "
            "can be read exactly.",
            hint="declare a STRUCT for an object whose members are known, or read the topic with "
            "Spark's from_json and write the columns with the envelope 'upsert'.",
            column=name,
        )
