"""Errors of a plan that is made while Spark pickles a writer.

Spark's serializer wraps whatever is raised in it, but for errors of pickling itself, in one that
says "Could not serialize object". So an error of ours passes as one of these, too: under its own
name, with its fields, and an ``except OptionError`` still catches it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from spark_upsert.errors import UpsertFlowError


@contextmanager
def passing_pickle() -> Iterator[None]:
    """Let errors of ours from within pass Spark's serializer as they are."""
    try:
        yield
    except UpsertFlowError as error:
        raise _passing(error) from None


def _passing(error: UpsertFlowError) -> UpsertFlowError:
    rebuild, (cls, *told) = error.__reduce__()
    found = rebuild(_of_pickling(cls), *told)
    assert isinstance(found, UpsertFlowError)
    return found


@cache
def _of_pickling(cls: type[UpsertFlowError]) -> type[UpsertFlowError]:
    """Return a class of errors that are of pickling, too; pickled itself, one is what it was."""

    def reduced(self: UpsertFlowError) -> tuple[Any, ...]:
        rebuild, (_, *told) = cls.__reduce__(self)
        return rebuild, (cls, *told)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__reduce__": reduced}
    return type(cls.__name__, (cls, pickle.PickleError), names)
