"""Hints that are followed: a mistake, then literally the advice of its message, and it works.

Wrong advice in these hints would lose rows, or leave a table or a query in an error. The names in
all other hints are checked by a rule (`tests.unit.test_hints`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_upsert.errors import UpsertFlowError, as_option

_SETTING = re.compile(r'\.option\("([\w.]+)", "([^"]*)"\)')


@dataclass(slots=True)
class FollowedHint:
    """The hint of a mistake; the ``with`` block is the mistake."""

    folder: Path
    """An empty folder for tables."""
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
        self.error = error
        return True

    def __call__(self, advice: str) -> None:
        """Quote the advice that is followed next."""
        assert advice in self.text, f"the hint has no {advice!r}: {self.text!r}"
        self.followed.append(advice)

    @property
    def text(self) -> str:
        """The hint's text, with settings as plain Python gives them."""
        assert self.error is not None, "no error has been raised yet"
        return self.error.hint

    @property
    def options(self) -> dict[str, str]:
        """The settings with a value in the hint, as options."""
        assert self.error is not None, "no error has been raised yet"
        return dict(_SETTING.findall(self.error.hint_as(as_option)))
