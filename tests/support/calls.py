"""Functions that record their calls or fail, for tests that replace one function of the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class Recorded:
    """A function that records the arguments of each call, then calls another one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls.append(args)
        return self.function(*args, **options)


def raising(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises an error."""

    def fail(*args: Any, **options: Any) -> NoReturn:
        raise error

    return fail
