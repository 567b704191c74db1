"""Options that Spark hands down beside those of its user, and where it keeps them back.

=====================================  =====================================================
name                                   where it comes from
=====================================  =====================================================
``queryname``                          ``writeStream.queryName``
``location``, ``provider``, ``owner``  ``CREATE TABLE`` without columns, with
``comment``, ``option.X``              every given ``X`` a second time
``external``                           ``spark.catalog.createTable``
``paths``                              ``load`` with several paths; no table has several
=====================================  =====================================================

A catalog table keeps its options to itself: ``SELECT``, ``INSERT``, ``saveAsTable`` and
``toTable`` hand none of them over, the path included. Reads find them with the columns, if the
table was made without columns of its own (`pyspark_upsertflow.catalog`).

Only these names, in these forms, are passed over, so that a typo stays an error.

At Spark's border, errors name settings as options, and are read first.

The engine's errors name a setting by what it is (`errors.setting`), which plain Python gives as an
argument. An adapter marks each class and function that Spark calls; what is raised through it then
says ``.option("lateRows", "apply")``.

Such an error says what is wrong and what to do; the places of our code that it came through say
nothing to its reader, and stood in front of it, thirty lines of them. Spark's worker leaves them
out where a variable of its environment says so, and ends behind an error: so the variable is set
when one of ours leaves. Whatever is no error of ours keeps them.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from spark_upsert.errors import OptionError, UpsertFlowError, as_option

_NAMES = frozenset({"queryname", "location", "provider", "owner", "comment", "external"})
_REPEATED = "option."


def users_own(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave.

    Raises `OptionError`: several paths are given.
    """
    by_lower = {name.lower(): value for name, value in given.items()}
    if "paths" in by_lower:
        raise _several_paths(by_lower["paths"])
    return {name: value for name, value in given.items() if not _is_sparks(name.lower(), by_lower)}


def _is_sparks(name: str, given: Mapping[str, str]) -> bool:
    if name.startswith(_REPEATED):
        # Not always as the same text: the path becomes a URI in one of the two.
        return name.removeprefix(_REPEATED) in given
    return name in _NAMES


def _several_paths(text: str) -> OptionError:
    try:
        paths = json.loads(text)
    except ValueError:  # An option of that name, given by hand.
        paths = [text]
    return OptionError(
        f"expected the path of one table, and found {len(paths)} paths: {', '.join(paths)}.",
        hint='name them as inputs of one read: .option("inputs", "a,b"), .option("input.a.path", '
        '...), .option("input.b.path", ...); or load each by itself, and join them with union.',
        option="paths",
    )


def missing_path() -> OptionError:
    """Return the error of a read or write without a path, which names what works."""
    return OptionError(
        "the option 'path' is required (where the table lies), but was not given. Spark hands none "
        "of a catalog table's options over, its location included.",
        hint='add .option("path", ...), and write with .save(path) and .start(path) instead of '
        "saveAsTable and toTable. In SQL: CREATE TABLE t USING upsertflow LOCATION '...', without "
        "columns, is read by its name; a write needs INSERT INTO t WITH (path='...'), or CREATE "
        "TEMPORARY VIEW v USING upsertflow OPTIONS (path '...').",
        option="path",
    )


C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])


_WORKER = "SPARK_REUSE_WORKER"
"""In the environment of Spark's Python processes alone."""

_HIDES_FRAMES = "SPARK_HIDE_TRACEBACK"
"""Read by `pyspark.util.handle_worker_exception`, with which such a process ends."""


@contextmanager
def options_in_hints() -> Iterator[None]:
    """Let errors from within name settings as options, and stand alone in what Spark shows."""
    try:
        yield
    except UpsertFlowError as error:
        error.name_settings(as_option)
        if _WORKER in os.environ:
            os.environ[_HIDES_FRAMES] = "1"
        raise


def spoken_to_spark(function: F) -> F:
    """Return a function, or one that makes a generator, whose errors name settings as options."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def iterate(*args: Any, **how: Any) -> Iterator[Any]:
            with options_in_hints():
                yield from function(*args, **how)

        return iterate  # type: ignore[return-value]

    @wraps(function)
    def call(*args: Any, **how: Any) -> Any:
        with options_in_hints():
            return function(*args, **how)

    return call  # type: ignore[return-value]


def called_by_spark(cls: C) -> C:
    """Mark a class: `spoken_to_spark` holds for each method that is not private."""
    for name, method in list(vars(cls).items()):
        is_private = name.startswith("_") and not name.startswith("__")
        if inspect.isfunction(method) and not is_private:
            setattr(cls, name, spoken_to_spark(method))
    return cls
