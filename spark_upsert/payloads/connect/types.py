"""Types of a table's columns for the types that a schema of Kafka Connect declares.

The way back from `connect.wire_of`, which reads a declared type from what the schema says: here
nothing is declared, and the type is the one that holds every value that the schema allows. It is
what `connect.natural_wire` gives for Avro, so that a topic makes the same table in either form.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from spark_upsert.errors import SchemaError, setting
from spark_upsert.payloads.connect.logical import (
    DATES,
    DECIMAL,
    TIME_UNITS,
    ZONED,
    Said,
    parameter_number,
)
from spark_upsert.payloads.decoder import RefusedField, column_at

_PLAIN: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

_DIGITS_MAX = 38


def natural_type(said: Said, where: str) -> tuple[pa.DataType, tuple[RefusedField, ...]]:
    """Return the type of the values that a schema describes, and the members that it lacks.

    Parameters
    ----------
    said : Said
        Within its budget (`payloads.budgets`).
    where : str
        The way to the value, for errors.

    Returns
    -------
    tuple of (pyarrow.DataType, tuple of RefusedField)
        A member of an object that no column can hold is not in the type.

    Raises
    ------
    SchemaError
        No column can hold them.
    """
    if said.type == "struct":
        return _object(said, where)
    if said.type == "array" and said.items is not None:
        item, refused = natural_type(said.items, where)
        return pa.list_(pa.field("element", item)), refused
    return _plain(said, where), ()


def _object(said: Said, where: str) -> tuple[pa.DataType, tuple[RefusedField, ...]]:
    parts: dict[str, pa.DataType] = {}
    refused: list[RefusedField] = []
    for name, part in said.fields.items():
        try:
            parts[name], inside = natural_type(part, f"{where}.{name}")
        except SchemaError as error:
            refused.append(RefusedField((name,), error))
        else:
            refused += (each.within(name) for each in inside)
    if refused and not parts:
        raise refused[0].error
    if not parts:
        raise _unsupported(where, "is an object without members")
    return pa.struct(parts), tuple(refused)


def _plain(said: Said, where: str) -> pa.DataType:
    if said.name == DECIMAL:
        return _decimal(said, where)
    if said.type in ("int32", "int64") and said.name in DATES:
        return pa.date32()
    if said.type == "int64" and said.name in TIME_UNITS:
        return pa.timestamp("us")
    if said.type == "string" and said.name == ZONED:
        return pa.timestamp("us", tz="UTC")
    if said.type not in _PLAIN:
        raise _unsupported(where, f"is of the type '{said.type[:40]}'")
    return _PLAIN[said.type]


def _decimal(said: Said, where: str) -> pa.DataType:
    """Return the type of decimals; a writer that does not say how many digits has any number.

    With a negative scale, whole numbers are rounded to a power of ten: their zeros are digits.
    """
    texts = said.parameters
    scale = parameter_number(texts.get("scale", ""))
    precision = parameter_number(texts.get("connect.decimal.precision", str(_DIGITS_MAX)))
    if scale is None or precision is None or precision < 1:
        raise _unsupported(where, "is a decimal of more than 38 digits, or of no scale")
    if scale < 0 and "connect.decimal.precision" in texts:
        precision -= scale
    if precision > _DIGITS_MAX:
        raise _unsupported(where, "is a decimal of more than 38 digits, or of no scale")
    if scale > precision:
        raise _unsupported(where, f"is a decimal of {precision} digits, {scale} behind the point")
    return pa.decimal128(precision, max(scale, 0))


def _unsupported(where: str, what: str) -> SchemaError:
    side = "key" if where.partition(".")[0] == "key" else "value"
    return SchemaError(
        f"the messages' schema at '{where}' {what}, which no column can hold.",
        hint=f"leave it out of the table by {setting('exceptColumnList', column_at(where))}, or "
        "leave that field out where the messages are written, or declare the columns to be read, "
        f"as by {setting(f'{side}Schema', 'id BIGINT, name STRING')}.",
        column=where,
    )
