"""The columns of several inputs must agree: the same names and types, in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_upsert.errors import SchemaError, setting
from spark_upsert.model.names import find_columns, has_column
from spark_upsert.model.schema import CHANGELOG_FIELDS, widens
from spark_upsert.options.inputs import listed_twice

_CHANGE_COLUMNS = frozenset(field.name for field in CHANGELOG_FIELDS)


@dataclass(frozen=True, slots=True)
class Described:
    """The columns and the identity of an input."""

    columns: pa.Schema
    """The columns that the read takes from the input."""
    identity: str
    """An id that is equal for the same data under any name."""


def agreed(inputs: Mapping[str, Described]) -> pa.Schema:
    """Return the columns that all inputs have; one that may be null in any may be null.

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
    require_apart({name: each.identity for name, each in inputs.items()})
    first, *others = inputs
    expected = inputs[first].columns
    for name in others:
        _require_same(first, expected, name, inputs[name].columns)
    return pa.schema([_loosest(inputs, field) for field in expected])


def merged(inputs: Mapping[str, Described], names: Sequence[str] = ()) -> pa.Schema:
    """Return the columns of inputs that may lack some and have narrower types.

    Parameters
    ----------
    inputs : mapping of str to Described
        In their declared order, with all their columns.
    names : sequence of str
        The columns that are chosen, in their order; all if there are no names. Those of the
        changelog stay behind the others.

    Raises
    ------
    SchemaError
        No input has a column that is chosen, two differ in case alone, or of two types neither
        holds the values of the other.
    OptionError
        Two inputs are the same.
    """
    require_apart({name: each.identity for name, each in inputs.items()})
    wanted = _wanted(inputs, names)
    _require_distinct(wanted, inputs)
    fields: dict[str, pa.Field] = {}
    seen_in: dict[str, str] = {}
    for name, each in inputs.items():
        for field in each.columns:
            if field.name not in wanted:
                continue
            known = fields.setdefault(field.name, field)
            first = seen_in.setdefault(field.name, name)
            if widens(known.type, field.type):
                fields[field.name] = known.with_type(field.type)
            elif not widens(field.type, known.type):
                raise SchemaError(
                    f"the column '{field.name}' is {field.type} in the input '{name}', and "
                    f"{known.type} in '{first}': neither holds all values of the other.",
                    hint=f"leave it out by {setting('columns')}, or give one of them another name.",
                    input=name,
                    column=field.name,
                )
    return pa.schema([_loosest(inputs, fields[name]) for name in wanted])


def _wanted(inputs: Mapping[str, Described], names: Sequence[str]) -> list[str]:
    """Return the columns that any input has, or those that are chosen."""
    found = dict.fromkeys(name for each in inputs.values() for name in each.columns.names)
    own = [name for name in found if name not in _CHANGE_COLUMNS]
    of_changes = [name for name in found if name in _CHANGE_COLUMNS]
    if names:
        chosen = (name for name in names if name not in of_changes)
        own = list(find_columns(chosen, own, role="column"))
    return [*own, *of_changes]


def _require_distinct(names: Sequence[str], inputs: Mapping[str, Described]) -> None:
    """Refuse columns that differ in case alone: Spark could not tell them apart."""
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            first, second = (
                next(key for key, each in inputs.items() if has_column(each.columns, column))
                for column in (other, name)
            )
            raise SchemaError(
                f"the column '{other}' of the input '{first}' and '{name}' of '{second}' differ in "
                "case alone: they are two columns that Spark does not tell apart.",
                hint=f"leave one out by {setting('columns')}, or give it another name in its "
                "table.",
                input=second,
                column=name,
            )


def require_apart(identities: Mapping[str, str]) -> None:
    """Raise `OptionError` if two inputs are the same.

    Parameters
    ----------
    identities : mapping of str to str
        By the names of inputs (`Described.identity`).
    """
    seen: dict[str, str] = {}
    for name, identity in identities.items():
        other = seen.setdefault(identity, name)
        if other != name:
            raise listed_twice(other, name, "under two names")


def _require_same(first: str, expected: pa.Schema, name: str, found: pa.Schema) -> None:
    for field in expected:
        if not has_column(found, field.name):
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
        if not has_column(expected, field.name):
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
        hint=f"give {setting('mergeSchema', 'true')} for nulls where an input lacks a column, and "
        f"for the wider type; or choose what all have alike by {setting('columns')}.",
        input=name,
        column=column,
    )


def _loosest(inputs: Mapping[str, Described], field: pa.Field) -> pa.Field:
    may_be_null = any(
        not has_column(each.columns, field.name) or each.columns.field(field.name).nullable
        for each in inputs.values()
    )
    return field.with_nullable(may_be_null).remove_metadata()
