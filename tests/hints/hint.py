"""How a hint is followed: a mistake, then literally what its message tells to do, and it works.

    @follows("options.write:_on_error")
    def _(told: Told) -> None:
        with told:
            WriteOptions.parse({**GIVEN, "onError": "fail", "errorColumn": "e"})
        told("use onError=inline")
        WriteOptions.parse({**GIVEN, "onError": "inline", "errorColumn": "e"})
        told("drop it")
        WriteOptions.parse({**GIVEN, "onError": "fail"})

Each piece of advice is quoted from the message before it is followed, each alternative of it apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spark_upsert.errors import UpsertFlowError, as_option
from tests.hints.sites import Site, sites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIVEN = re.compile(r'\.option\("([\w.]+)", "([^"]*)"\)')


@dataclass(slots=True)
class Told:
    """What the message of a mistake advises; ``with`` stands around the mistake."""

    site: Site
    folder: Path
    """An empty one, to make tables in."""
    error: UpsertFlowError | None = None
    followed: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            raise AssertionError("the mistake was no error")
        if not isinstance(error, UpsertFlowError):
            return False
        if not self.site.says(error._marked_hint):
            raise AssertionError(f"another hint than that of {self.site.name}: {error}") from error
        self.error = error
        return True

    def __call__(self, advice: str) -> None:
        """Quote what is followed next."""
        assert self.error is not None, "nothing was told yet"
        assert advice in self.hint, f"it does not tell to {advice!r}: {self.hint!r}"
        self.followed.append(advice)

    @property
    def hint(self) -> str:
        """What to do, with settings as plain Python gives them."""
        assert self.error is not None, "nothing was told yet"
        return self.error.hint

    @property
    def options(self) -> dict[str, str]:
        """The settings that the hint names with a value, as options: to be given as they stand."""
        assert self.error is not None, "nothing was told yet"
        form, self.error._form = self.error._form, as_option
        found = dict(_GIVEN.findall(self.error.hint))
        self.error._form = form
        return found

    @property
    def meant(self) -> str:
        """The name that the hint takes a wrong one for: ``Did you mean 'this'?``"""
        found = re.search(r"Did you mean '([^']+)'", self.hint)
        assert found, f"it takes the name for no other: {self.hint!r}"
        self.followed.append(found[0])
        return found[1]


Following = Callable[[Told], None]

FOLLOWED: dict[str, list[Following]] = {}
"""By the name of the hint."""

FollowingOnSpark = Callable[[Told, "SparkSession"], None]

ON_SPARK: dict[str, list[FollowingOnSpark]] = {}
"""Those that need a session (`integration.test_hints`)."""


def follows(site: str) -> Callable[[Following], Following]:
    """Add a test to those that follow a hint; a hint may have several."""

    def add(test: Following) -> Following:
        FOLLOWED.setdefault(site, []).append(test)
        return test

    return add


def follows_on_spark(site: str) -> Callable[[FollowingOnSpark], FollowingOnSpark]:
    """Add a test that needs a session."""

    def add(test: FollowingOnSpark) -> FollowingOnSpark:
        ON_SPARK.setdefault(site, []).append(test)
        return test

    return add


def follow(site: str, test: Following, folder: Path) -> None:
    """Make the mistake, and do what its message tells.

    Raises
    ------
    AssertionError
        The mistake was no error or told of something else, no advice was followed, or it failed.
    """
    told = Told(sites()[site], folder)
    try:
        test(told)
    except UpsertFlowError as error:
        raise AssertionError(f"what was told does not work: {told.followed}") from error
    assert told.followed, "no advice was followed"
