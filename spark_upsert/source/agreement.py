"""The columns of several inputs must agree: the same names and types, in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from spark_upsert.errors import SchemaError, setting
from spark_upsert.options.inputs import listed_twice


@dataclass(frozen=True, slots=True)
class Described:
    """What an input is."""

    columns: pa.Schema
    """Those that the read has of it."""
    identity: str
    """The same for what is the same, under whatever name."""


def agreed(inputs: Mapping[str, Described]) -> pa.Schema:
    """Return the columns of all inputs; one that may be null in any may be null.

    Parameters
    ----------
    inputs : mapping of str to Described
        In their declared order: the first says what is expected.

    Raises
    ------
    SchemaError
        They differ: it says in which column, and in which input.
    OptionError
        Two inputs are the same.
    """
    seen: dict[str, str] = {}
    for name, each in inputs.items():
        other = seen.setdefault(each.identity, name)
        if other != name:
            raise listed_twice(other, name, "under two names")
    first, *others = inputs
    expected = inputs[first].columns
    for name in others:
        _require_same(first, expected, name, inputs[name].columns)
    return pa.schema([_loosest(inputs, field) for field in expected])


def _require_same(first: str, expected: pa.Schema, name: str, found: pa.Schema) -> None:
    for field in expected:
        if field.name not in found.names:
            raise _disagreement(
                f"the input '{name}' lacks the column '{field.name}', which '{first}' has.",
                name,
                field.name,
            )
        type_ = found.field(field.name).type
        if type_ != field.type:
            raise _disagreement(
                f"the column '{field.name}' is {type_} in the input '{name}', and {field.type} in "
                f"'{first}'.",
                name,
                field.name,
            )
    for field in found:
        if field.name not in expected.names:
            raise _disagreement(
                f"the input '{name}' has a column '{field.name}', which '{first}' lacks.",
                name,
                field.name,
            )
    if found.names != expected.names:
        raise _disagreement(
            f"the columns of the input '{name}' are in another order ({', '.join(found.names)}) "
            f"than those of '{first}' ({', '.join(expected.names)}).",
            name,
            next(
                one for one, other in zip(found.names, expected.names, strict=True) if one != other
            ),
        )


def _disagreement(message: str, name: str, column: str) -> SchemaError:
    return SchemaError(
        message,
        hint=f"choose columns that all inputs have alike by {setting('columns')}, in one order.",
        input=name,
        column=column,
    )


def _loosest(inputs: Mapping[str, Described], field: pa.Field) -> pa.Field:
    may_be_null = any(each.columns.field(field.name).nullable for each in inputs.values())
    return field.with_nullable(may_be_null).remove_metadata()
