"""Column names from users: exact, or equal except for case; one by one or in a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from spark_upsert.errors import OptionError, SchemaError


def find_column(name: str, available: Sequence[str], *, role: str) -> str:
    """Resolve a column name: exact, or the only match without regard to case."""
    if name in available:
        return name
    alike = [column for column in available if column.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    raise SchemaError.missing_column(name, available, role=role)


def names_of(names: object, argument: str) -> tuple[str, ...]:
    """Return the names in a public function's argument, in their order.

    A text is one name: Python would take it for a sequence of letters. Sets are refused, because
    the order of keys and columns matters.

    >>> names_of("id", "keys"), names_of(["id", "day"], "keys")
    (('id',), ('id', 'day'))
    """
    if isinstance(names, str):
        return (str(names),)
    if isinstance(names, Iterable) and not isinstance(names, bytes | Mapping | set | frozenset):
        listed = tuple(names)
        if all(isinstance(item, str) for item in listed):
            return tuple(map(str, listed))
    kind = type(names).__name__
    raise OptionError(
        f"'{argument}' must be a name or a list of names, found {kind} {names!r:.80}.",
        hint=f"give '{argument}' as a name, or as a list of names in their order.",
        option=argument,
    )


def find_columns(names: Iterable[str], available: Sequence[str], *, role: str) -> tuple[str, ...]:
    """Resolve several column names like `find_column`, in one pass over the columns."""
    exact = set(available)
    alike: dict[str, list[str]] = {}
    columns = []
    for name in names:
        if name not in exact:
            if not alike:
                for column in available:
                    alike.setdefault(column.lower(), []).append(column)
            others = alike.get(name.lower(), [])
            if len(others) != 1:
                raise SchemaError.missing_column(name, available, role=role)
            name = others[0]
        columns.append(name)
    return tuple(columns)


def find_in_schema(name: str, schema: pa.Schema, *, role: str) -> str:
    """Resolve a name in a schema like `find_column`; constant time for an exact name."""
    return name if has_column(schema, name) else find_column(name, schema.names, role=role)


def has_column(schema: pa.Schema, name: str) -> bool:
    """Return whether a schema has a column, in constant time.

    ``name in schema.names`` lists all names first, so a loop over columns takes quadratic time.
    """
    return bool(schema.get_field_index(name) >= 0)


def find_repeated(names: Iterable[str], *, is_exact: bool = False) -> tuple[str, str] | None:
    """Return the first two equal names, or None; case matters only with ``is_exact``."""
    first_spellings: dict[str, str] = {}
    for name in names:
        key = name if is_exact else name.lower()
        if key in first_spellings:
            return first_spellings[key], name
        first_spellings[key] = name
    return None


def refuse_repeated(names: Iterable[str], *, is_exact: bool = False) -> None:
    """Raise `SchemaError` if two columns have equal names (`find_repeated`)."""
    repeated = find_repeated(names, is_exact=is_exact)
    if repeated is not None:
        one, second = repeated
        raise SchemaError(
            f"column names must differ, also without regard to case: found '{one}' and '{second}'.",
            hint="rename or drop the others.",
            column=second,
        )


def split_names(option: str, text: str) -> tuple[str, ...]:
    """Split comma-separated column names; backticks quote a name that contains commas."""
    names, current, quoted = [], "", False
    for char in text:
        if char == "`":
            quoted = not quoted
        elif char == "," and not quoted:
            names.append(current.strip())
            current = ""
        else:
            current += char
    names.append(current.strip())
    if quoted or not all(names):
        raise OptionError.invalid(option, text, "comma-separated column names")
    return tuple(names)


def joined_names(names: Iterable[str]) -> str:
    """Join column names for `split_names`.

    >>> joined_names(["id", "a,b"])
    'id,`a,b`'
    """
    return ",".join(f"`{name}`" if "," in name or name != name.strip() else name for name in names)
