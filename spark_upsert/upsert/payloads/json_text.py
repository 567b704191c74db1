"""JSON payloads, decoded by Arrow's reader many at once.

Each payload becomes a line ``{"v":<payload>}``, and a block of lines is read with a fixed
schema. Three checks make the answer exact, payload by payload:

1. The payload is UTF-8: Arrow checks that only in what it keeps.
2. As many documents come out as lines went in. No document spans two lines: a line ends with
   ``}`` and a raw line feed, which is illegal inside a text, and behind which a value, not a
   comma, would have to follow. So each line holds at least one, and exactly one if the
   numbers agree.
3. A payload with a comma at its top level (``{},"w":{}``) would be read as two members. Those
   that could be are read again as ``{"v":[<payload>]}``, where this is a syntax error.

What is declared must be there as declared: a number is no text, ``1.0`` is no BIGINT, and a
number that does not fit is an error, not a rounded one. Missing members are null, members that
are not declared are skipped. JSON's own ``null`` in place of an object is not a row, and not a
delete: only an absent payload is.

Rejected: ``json.loads`` per row (several times slower, before a column is made of it), and
Spark's ``from_json`` (turns what it cannot read into nulls, so that an undecodable row is a
row).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_upsert.errors import SchemaError
from spark_upsert.upsert.payloads.decoder import Payloads, Undecodable, decode_blocks
from spark_upsert.upsert.payloads.raw import as_text

_MEMBER = "v"

_SUSPICIOUS = r'\}\s*,\s*"'
"""Where a payload may end and a second member begin; most nested payloads match, too."""


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
        return decode_blocks(self.fields, payloads, self._attempt)

    @cached_property
    def _parsed(self) -> pa.DataType:
        """The types that Arrow reads, from which `_converted` makes those declared."""
        return pa.struct([pa.field(f.name, _parsed_type(f.type)) for f in self.fields])

    def _attempt(self, payloads: pa.Array) -> pa.Array:
        texts = as_text(payloads)
        if self.is_bare:
            [column] = self._parsed
            lists = _read(texts, pa.list_(column.type), brackets=True, strict=True)
            if not _is_one_each(lists):
                raise Undecodable("not one JSON value")
            parsed = pa.StructArray.from_arrays([lists.flatten()], fields=[column])
        else:
            parsed = _read(texts, self._parsed)
            if parsed.null_count:
                raise Undecodable("expected a JSON object, found null")
            suspects = texts.filter(pc.match_substring_regex(texts, _SUSPICIOUS))
            if len(suspects):
                _require_one_each(suspects)
        self._require_present(parsed)
        try:
            columns = [_converted(parsed.field(i), f.type) for i, f in enumerate(self.fields)]
        except pa.ArrowInvalid as error:
            raise Undecodable(f"not of the declared type: {error}") from error
        return pa.StructArray.from_arrays(columns, fields=list(self.fields))

    def _require_present(self, parsed: pa.Array) -> None:
        for index, field in enumerate(self.fields):
            if not field.nullable and parsed.field(index).null_count:
                raise Undecodable(f"'{field.name}' is missing or null, and declared NOT NULL")


def _read(
    texts: pa.Array, type_: pa.DataType, *, brackets: bool = False, strict: bool = False
) -> pa.Array:
    """Read one value per text; all or nothing."""
    before, after = ("[", "]") if brackets else ("", "")
    pieces = (f'{{"{_MEMBER}":{before}', texts, f"{after}}}\n", "")
    # Large: the longest payload that Arrow can hold gets longer here.
    lines = pc.binary_join_element_wise(
        *(
            pa.scalar(piece, pa.large_string())
            if isinstance(piece, str)
            else piece.cast(pa.large_string())
            for piece in pieces
        )
    )
    buffer = lines.buffers()[2]
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([(_MEMBER, type_)]),
                unexpected_field_behavior="error" if strict else "ignore",
            ),
        )
    except pa.ArrowInvalid as error:
        raise Undecodable(_explained(str(error))) from error
    if table.num_rows != len(texts):
        raise Undecodable("more than one JSON value")
    found: pa.Array = table.column(_MEMBER).combine_chunks()
    return found


def _require_one_each(texts: pa.Array) -> None:
    """Raise if a text that was read as a member is not one object."""
    try:
        lists = _read(texts, pa.list_(pa.struct([])), brackets=True)
    except Undecodable as error:
        raise Undecodable("more than one JSON value") from error
    if not _is_one_each(lists):
        raise Undecodable("more than one JSON value")


def _is_one_each(lists: pa.Array) -> bool:
    return bool(pc.all(pc.equal(pc.list_value_length(lists), 1), min_count=0).as_py())


def _explained(message: str) -> str:
    """Return Arrow's message without its row number, in terms of what was declared."""
    text = re.sub(r" in row \d+$", "", message)
    match = re.fullmatch(
        rf"JSON parse error: Column\(/{_MEMBER}/?(.*)\) changed from (\w+) to (\w+)", text
    )
    if match is None:
        return text
    where = ".".join(name for name in match[1].split("/") if name not in ("", "[]"))
    if not where:
        return f"expected a JSON {match[2]}, found {match[3]}"
    return f"'{where}' is declared {match[2]}, found {match[3]}"


def _parsed_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_float32(type_):
        return pa.float64()  # As a float, Arrow makes 1e99 infinite.
    if pa.types.is_date32(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _parsed_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _parsed_type(f.type)) for f in type_.fields])
    return type_


def _converted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array as Arrow read it in the declared type."""
    if pa.types.is_list(type_):
        values = _converted(array.values, type_.value_type)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask)
    if pa.types.is_struct(type_):
        columns = [_converted(array.field(i), f.type) for i, f in enumerate(type_.fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(type_.fields), mask=mask)
    if not pa.types.is_float32(type_):
        return array.cast(type_)
    narrow = array.cast(type_)
    if pc.any(pc.and_not(pc.is_inf(narrow), pc.is_inf(array)), min_count=0).as_py():
        raise pa.ArrowInvalid("a number is too large for FLOAT")
    return narrow


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
