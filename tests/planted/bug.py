"""How a bug is planted: a rule is changed by a patch, and it is said who must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from spark_upsert.table.log import log as log_module
from spark_upsert.table.log import storage
from spark_upsert.table.log.manifest import Manifest

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Bug:
    """A change of one rule, and the test that must notice it."""

    name: str
    plant: Callable[[], Patch]
    caught_by: Callable[..., None]

    def __str__(self) -> str:
        return self.name


BUGS: list[Bug] = []


def bug(name: str, caught_by: Callable[..., None]) -> Callable[[Callable[[], Patch]], None]:
    """Add a bug to the list."""

    def add(plant: Callable[[], Patch]) -> None:
        BUGS.append(Bug(name, plant, caught_by))

    return add


def wrapped(owner: Any, name: str, around: Callable[..., Any]) -> Patch:
    """Replace a function by one that gets the original as its first argument."""
    original = getattr(owner, name)

    def replacement(*args: Any, **how: Any) -> Any:
        return around(original, *args, **how)

    return patch.object(owner, name, replacement)


@contextmanager
def together(*patches: Patch) -> Iterator[None]:
    """Make several changes as one."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def applied_by(around: Callable[..., Manifest]) -> Patch:
    """Replace the rule by which a version follows on the one before it."""
    return together(wrapped(storage, "apply", around), wrapped(log_module, "apply", around))
