"""Options that Spark adds to its user's (`users_own`), and errors in the words of Spark's users.

A catalog table passes no option to a source, not even the path (docs/adr/0014).
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

    Removes only known names in known forms, so that a typo stays an error: ``queryname``, the
    options of ``CREATE TABLE`` and ``createTable``, and ``paths``.

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
    """Let errors from within name settings as options, and appear without a traceback in Spark.

    Spark's worker hides frames by a variable of its environment, which is set only when an error of
    ours leaves.
    """
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
