"""Removal of options added by Spark (`drop_spark_options`), and errors in words of Spark's users.

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


def drop_spark_options(texts_by_name: Mapping[str, str]) -> dict[str, str]:
    """Return the options passed by the user, without those added by Spark.

    Removes only known names in known forms, so that a typo stays an error: ``queryname``, the
    options from ``CREATE TABLE`` and ``createTable``, and ``paths``.

    Raises `OptionError` if several paths are passed.
    """
    by_lower = {name.lower(): value for name, value in texts_by_name.items()}
    if "paths" in by_lower:
        raise _several_paths(by_lower["paths"])
    return {
        name: value
        for name, value in texts_by_name.items()
        if not _is_sparks(name.lower(), by_lower)
    }


def _is_sparks(name: str, texts_by_name: Mapping[str, str]) -> bool:
    if name.startswith(_REPEATED):
        # Not always as the same text: the path becomes a URI in one of the two.
        return name.removeprefix(_REPEATED) in texts_by_name
    return name in _NAMES


def _several_paths(text: str) -> OptionError:
    try:
        paths = json.loads(text)
    except ValueError:  # An option with this name, set by the user.
        paths = [text]
    return OptionError(
        f"expected the path of one table, and found {len(paths)} paths: {', '.join(paths)}.",
        hint='name them as inputs of one read: .option("inputs", "a,b"), .option("input.a.path", '
        '...), .option("input.b.path", ...); or load each by itself, and join them with union.',
        option="paths",
    )


def missing_path() -> OptionError:
    """Return the error for a missing path; its hint shows working alternatives."""
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
"""Set only in the environment of Spark's Python processes."""

_HIDES_FRAMES = "SPARK_HIDE_TRACEBACK"
"""Read by `pyspark.util.handle_worker_exception` when a worker fails."""


@contextmanager
def options_in_hints() -> Iterator[None]:
    """Let errors name settings as options, and hide their traceback in Spark.

    Spark's worker hides frames if an environment variable is set; it is set only for an
    `UpsertFlowError`.
    """
    try:
        yield
    except UpsertFlowError as error:
        error.name_settings(as_option)
        if _WORKER in os.environ:
            os.environ[_HIDES_FRAMES] = "1"
        raise


def name_options_in_errors(function: F) -> F:
    """Wrap a function or generator function in `options_in_hints`."""
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
    """Wrap each public or dunder method in `name_options_in_errors`."""
    for name, method in list(vars(cls).items()):
        is_private = name.startswith("_") and not name.startswith("__")
        if inspect.isfunction(method) and not is_private:
            setattr(cls, name, name_options_in_errors(method))
    return cls
