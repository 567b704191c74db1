"""At Spark's border, errors name settings as options.

The engine's errors name a setting by what it is (`errors.setting`), which plain Python gives as an
argument. An adapter marks each class and function that Spark calls; what is raised through it then
says ``.option("lateRows", "apply")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from spark_upsert.errors import UpsertFlowError, as_option

C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def options_in_hints() -> Iterator[None]:
    """Let errors from within name settings as options."""
    try:
        yield
    except UpsertFlowError as error:
        error.name_settings(as_option)
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
