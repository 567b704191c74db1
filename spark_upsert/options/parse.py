"""How given options are read: names, texts, and the checks that reads and writes share.

Names, and the values of choices, are matched without case, ``-`` and ``_``, so that
``starting_version`` is ``startingVersion``. An unknown name is an error that says the nearest
one. Everything is parsed at once, on the driver, before anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from importlib import import_module
from typing import TypeVar

from spark_upsert.conversions.arguments import DURATION_MS_MAX
from spark_upsert.errors import OptionError, is_url, require_plain
from spark_upsert.model.durations import EXPECTED, try_parse_ms
from spark_upsert.model.names import split_names
from spark_upsert.options.handed_down import missing_path, users_own

STORAGE_PREFIX = "storage."
"""The beginning of the name of an option for the object store."""

COLUMN = "<column>"
"""Stands for a column in the name of an option that there is one of per column."""

TABLE_PREFIX = "table."
"""The beginning of the name of an option of some tables of a write."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


def fold(name: str) -> str:
    """Return the form in which option names are compared."""
    return name.lower().replace("-", "").replace("_", "")


def absolute_path(path: str, *, option: str = "path") -> str:
    """Return a path that means the same in every process; raise if it contains a secret."""
    require_plain(path, option=option)
    return path if is_url(path) else os.path.abspath(path)


def whole_number(text: str, *, bits: int = 63) -> int | None:
    """Return the whole number that a text is; None if it is none, or needs more bits than those.

    >>> whole_number("-7"), whole_number("9" * 5000), whole_number("²"), whole_number("1_0")
    (-7, None, None, None)
    """
    if _WHOLE.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number.bit_length() <= bits else None


class Options:
    """Given options, checked against the known ones."""

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        by_fold = {fold(name): name for name in known if COLUMN not in name}
        families = {fold(name.removesuffix(COLUMN)): name for name in known if COLUMN in name}
        self.storage: dict[str, str] = {}
        self._columns: dict[str, dict[str, str]] = {name: {} for name in families.values()}
        self._values: dict[str, str] = {}
        for name, value in users_own(given).items():
            if name.lower().startswith(STORAGE_PREFIX):
                self.storage[name[len(STORAGE_PREFIX) :].lower()] = value
                continue
            prefix, dot, column = name.partition(".")
            family = families.get(fold(prefix + dot))
            if family is not None and column:
                self._columns[family][column] = value
                continue
            own = by_fold.get(fold(name))
            if own is None:
                raise _unknown(name, known)
            if self._values.get(own, value) != value:
                raise OptionError(
                    # Without the values: one may be a password.
                    f"option '{own}' is given twice, with different values.",
                    hint="give it once; case, '-' and '_' do not tell options apart.",
                )
            self._values[own] = value

    def text(self, name: str) -> str | None:
        """Return an option's text, None if absent or empty."""
        return self._values.get(name, "").strip() or None

    def raw(self, name: str) -> str | None:
        """Return an option as it was given, blanks and all; None if absent."""
        return self._values.get(name)

    def by_column(self, name: str) -> Mapping[str, str]:
        """Return what an option of which there is one per column says of each column."""
        return self._columns[name]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError.invalid(name, value, "'true' or 'false'")
        return value.lower() == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number of at least ``least``."""
        value = self.text(name)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < least:
            raise OptionError.invalid(
                name, value, f"a whole number of at least {least} and below 2**63"
            )
        return number

    def duration_ms(self, name: str) -> int | None:
        """Return a duration in milliseconds, more than none."""
        value = self.text(name)
        if value is None:
            return None
        duration = try_parse_ms(value)
        # Longer ones would become records that no reader accepts.
        if not duration or duration > DURATION_MS_MAX:
            raise OptionError.invalid(name, value, f"{EXPECTED}, up to 8 030 years")
        return duration

    def names(self, name: str) -> tuple[str, ...]:
        """Return comma-separated names; one that holds a comma stands in backquotes."""
        value = self.text(name)
        return () if value is None else split_names(name, value)

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in milliseconds since 1970."""
        value = self.text(name)
        if value is None:
            return None
        if (number := whole_number(value)) is not None:
            return number
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            expected = "a time such as '2026-01-31T12:00:00Z', or milliseconds since 1970"
            raise OptionError.invalid(name, value, expected) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)

    def refuse_together(self, *names: str) -> None:
        """Raise if more than one of some options is given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise OptionError.conflict(given[0], given[1])

    def refuse(self, name: str, reason: str, *, hint: str) -> None:
        """Raise if an option is given where it means nothing."""
        if self.text(name) is not None:
            raise OptionError(f"option '{name}' {reason}.", hint=hint, option=name)

    def path(self, name: str = "path") -> str:
        """Return the table's path."""
        path = self.text(name)
        if path is None:
            raise missing_path()
        # A task may run in another folder than the driver: a relative path is the driver's.
        return absolute_path(path, option=name)


def _unknown(name: str, known: Collection[str]) -> OptionError:
    """Return the error of a name that is not ``known``; perhaps another scope knows it."""
    # By its name: all that declares options imports this module.
    scopes = import_module("spark_upsert.options.scopes").SCOPES
    elsewhere = {
        scope: own
        for scope, options in scopes.items()
        for own in options
        if fold(own) == fold(name)
    }
    if "routed" in elsewhere or name.lower().startswith(TABLE_PREFIX):
        return OptionError(
            f"option '{elsewhere.get('routed', name)}' belongs to writes into many tables, and "
            "'path' names no column.",
            hint="write columns in braces, as in '/lake/{topic}', or drop the option.",
            option=name,
        )
    for scope, side in (("writes", "writes"), ("reads", "reads"), ("inputs", "reads")):
        if scope in elsewhere:
            return OptionError(
                f"option '{elsewhere[scope]}' belongs to {side} only.",
                hint="drop it here.",
                option=name,
            )
    return OptionError.unknown(name, known)


_Member = TypeVar("_Member", bound=Enum)


def choice(options: Options, name: str, members: type[_Member]) -> _Member | None:
    """Return the member that an option names, None if absent."""
    value = options.text(name)
    return None if value is None else member(name, value, members)


def member(name: str, value: str, members: type[_Member]) -> _Member:
    """Return the member that a value means; raises `OptionError`."""
    return members(one_of(name, value, [member.value for member in members]))


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """Return the known value that a given one means, as names are compared (`fold`).

    Raises
    ------
    OptionError
        It means none of them.
    """
    by_fold = {fold(each): each for each in known}
    found = by_fold.get(fold(value.strip()))
    if found is None:
        raise OptionError.not_one_of(name, value, known)
    return found
