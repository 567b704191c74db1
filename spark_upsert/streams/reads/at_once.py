"""Asking inputs, several at once: a thousand on an object store, one by one, are a minute.

Each answer is one or a few requests that are waited for, and threads cost little while they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from spark_upsert.errors import about
from spark_upsert.model.parallel import in_order

In = TypeVar("In")
Out = TypeVar("Out")

ASKED_AT_ONCE = 16
"""The most inputs that are asked at once."""


def of_each(inputs: Mapping[str, In], ask: Callable[[In], Out]) -> dict[str, Out]:
    """Return the answer of each input, by name.

    Parameters
    ----------
    inputs : mapping of str to In
        By the names of inputs. No two share what they change when they are asked.
    ask : callable
        What it raises names the input; that of the first input that fails is raised.
    """

    def answer(of: tuple[str, In]) -> Out:
        name, each = of
        with about("input", name):
            return ask(each)

    answers = in_order(answer, inputs.items(), min(ASKED_AT_ONCE, len(inputs)))
    return dict(zip(inputs, answers, strict=True))
