"""Document boundaries: marks between batches, which a merge folds to one opening and one closing.

A document with rows in several inputs is opened and closed by each of them. A consumer that flushes
a document at its closing must see one closing, after all rows of the document:

* the first opening is forwarded at once, all others are dropped;
* a document is closed if it was closed as often as it was opened, counted over all inputs to their
  end. Before that it cannot be known: in ``open, close, open, close`` the first closing comes too
  early. So closings follow all rows, in the order in which their documents were completed;
* a closing without an opening is dropped, as are closings beyond the number of openings. A document
  that was never closed stays open.

Source: clinker, ``reconcile_document_boundaries``. There the openings wait for the end, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar


@dataclass(frozen=True, slots=True)
class DocumentOpen:
    """The mark from which on there may be rows of a document."""

    document: str


@dataclass(frozen=True, slots=True)
class DocumentClose:
    """There are no more rows of a document."""

    document: str


MARKS = (DocumentOpen, DocumentClose)

T = TypeVar("T")


@dataclass(slots=True)
class _Document(Generic[T]):
    openings: int = 0
    closings: list[tuple[int, T]] = field(default_factory=list)
    """When each came, and what it was."""


class Documents(Generic[T]):
    """The boundaries of one merge. Memory grows with the number of marks.

    What is forwarded may be anything that stands for a mark, with the name of its input perhaps.
    """

    def __init__(self) -> None:
        self._documents: dict[str, _Document[T]] = {}
        self._seen = 0

    def is_forwarded(self, item: Any, whole: T) -> bool:
        """Return whether an item is forwarded now: a batch always, of the marks first openings."""
        if not isinstance(item, MARKS):
            return True
        document = self._documents.setdefault(item.document, _Document())
        if isinstance(item, DocumentOpen):
            document.openings += 1
            return document.openings == 1
        document.closings.append((self._seen, whole))
        self._seen += 1
        return False

    def closings(self) -> Iterator[T]:
        """Yield the closings that are forwarded, once all inputs have ended."""
        found = [
            document.closings[document.openings - 1]
            for document in self._documents.values()
            if 0 < document.openings <= len(document.closings)
        ]
        for _, whole in sorted(found, key=lambda each: each[0]):
            yield whole
