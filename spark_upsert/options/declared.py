"""An option is declared once, at the field that holds it: name, type, meaning, life, default.

The parser, the known names, what reads hand on to their inputs, the refusals of what a batch or a
stream cannot use, and docs/options.md follow from the declaration::

    splits: int | None = Option("splits", at_least(1), FREE).held("Number of read tasks.")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from inspect import get_annotations
from typing import Any, Generic, TypeVar

from spark_upsert.options.lives import Change, Life
from spark_upsert.options.parse import Options, choice

T = TypeVar("T")
_Member = TypeVar("_Member", bound=Enum)

_ONE, _TOGETHER, _PART = "option", "options", "part"
"""Keys that the metadata of a field may have."""


NO_NAMES: tuple[str, ...] = ()
"""The default of an option that names columns."""


class Only(Enum):
    """The only kind of read or write that an option is for."""

    STREAM = "streams"
    BATCH = "batches"


@dataclass(frozen=True)
class Option(Generic[T]):
    """All that is known of an option.

    Parameters
    ----------
    name : str
        As the reference page has it.
    read : callable
        Reads it: of the given options and its name the value, None if it is absent. Raises
        `OptionError`.
    life : Life
        What a change of it between two lives of a query means.
    default : optional
        What holds where it is absent.
    required : bool
        Whether `read` raises where it is absent.
    is_of_whole : bool
        Whether it is of the whole read or write, and no input or table is told it by itself.
    only : Only, optional
        What refuses it otherwise.
    excludes : tuple of str
        Options that cannot be given beside it. An input or table that is told one of them by
        itself is not told the other by its query.
    """

    name: str
    read: Callable[[Options, str], T | None]
    life: Life
    default: T | None = None
    required: bool = False
    is_of_whole: bool = False
    only: Only | None = None
    excludes: tuple[str, ...] = ()
    meaning: str = ""

    def means(self, meaning: str) -> Option[T]:
        """Return it with its meaning."""
        return replace(self, meaning=meaning)

    def held(self, meaning: str) -> T:
        """Return the field of a dataclass that holds it; one without a default may be None."""
        default: Any = MISSING if self.required else self.default
        found: T = field(default=default, metadata={_ONE: self.means(meaning)})
        return found


def held_together(*options: Option[Any], default: Any = MISSING, repr: bool = True) -> Any:
    """Return the field that holds what its class makes of options; `values` leaves it out.

    Without a default it is an empty mapping.
    """
    how: dict[str, Any] = {"default_factory": dict} if default is MISSING else {"default": default}
    return field(**how, repr=repr, metadata={_TOGETHER: options})


def part(cls: type[T]) -> T:
    """Return the field that holds a class with options of its own."""
    return field(default_factory=cls, metadata={_PART: cls})


def declared(*classes: Any) -> dict[str, Option[Any]]:
    """Return the options that classes declare, by name, in the order of their fields."""
    return {option.name: option for cls in classes for option in _options_of(cls)}


def _options_of(cls: Any) -> Iterator[Option[Any]]:
    own = get_annotations(cls)  # What is inherited, another class declares.
    for each in fields(cls):
        if each.name not in own:
            continue
        if _ONE in each.metadata:
            yield each.metadata[_ONE]
        elif _PART in each.metadata:
            yield from _options_of(each.metadata[_PART])
        else:
            yield from each.metadata.get(_TOGETHER, ())


def _single(cls: Any) -> Iterator[tuple[str, Option[Any], object]]:
    """Yield the fields that each hold one option: their names, options and defaults."""
    for each in fields(cls):
        if _ONE in each.metadata:
            yield each.name, each.metadata[_ONE], each.default


def values(cls: Any, options: Options) -> dict[str, Any]:
    """Return the given values of the fields that each hold one option, by the fields' names.

    Raises
    ------
    OptionError
        One is malformed, or excluded by another one.
    """
    held = list(_single(cls))
    for _, option, _ in held:
        for other in option.excludes:
            options.refuse_together(option.name, other)
    read = ((name, option.read(options, option.name)) for name, option, _ in held)
    return {name: value for name, value in read if value is not None}


def given_only(held: Any, only: Only) -> list[str]:
    """Return the options that are for something alone, and whose values in a class are said."""
    return [
        option.name
        for name, option, default in _single(type(held))
        if option.only is only and getattr(held, name) != default
    ]


def counted(held: Any) -> dict[str, Any]:
    """Return the options that decide how many rows an epoch has, with their values in a class.

    An exact order refuses another value of them (`Life.exact`).
    """
    return {
        option.name: getattr(held, name)
        for name, option, _ in _single(type(held))
        if option.life.exact is Change.REFUSED
    }


def names_of_whole(options: Mapping[str, Option[Any]]) -> tuple[str, ...]:
    """Return the names of those that no input or table is told by itself."""
    return tuple(name for name, option in options.items() if option.is_of_whole)


def exclusive(options: Mapping[str, Option[Any]]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of which an input or table is told one option alone by itself."""
    return tuple(
        (name, *option.excludes)
        for name, option in options.items()
        if option.excludes and not option.is_of_whole
    )


def flag(options: Options, name: str) -> bool | None:
    """Read a truth value."""
    return None if options.text(name) is None else options.flag(name)


def at_least(least: int) -> Callable[[Options, str], int | None]:
    """Return what reads a whole number of at least some."""
    return lambda options, name: options.number(name, least=least)


def member_of(members: type[_Member]) -> Callable[[Options, str], _Member | None]:
    """Return what reads the member of an enumeration that a text names."""
    return lambda options, name: choice(options, name, members)
