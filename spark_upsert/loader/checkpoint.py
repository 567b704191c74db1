"""The checkpoint of a loader: how many batches it has handed out, and the settings that count them.

Batches are counted behind the prefetch, where they are handed to the caller: what was read ahead is
in no checkpoint. The count alone tells the split and the row, because the order of an epoch is a
function of the counts of rows (which are in the record of the splits), the seed and the epoch. So
a checkpoint goes on only with the very same splits and settings, and refuses others.

The rank is none of them: ranks that go in step have handed out equally many batches, and the
checkpoint of one serves all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import OptionError, UpsertFlowError
from spark_upsert.loader.splits import Record
from spark_upsert.store.records import MALFORMED, text, whole

FORMAT = 1
"""Version of checkpoints; it changes whenever the order of rows would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A position in what a loader gives."""

    kind: str
    """The kind of source that its splits are of (`Source.kind`)."""
    splits: Record
    order: Mapping[str, Any]
    """The settings that decide which rows a batch has."""
    epoch: int
    batch: int
    """How many batches of the epoch were handed out."""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON: numbers, texts, lists and dictionaries."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "splits": dict(self.splits),
            "order": dict(self.order),
            "epoch": self.epoch,
            "batch": self.batch,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Checkpoint:
        """Rebuild a checkpoint.

        Raises
        ------
        OptionError
            It is none, or of another format.
        """
        with understood():
            format_ = whole(state["format"])
            if format_ != FORMAT:
                raise OptionError(
                    f"the checkpoint of the loader has format {format_}, expected {FORMAT}: its "
                    "batches are not those that this version gives.",
                    hint="go on with the version that made it, or begin without it.",
                    option="state",
                )
            return cls(
                kind=text(state["kind"]),
                splits={**state["splits"]},
                order={**state["order"]},
                epoch=whole(state["epoch"]),
                batch=whole(state["batch"]),
            )


@contextmanager
def understood() -> Iterator[None]:
    """Turn what a record of another form raises into an error that says so."""
    try:
        yield
    except UpsertFlowError:
        raise
    except MALFORMED as error:
        raise OptionError(
            f"expected what `state_dict` of a loader has returned, found another thing: {error!r}.",
            hint="give it back as it was; as JSON it stays the same.",
            option="state",
        ) from error
