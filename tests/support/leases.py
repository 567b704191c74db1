"""What comes between the choice of what to read and the lease on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from itertools import islice
from typing import Any

import pytest

from spark_upsert.table.table import Table


def before_leases(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object], *, times: int
) -> None:
    """Act before each of the first so many leases, on any table, is taken."""

    def held(table: Table, *args: Any, take: Callable[..., Any], **how: Any) -> Any:
        for number in islice(left, 1):
            act(number)
        return take(table, *args, **how)

    left = iter(range(times))
    for name in ("hold", "keep_held"):
        monkeypatch.setattr(Table, name, partialmethod(held, take=getattr(Table, name)))
