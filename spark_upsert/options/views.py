"""Options of a read of a view (``plan``), batch or stream (`ViewOptions`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import OptionError, setting
from spark_upsert.options.declare import STORAGE_PREFIX, Options, choice, fold, select_given
from spark_upsert.options.read import (
    AS_OF,
    ENDS,
    READ_OPTIONS,
    STARTS,
    OnError,
    PlanOptions,
    ReadOptions,
    of_streams_only,
    refuse_of_changes,
    refuse_of_new_values,
    refuse_wrong_bounds,
)
from spark_upsert.store.records import MALFORMED, texts
from spark_upsert.table.changelog.read import Deduplication

PLAN = "plan"

ON_ERROR = "onError"
"""A read option; the write option with this name concerns the write's rows."""

_TABLE_ONLY = {
    "path": "the plan names its tables",
    "columns": "the plan says which columns there are",
    "filter": "the plan says which rows there are",
    "raw": "it is of a table that keeps a view",
    "tableTimeout": "the tables of a plan are there when it is made",
    "metadata": "it is of one table",
    "readHistory": "it is of one table, which may keep the rows of a view",
    "validBy": "it is of a history",
    "trackHistoryColumnList": "it is of a history",
    "trackHistoryExceptColumnList": "it is of a history",
}
"""Options inapplicable to views, with the reason."""


@dataclass(frozen=True, kw_only=True)
class ViewOptions(ReadOptions, PlanOptions):
    """Parsed options for a view read; ``path`` is unused."""

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> ViewOptions:
        """Parse the options for a view read.

        Raises `OptionError` if one is unknown, malformed, or does not apply to views.
        """
        options = Options(texts_by_name, READ_OPTIONS)
        for name, why in _TABLE_ONLY.items():
            options.refuse(name, f"has no meaning beside '{PLAN}': {why}", hint=f"drop '{name}'.")
        plan = options.raw(PLAN)
        assert plan is not None, "who asks has seen it"
        view_names = {PLAN, fold(ON_ERROR)}
        remaining_texts = {
            name: text for name, text in texts_by_name.items() if fold(name) not in view_names
        }
        # All other options mean the same as for a table.
        like = ReadOptions.parse({**remaining_texts, "path": "/"})
        on_error = choice(options, ON_ERROR, OnError) or OnError.FAIL
        if like.deduplication is Deduplication.NONE:
            raise OptionError(
                "deduplicationMode=none is of tables: a view does not keep changes of nothing "
                "apart from others.",
                hint="drop the option.",
                option="deduplicationMode",
            )
        if not like.fail_on_data_loss:
            raise OptionError(
                "failOnDataLoss=false is refused for a view: what it retracted would be wrong "
                "from there on.",
                hint=f"drop the option; {setting('consumerId')} keeps what the query has to read.",
                option="failOnDataLoss",
            )
        return cls(plan=plan, on_error=on_error, **vars(like))

    @classmethod
    def from_deferred_text(cls, text: str, storage: Mapping[str, str]) -> ViewOptions:
        """Parse the write option ``deferred``: a view read with splits executed by the writer.

        The text comes from `deferred_read_text`; ``storage`` has the writer's storage options.
        Raises `OptionError` for malformed JSON and invalid options.
        """
        try:
            decoded_texts = texts(json.loads(text))
            decoded_texts[PLAN]
        except MALFORMED as error:
            raise OptionError.invalid(
                "deferred",
                text[:80],
                f"the options of a read of a view, as a JSON object with '{PLAN}'",
                hint="drop it: 'keep' sets it.",
            ) from error
        storage_texts = {f"{STORAGE_PREFIX}{name}": value for name, value in storage.items()}
        return cls.parse({**decoded_texts, **storage_texts})

    def require_batch(self) -> None:
        """Raise for stream-only options, and for contradictions in a batch read."""
        self.query.require_batch()
        for name in select_given(self, "consumerId", "ignoreDeletes", "startingPosition"):
            raise of_streams_only(name)
        refuse_wrong_bounds(self)
        if not self.change_feed:
            refuse_of_changes(self)
            for name in select_given(self, *STARTS, *ENDS):
                raise OptionError.refused(
                    name,
                    "needs the change feed",
                    hint=f"add {setting('readChangeFeed', 'true')}, or use 'timestampAsOf'.",
                )
            return
        if not select_given(self, *STARTS):
            raise OptionError.missing(
                "startingTimestamp", "where the changes begin, or 'startingVersion'"
            )
        for name in select_given(self, *AS_OF):
            raise OptionError.conflict("readChangeFeed", name)

    def require_stream(self) -> None:
        """Raise for batch-only options, and for contradictions in a stream."""
        for name in select_given(self, *AS_OF, *ENDS):
            raise OptionError.refused(
                name,
                "has no meaning in a stream",
                hint="use spark.read, or 'startingTimestamp' to choose where it begins.",
            )
        if self.change_feed and self.ignore_deletes:
            raise OptionError.conflict(
                "readChangeFeed", "ignoreDeletes", why="the change feed shows deletes"
            )
        refuse_of_new_values(self)
        refuse_wrong_bounds(self)


def deferred_read_text(texts_by_name: Mapping[str, str]) -> str:
    """Serialize read options for the write option ``deferred`` (`ViewOptions.from_deferred_text`).

    Omits storage options, which may contain secrets: the writer has them.
    """
    own_texts = {
        name: value
        for name, value in texts_by_name.items()
        if not name.lower().startswith(STORAGE_PREFIX)
    }
    return json.dumps(own_texts)


def plan_paths(plan: str) -> list[str]:
    """Return the table paths in a plan's JSON; empty if malformed."""
    try:
        return list(_iter_paths(json.loads(plan)))
    except (ValueError, RecursionError):
        return []


def _iter_paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("path"), str):
            yield value["path"]
        for item in value.values():
            yield from _iter_paths(item)
