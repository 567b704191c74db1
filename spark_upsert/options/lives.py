"""The effect of an option that is another one in the next life of a streaming query.

A query that starts again from its checkpoint may be given other options. Each option declares one
meaning of that (`options.declared`): a test goes over all options, fails for one that it does not
try, tries what is refused, and proves of what is free that the rows are the same. A batch that was
planned and not delivered belongs to the next life.

Whatever would make rows come twice or never is refused, and stands in the checkpoint for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """When a change takes effect."""

    FREE = "at once; the same rows"
    NEXT = "next batch"
    BEGINNING = "inputs that have not begun"
    REFUSED = "refused"
    BATCH = "-"
    """It means nothing to a stream."""


@dataclass(frozen=True, slots=True)
class Life:
    """The meaning of a change of an option.

    Parameters
    ----------
    change : Change
    note : str
        What else is to be said of it.
    exact : Change, optional
        What it means under an exact order (`merge`, `interleaveSeed`), where that differs.
    """

    change: Change
    note: str = ""
    exact: Change | None = None

    def __str__(self) -> str:
        told = [self.change.value]
        if self.exact is not None:
            told.append(f"in an exact order {self.exact.value}")
        if self.note:
            told.append(self.note)
        return "; ".join(told)


FREE, NEXT, REFUSED = Life(Change.FREE), Life(Change.NEXT), Life(Change.REFUSED)
BEGINNING, BATCH = Life(Change.BEGINNING), Life(Change.BATCH)
COUNTED = Life(Change.NEXT, exact=Change.REFUSED)
"""It decides how many rows an epoch has, and an exact order counts them."""

FIXED = Life(Change.REFUSED, "fixed by the first write; left out, it stays")
PROPERTY = Life(Change.NEXT, "left out, the table's stays")
