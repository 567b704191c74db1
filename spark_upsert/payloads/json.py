"""JSON payloads (`JsonDecoder`), decoded by Arrow's reader in blocks.

Arrow's result is accepted only if it is certain; every other payload is decoded alone by
`json_exact.read_exactly`, which decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_upsert.core.casts import convert, try_convert
from spark_upsert.core.keys import Mask
from spark_upsert.core.threads import Rounding, Undecodable
from spark_upsert.errors import SchemaError
from spark_upsert.payloads.decoder import (
    NOT_UTF8,
    TOO_SPARSE,
    VALUES_PER_BYTE,
    Bad,
    Payloads,
    as_texts,
    built_type,
    count_parts,
    decode_blocks,
    row_type,
    values_max,
    with_faults,
)
from spark_upsert.payloads.json_exact import (
    TooDeep,
    decimals_of_floats,
    is_short,
    long_number_pattern,
    read_exactly,
)

_ITEM_BYTES_MIN = 2
"""Bytes of the shortest item, including its comma: ``1,``."""


def may_be_sparse(fields: pa.Schema) -> bool:
    """Return whether a small payload may decode to too many values."""
    return max(map(_widest_item, fields.types), default=0) > VALUES_PER_BYTE * _ITEM_BYTES_MIN


def are_sparse(payloads: pa.Array, fields: pa.Schema) -> Mask | None:
    """Return a mask for payloads with too many values; None if there are none.

    Commas and brackets are counted first; only payloads above that estimate are parsed.
    """
    widest = max(map(_widest_item, fields.types))
    marks = (pc.count_substring(payloads, mark).fill_null(0) for mark in (",", "["))
    items = np.sum([np.asarray(mark, dtype=np.int64) for mark in marks], axis=0)
    lengths = np.asarray(pc.binary_length(payloads).fill_null(0), dtype=np.int64)
    is_sparse = items * widest > values_max(0) + VALUES_PER_BYTE * lengths
    arrays = _Arrays.of(fields) if is_sparse.any() else None
    for row in np.flatnonzero(is_sparse).tolist():
        is_sparse[row] = _means_more(payloads[row].as_py(), arrays, values_max(int(lengths[row])))
    return is_sparse if is_sparse.any() else None


def _widest_item(type_: pa.DataType) -> int:
    inside = [type_.field(index).type for index in range(type_.num_fields)]
    item_width = count_parts(type_.value_type) if pa.types.is_list(type_) else 0
    return max([item_width, *map(_widest_item, inside)])


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays inside a type; members without arrays are left out."""

    members: Mapping[str, _Arrays] = field(default_factory=dict)
    item_parts: int = 0
    """Parts per array item; 0 for an object."""
    item: _Arrays | None = None

    @classmethod
    def of(cls, fields: Iterable[pa.Field]) -> _Arrays | None:
        parsers = {declared_field.name: cls._in(declared_field.type) for declared_field in fields}
        members = {name: inside for name, inside in parsers.items() if inside is not None}
        return cls(members) if members else None

    @classmethod
    def _in(cls, type_: pa.DataType) -> _Arrays | None:
        if pa.types.is_list(type_):
            return cls({}, count_parts(type_.value_type), cls._in(type_.value_type))
        return cls.of(type_) if pa.types.is_struct(type_) else None


def _means_more(payload: bytes, arrays: _Arrays | None, most: int) -> bool:
    """Return whether a payload's arrays have more than ``most`` values; stops at the limit."""
    try:
        left = [(json.loads(payload), arrays)]
    except (ValueError, RecursionError):
        return False
    values = 0
    while left and values <= most:
        value, inside = left.pop()
        if inside is None:
            continue
        if inside.item_parts and isinstance(value, list):
            values += len(value) * inside.item_parts
            if inside.item is not None and values <= most:
                left += [(item, inside.item) for item in value]
        elif not inside.item_parts and isinstance(value, dict):
            left += [(value[name], part) for name, part in inside.members.items() if name in value]
    return values > most


_MEMBER = "v"

_TWO_VALUES = r"\}[ \t]*[{\x00]"
"""A possible start of a second document in a line; valid JSON has it only inside texts."""

_TWO = r'\}[ \t]*(?:[{\x00]|,[ \t]*")'
"""The same, or a possible second member; most nested payloads match too."""

_ESCAPE = r"\\u00[0-7]"
"""An escape that could hide an ASCII name."""

_SCALAR = r'\A\s*(?:"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+)\s*\z'
"""One scalar value, if the text is JSON."""

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
"""A JSON number. Extra characters stay outside the added quotes, so the result is invalid JSON."""

_ODD_FLOAT = '"(?:NaN|-?Infinity)"'
"""NaN or infinity, as Jackson writes it and therefore Connect and Spark."""

_TINY = r"(?:[0-9][eE]-[0-9]+\s*(?:[,}\]]|$)|0{40})"
"""A nonzero number may be read as zero: it has a negative exponent or many zeros."""

_MISSPELT = "-NaN|Inf(?:[^i]|$)"
"""Spellings that Arrow reads as NaN or infinity, but Python does not."""

_NEAR = 4
"""Minimum distance between bad payloads, in lines; closer ones are cheaper to decode alone."""

_BLOCK_BYTES = 128 << 10
"""Bytes per Arrow read; a bad line loses the complete block.

Good payloads cost 2 to 3 % less at twice this size, and 4 % more at half of it."""

_WINDOW = 64
"""Minimum lines in the next attempt after a bad line."""

_SPACE, _TAB, _FEED, _RETURN = 0x20, 0x09, 0x0A, 0x0D

_ELEMENT = ""
"""The member name for list elements."""

_SURE, _SEEN_IN_TEXT, _DOUBTED = range(3)
"""Confidence in a value: accepted, accepted unless its text contradicts it, or decoded alone."""

_MAY_BEGIN, _MAY_END = (
    np.isin(np.arange(256), [ord(char) for char in chars]) for chars in ("{ \n\r\t", "} \n\r\t")
)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Arrow's result for lines up to the first failed block."""

    values: list[pa.Array]
    """One array per block."""
    read_count: int
    """Lines in those blocks."""
    lost_until: int
    """End of the lines lost with the failed block, though they may be valid."""
    is_stopped: bool
    """Whether Arrow reported the next line as bad."""


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects, or bare values if ``is_bare``.

    Each payload is a line ``{"v":<payload>}``. Arrow's result is accepted under these conditions:

    - a block has as many documents as lines: a raw line feed ends each line and is illegal inside a
      text;
    - payloads that could have a comma at their top level are read again as ``{"v":[<payload>]}``,
      where it is a syntax error; a second document after a ``}`` is rejected before;
    - integers are read as 64 bits, doubtful floats are read again, other types are read as text;
    - numbers for decimals get quotes first, unless all in a block are short (`decimals_of_floats`).

    After a failed block, the lines before the bad one are read again. A bad payload costs 10 us to
    1 ms.

    Parameters
    ----------
    fields : pyarrow.Schema
        The members to keep, in storage types. A non-nullable member is required.
    is_bare : bool
        Whether a payload is the only field's value instead of an object with that field.
    """

    fields: pa.Schema
    is_bare: bool = False

    def __post_init__(self) -> None:
        for declared in self.fields:
            _require_decodable(declared.name, declared.type)
        if self.is_bare and pa.types.is_nested(self.fields.types[0]):
            raise SchemaError(
                "a JSON payload that is not an object must be of a simple type.",
                hint='declare the members of the objects, for example "id BIGINT, name STRING".',
            )

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return each payload's declared members."""
        sparse = are_sparse(payloads, self.fields) if self._may_be_sparse else None
        if sparse is None:
            return decode_blocks(self.fields, payloads, self._decode_block)
        dense = pc.if_else(pa.array(sparse), None, payloads)
        decoded = decode_blocks(self.fields, dense, self._decode_block)
        return with_faults(decoded.columns, decoded.reasons, [(TOO_SPARSE, sparse)])

    @cached_property
    def _type(self) -> pa.DataType:
        return row_type(self.fields)

    @cached_property
    def _may_be_sparse(self) -> bool:
        return may_be_sparse(self.fields)

    @cached_property
    def _quoted(self) -> str | None:
        """The pattern for decimal members, to quote their numbers; empty without decimals.

        None if decimals cannot be recognised by name; each payload is then decoded alone.
        """
        if self.is_bare:
            is_decimal = pa.types.is_decimal128(self.fields.types[0])
            return rf'("{_MEMBER}"\s*:\s*)({NUMBER})' if is_decimal else ""
        leaves = list(leaf_types(self._type))
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
        return rf"({member_pattern(decimal_names)}\s*:\s*)({NUMBER})"

    @cached_property
    def _long(self) -> tuple[str, ...]:
        """Patterns that rule out decoding decimals from floats; empty if that is never possible."""
        leaves = list(leaf_types(self._type))
        if self.is_bare:
            leaves = [(_MEMBER, type_) for _, type_ in leaves]
        names: dict[pa.DataType, set[str]] = {}
        for name, type_ in leaves:
            if not pa.types.is_decimal128(type_):
                continue
            if not (is_short(type_) and name.isascii() and name.isidentifier()):
                return ()
            names.setdefault(type_, set()).add(name)
        # One pattern for each type: with one for each name, the time is quadratic in the names.
        long = (
            rf"{member_pattern(names_of_type)}\s*:\s*{long_number_pattern(type_)}"
            for type_, names_of_type in names.items()
        )
        return (_ESCAPE, *long)

    @cached_property
    def _odd_floats(self) -> str:
        """The pattern for quoted NaN and infinity; empty if no name is used by floats only."""
        leaves = list(leaf_types(self._type))
        if self.is_bare:
            leaves = [(_MEMBER, type_) for _, type_ in leaves]
        floats = {name for name, type_ in leaves if pa.types.is_floating(type_)}
        names = floats - {name for name, type_ in leaves if not pa.types.is_floating(type_)}
        names.discard(_ELEMENT)
        return rf'({member_pattern(names)}\s*:\s*)"({_ODD_FLOAT[1:-1]})"' if names else ""

    @cached_property
    def _no_integer(self) -> str:
        """The pattern for integer members with a number that is not, or may not be, a BIGINT."""
        names = {name for name, type_ in leaf_types(self._type) if pa.types.is_integer(type_)}
        before = f'"{_MEMBER}"' if self.is_bare else member_pattern(names)
        return rf"{before}\s*:\s*-?[0-9]*(?:[0-9][.eE]|[0-9]{{19}})"

    def _decode_block(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        texts, is_text = as_texts(payloads)
        bad = {int(row): NOT_UTF8 for row in np.flatnonzero(~is_text)}
        rows, parsed, is_sure = self._read(texts, np.flatnonzero(is_text))
        if is_sure.all() and len(rows) == len(texts):
            return parsed, bad
        row_indices = np.full(len(texts), -1, dtype=np.int64)
        row_indices[rows[is_sure]] = np.flatnonzero(is_sure)
        alone: list[int] = []
        values: list[dict[str, Any]] = []
        pieces = [parsed]
        for row in np.flatnonzero(is_text & (row_indices < 0)).tolist():
            try:
                values.append(read_exactly(texts[row].as_py(), self.fields, is_bare=self.is_bare))
                alone.append(row)
            except Undecodable as error:
                bad[row] = str(error)
            except TooDeep as error:
                # It may be here for its neighbours: what Arrow is sure of stays good.
                _, found_alone, is_sure_alone = self._read(texts, np.array([row]))
                if is_sure_alone.any():
                    row_indices[row] = sum(map(len, pieces))
                    pieces.append(found_alone)
                else:
                    bad[row] = str(error)
        is_unread = row_indices < 0
        if len(pieces) == 1 and not alone and len(parsed) == len(texts):
            # In its place each; what is null stays, which spares a copy.
            is_null = parsed.null_count == is_unread.sum()
            return parsed if is_null else pc.if_else(pa.array(is_unread), None, parsed), bad
        row_indices[alone] = sum(map(len, pieces)) + np.arange(len(alone))
        pieces.append(pa.array(values, built_type(self._type)).cast(self._type))
        return pa.concat_arrays(pieces).take(pa.array(row_indices, mask=row_indices < 0)), bad

    def _read(self, texts: pa.Array, rows: np.ndarray) -> tuple[np.ndarray, pa.Array, np.ndarray]:
        """Decode rows with Arrow; return the attempted rows, their values, and a certainty mask."""
        if self._quoted is None:
            return rows[:0], pa.nulls(0, self._type), np.zeros(0, dtype=np.bool_)
        taken = _taken(texts, rows)
        is_one = self._is_whole(taken)
        if not is_one.all():
            rows, taken = rows[is_one], taken.filter(pa.array(is_one))
        lines = _lines(taken, "", "")
        if not self.is_bare and _is_anywhere(_TWO, lines):
            is_one = _is_one_object(taken, lines)
            if not is_one.all():
                rows, taken = rows[is_one], taken.filter(pa.array(is_one))
                lines = lines.filter(pa.array(is_one))
        as_floats = bool(self._quoted and self._long) and not any(
            _is_anywhere(pattern, lines) for pattern in self._long
        )
        if self._quoted and not as_floats:
            lines = pc.replace_substring_regex(lines, self._quoted, r'\1"\2"')
        if self._odd_floats and _is_anywhere(_ODD_FLOAT, lines):
            lines = pc.replace_substring_regex(lines, self._odd_floats, r"\1\2")
        parsed = self._read_lines(lines, _read_type(self._type, as_floats=as_floats))
        converted, doubts = _converted(parsed, self._type)
        self._doubt_nulls(converted, doubts)
        self._doubt_texts(taken, doubts)
        return rows, converted, doubts == _SURE

    def _is_whole(self, texts: pa.Array) -> np.ndarray:
        """Return which texts begin and end like one JSON value."""
        if self.is_bare:
            return _mask(pc.match_substring_regex(texts, _SCALAR))
        return _ends_as_object(texts)

    def _read_lines(self, lines: pa.Array, type_: pa.DataType) -> pa.Array:
        """Return each line's row; null if Arrow cannot read the line."""
        member = type_[0].type if self.is_bare else type_
        is_read, parsed = _read_lines(lines, member, self._no_integer)
        if self.is_bare:
            mask = pa.array(~is_read)
            parsed = pa.StructArray.from_arrays([parsed], fields=list(type_), mask=mask)
        return parsed

    def _doubt_nulls(self, found: pa.Array, doubts: np.ndarray) -> None:
        """Mark payloads as doubtful that are null or lack a NOT NULL member."""
        doubts[_mask(found.is_null())] = _DOUBTED
        for index, declared in enumerate(self.fields):
            if not declared.nullable:
                doubts[_mask(found.field(index).is_null())] = _DOUBTED

    def _doubt_texts(self, texts: pa.Array, doubts: np.ndarray) -> None:
        """Decide uncertain floats by their text: accepted or doubtful."""
        floats = np.flatnonzero(doubts == _SEEN_IN_TEXT)
        if len(floats):
            is_other = pc.match_substring_regex(_taken(texts, floats), f"{_TINY}|{_MISSPELT}")
            doubts[floats] = np.where(_mask(is_other), _DOUBTED, _SURE)


def _is_anywhere(pattern: str, lines: pa.Array) -> bool:
    """Return whether a pattern occurs in any line; the lines are searched as one text."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(ends), data])
    return bool(pc.match_substring_regex(text, pattern)[0].as_py())


def _taken(texts: pa.Array, rows: np.ndarray) -> pa.Array:
    return texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def _mask(found: pa.Array) -> np.ndarray:
    """Return a boolean array without nulls as a writable numpy mask."""
    return np.array(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def member_pattern(names: Iterable[str]) -> str:
    """Return a pattern for member names in their usual JSON spelling."""
    return f"(?:{'|'.join(re.escape(json.dumps(n, ensure_ascii=False)) for n in sorted(names))})"


def leaf_types(type_: pa.DataType, name: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield a type's leaf types, each with its member name."""
    if pa.types.is_struct(type_):
        for field in type_.fields:
            yield from leaf_types(field.type, field.name)
    elif pa.types.is_list(type_):
        yield from leaf_types(type_.value_type, _ELEMENT)
    else:
        yield name, type_


def _ends_as_object(texts: pa.Array) -> np.ndarray:
    """Return which texts begin and end like an object; most broken texts do not."""
    if not len(texts):
        return np.zeros(0, dtype=np.bool_)
    _, offsets_buffer, data = texts.buffers()
    chars = np.frombuffer(data or b"", np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    is_some = offsets[1:] > offsets[:-1]
    ends_as_object = np.zeros(len(texts), dtype=np.bool_)
    ends_as_object[is_some] = (
        _MAY_BEGIN[chars[offsets[:-1][is_some]]] & _MAY_END[chars[offsets[1:][is_some] - 1]]
    )
    return ends_as_object


def _is_one_object(texts: pa.Array, lines: pa.Array) -> np.ndarray:
    """Return which texts are one object, if they are JSON and begin and end like an object."""
    is_one = np.ones(len(texts), dtype=np.bool_)
    nested = np.flatnonzero(_mask(pc.match_substring_regex(lines, _TWO)))
    if len(nested):
        is_one[nested] = ~_mask(pc.match_substring_regex(_taken(lines, nested), _TWO_VALUES))
        nested = nested[is_one[nested]]
        lines = _lines(_taken(texts, nested), "[", "]")
        _, lists = _read_lines(lines, pa.list_(pa.struct([])), None)
        is_single = pc.equal(pc.list_value_length(lists), 1)
        is_one[nested] = _mask(pc.fill_null(is_single, False))
    return is_one


def _lines(texts: pa.Array, before: str, after: str) -> pa.Array:
    """Wrap each text as one line for Arrow."""
    # Large: the longest payload that Arrow can hold gets longer here.
    head, tail, nothing = (
        pa.scalar(piece, pa.large_string())
        for piece in (f'{{"{_MEMBER}":{before}', f"{after}}}\n", "")
    )
    texts = _without_feeds(texts).cast(pa.large_string())
    return pc.binary_join_element_wise(head, texts, tail, nothing)


def _without_feeds(texts: pa.Array) -> pa.Array:
    """Replace line feeds and returns by tabs, so that only line ends contain line feeds.

    JSON treats both alike: blanks between values, illegal inside texts.
    """
    if not len(texts):
        return texts
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    chars = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    if chars.min(initial=_SPACE) == _SPACE:
        return texts
    chars = np.where((chars == _FEED) | (chars == _RETURN), np.uint8(_TAB), chars)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(offsets - offsets[0]), pa.py_buffer(chars)
    )


def _read_lines(
    lines: pa.Array, type_: pa.DataType, no_integer: str | None
) -> tuple[np.ndarray, pa.Array]:
    """Return a mask for lines that Arrow can read, and each line's value; null for other lines.

    Notes
    -----
    After a bad line the next window is twice the distance to it, because an attempt costs as much as
    its input, up to one block. Lines from failed blocks are read again at the end, in one attempt.
    """
    is_read = np.zeros(len(lines), dtype=np.bool_)
    is_lost = np.zeros(len(lines), dtype=np.bool_)
    unread = pa.nulls(1 + _NEAR, type_)
    pieces: list[pa.Array] = [unread[:0]]
    gaps: dict[int, slice] = {}
    at, window, is_all_named = 0, len(lines), True
    while at < len(lines):
        attempt = _attempt(lines.slice(at, window), type_)
        lost = slice(at + attempt.read_count, at + attempt.lost_until)
        is_read[at : lost.start], is_lost[lost] = True, True
        pieces += attempt.values
        gaps[len(pieces)] = lost
        pieces.append(unread[:0])
        if attempt.is_stopped:
            window = max(_WINDOW, 2 * attempt.lost_until)
            at = min(lost.stop + 1 + (_NEAR if attempt.lost_until < _NEAR else 0), len(lines))
            pieces.append(unread[: at - lost.stop])
        else:
            # Most that it does not name are no BIGINT, for which all that is lost is searched.
            is_all_named &= lost.start == lost.stop
            at, window = lost.stop, 16 * window
    if is_lost.any():
        failed_lines = lines.filter(pa.array(is_lost))
        parsed, again = _read_again(failed_lines, type_, None if is_all_named else no_integer)
        if is_all_named and not parsed.all():
            parsed, again = _read_again(failed_lines, type_, no_integer)
        is_read[is_lost] = parsed
        ends = np.append(0, np.cumsum(is_lost))
        for line, lost in gaps.items():
            pieces[line] = again[ends[lost.start] : ends[lost.stop]]
    return is_read, pa.concat_arrays(pieces)


def _read_again(
    lines: pa.Array, type_: pa.DataType, no_integer: str | None
) -> tuple[np.ndarray, pa.Array]:
    """Read lines from failed blocks in one attempt; if a line fails, none counts as read."""
    is_plain = np.ones(len(lines), dtype=np.bool_)
    if no_integer is not None:
        is_plain &= ~_mask(pc.match_substring_regex(lines, no_integer))
    attempt = _attempt(lines.filter(pa.array(is_plain)), type_)
    if attempt.read_count < is_plain.sum():
        return np.zeros(len(lines), dtype=np.bool_), pa.nulls(len(lines), type_)
    values = pa.concat_arrays([pa.nulls(0, type_), *attempt.values])
    if is_plain.all():
        return is_plain, values
    return is_plain, values.take(pa.array(np.cumsum(is_plain) - 1, mask=~is_plain))


def _attempt(lines: pa.Array, type_: pa.DataType) -> _Attempt:
    """Read lines in blocks, up to the first failed block."""
    if not len(lines):
        return _Attempt([], 0, 0, is_stopped=False)
    _, offsets_buffer, data = lines.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[lines.offset :][: len(lines) + 1]
    start, ends = int(offsets[0]), offsets[1:] - offsets[0]
    # Each block has to end a line, or Arrow refuses it.
    block_bytes = max(_BLOCK_BYTES, int(np.diff(offsets).max()))
    values: list[pa.Array] = []
    named: re.Match[str] | None = None
    try:
        reader = pyarrow.json.open_json(
            pa.BufferReader(data.slice(start, int(ends[-1]))),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=block_bytes),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([(_MEMBER, type_)]), unexpected_field_behavior="ignore"
            ),
        )
        for batch in reader:
            values.append(batch.column(_MEMBER))  # noqa: PERF401  # Kept when the next one fails.
    except pa.ArrowInvalid as error:
        named = re.search(r" in row (\d+)\Z", str(error))
    # The lines that end in each block, as its documents must be.
    blocks = np.searchsorted(ends, block_bytes * np.arange(len(values) + 2), side="right")
    if [len(piece) for piece in values] != np.diff(blocks)[:-1].tolist():
        return _Attempt([], 0, len(lines), is_stopped=False)
    read_count, failed_until = int(blocks[-2]), int(blocks[-1])
    if named and read_count + int(named[1]) < failed_until:
        return _Attempt(values, read_count, read_count + int(named[1]), is_stopped=True)
    return _Attempt(values, read_count, failed_until, is_stopped=False)


def _read_type(type_: pa.DataType, *, as_floats: bool) -> pa.DataType:
    """Return the type for Arrow to read; `_converted` makes the declared type from it."""
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
    """Convert Arrow's array to the declared type; also return the confidence per value."""
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
        converted = convert(array, type_, Rounding.HALF_UP)
        doubts[_mask(pc.fill_null(pc.is_inf(converted), False))] = _DOUBTED
        is_odd = pc.or_(pc.is_nan(converted), pc.equal(converted, 0.0))
        doubts[_mask(pc.fill_null(is_odd, False))] = _SEEN_IN_TEXT
        return converted, doubts
    if pa.types.is_decimal128(type_) and pa.types.is_floating(array.type):
        converted, bad = decimals_of_floats(array, type_)
    elif pa.types.is_string(type_) or pa.types.is_boolean(type_):
        return array, doubts
    else:
        converted, bad = try_convert(array, type_)
    doubts[bad] = _DOUBTED
    return converted, doubts


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
