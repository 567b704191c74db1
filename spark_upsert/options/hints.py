"""At Spark's border, errors name settings as options, and are read first.

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
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from spark_upsert.errors import UpsertFlowError, as_option

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
