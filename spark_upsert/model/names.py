"""Names of columns that a user wrote: taken apart, and found, exactly or but for case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_upsert.errors import OptionError, SchemaError


def find_column(name: str, available: Sequence[str], *, role: str) -> str:
    """Return the column that ``name`` means: exactly, else the only one alike but for case."""
    if name in available:
        return name
    alike = [column for column in available if column.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    raise SchemaError.missing_column(name, available, role=role)


def split_names(option: str, text: str) -> tuple[str, ...]:
    """Return the column names in a text, separated by commas; backticks hold a name together.

    Raises
    ------
    OptionError
        A name is missing, or a backtick.
    """
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
    """Return column names as one text that `split_names` takes apart.

    >>> joined_names(["id", "a,b"])
    'id,`a,b`'
    """
    return ",".join(f"`{name}`" if "," in name or name != name.strip() else name for name in names)
