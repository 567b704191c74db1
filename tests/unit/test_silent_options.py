"""Options of reads: in each kind of read, one changes what is read, or is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import declared
from spark_upsert.options.read import READ_OPTIONS, QueryOptions, ReadOptions
from spark_upsert.options.views import ViewOptions

Read = ReadOptions | ViewOptions

KINDS = {
    "rows": {"path": "/t"},
    "changes": {"path": "/t", "readChangeFeed": "true", "startingVersion": "1"},
    "history": {"path": "/t", "readHistory": "true"},
    "metadata": {"path": "/t", "metadata": "files"},
    "rows of a view": {"plan": "{}"},
    "changes of a view": {"plan": "{}", "readChangeFeed": "true", "startingVersion": "1"},
    "stream of new values": {"path": "/t"},
    "stream of changes": {"path": "/t", "readChangeFeed": "true"},
    "stream of new values of a view": {"plan": "{}"},
    "stream of changes of a view": {"plan": "{}", "readChangeFeed": "true"},
}

SAMPLES = {
    "path": "/other",
    "versionAsOf": "3",
    "timestampAsOf": "2026-01-31",
    "filter": "id = 1",
    "readChangeFeed": "true",
    "ignoreDeletes": "true",
    "startingVersion": "2",
    "startingTimestamp": "2026-01-31",
    "startingPosition": "{}",
    "endingVersion": "5",
    "endingTimestamp": "2026-01-31",
    "startingBoundInclusive": "false",
    "endingBoundInclusive": "false",
    "deduplicationMode": "netChanges",
    "emitUnchanged": "true",
    "computeUpdates": "false",
    "readHistory": "true",
    "validBy": "version",
    "trackHistoryColumnList": "a",
    "trackHistoryExceptColumnList": "b",
    "splits": "7",
    "failOnDataLoss": "false",
    "consumerId": "me",
    "consumerTtl": "3 days",
    "tableTimeout": "9 s",
    "raw": "true",
    "metadata": "epochs",
    "onError": "null",
}
"""A value of each option that is not its default."""

OF_CHANGES = {"ignoreDeletes", "computeUpdates", "deduplicationMode", "emitUnchanged"}
OF_BOUNDS = {name for name in SAMPLES if name.startswith(("starting", "ending"))}
OF_HISTORY = {name for name in SAMPLES if name.startswith(("track", "validBy"))}

REFUSED = {
    "rows": {*OF_CHANGES, *OF_BOUNDS, *OF_HISTORY, "consumerId", "onError"},
    "changes": {*OF_HISTORY, "ignoreDeletes", "endingBoundInclusive", "filter", "onError"},
    "history": {*OF_CHANGES, "filter", "versionAsOf", "startingBoundInclusive", "onError"},
    "metadata": {*OF_CHANGES, *OF_BOUNDS, *OF_HISTORY, "filter", "onError"},
    "rows of a view": {*OF_CHANGES, *OF_BOUNDS, *OF_HISTORY, "filter", "raw", "tableTimeout"},
    "changes of a view": {*OF_HISTORY, "filter", "raw", "tableTimeout", "endingBoundInclusive"},
    "stream of new values": {*OF_HISTORY, "endingBoundInclusive", "computeUpdates", "filter"},
    "stream of changes": {*OF_HISTORY, "endingBoundInclusive", "ignoreDeletes", "filter"},
    "stream of new values of a view": {*OF_HISTORY, "endingBoundInclusive", "computeUpdates"},
    "stream of changes of a view": {*OF_HISTORY, "endingBoundInclusive", "filter", "raw"},
}
"""Options that mean nothing in a kind of read, though its record could hold them."""


def checked(kind: str, given: Mapping[str, str]) -> Read:
    read = (ViewOptions if "plan" in given else ReadOptions).parse(given)
    read.require_stream() if kind.startswith("stream") else read.require_batch()
    return read


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_changes_the_read_or_is_refused(kind: str) -> None:
    assert SAMPLES.keys() == READ_OPTIONS.keys() - declared(QueryOptions).keys() - {"plan"}
    given = KINDS[kind]
    as_given = checked(kind, given)
    silent = []
    for name, value in SAMPLES.items():
        try:
            is_heard = checked(kind, {**given, name: value}) != as_given
        except OptionError:
            continue
        if not is_heard and given.get(name) != value:
            silent.append(name)
    assert not silent


@pytest.mark.parametrize("kind", KINDS)
def test_what_means_nothing_in_a_read_is_refused_by_name(kind: str) -> None:
    for name in REFUSED[kind]:
        said = {"emitUnchanged": "emitUnchanged|deduplicationMode"}.get(name, name)
        with pytest.raises(OptionError, match=said):
            checked(kind, {**KINDS[kind], name: SAMPLES[name]})
