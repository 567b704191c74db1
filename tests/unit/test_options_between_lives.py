"""A query is started again with other options: what its offsets hold it to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import OptionError, UpsertFlowError
from tests.support.queries import Query
from tests.support.written import write

OptionTexts = dict[str, str]
FEED = {"readChangeFeed": "true"}
ORDERS = [{"merge": "concat"}, {"merge": "roundrobin"}, {"interleaveSeed": "5"}]


def make(folder: Path, *names: str) -> OptionTexts:
    """Return the options of a read of tables of three epochs, of which one changes nothing."""
    for name in names:
        for value in (1, 1, 2):
            rows = {"id": [1, 2, 3], "v": [value, 1, value]}
            write(folder, rows, name)
    own = {f"input.{name}.path": str(folder / name) for name in names}
    return {"inputs": ",".join(names), "startingVersion": "earliest", **own}


def kinds(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(
    ("before", "then", "option"),
    [
        (FEED, {**FEED, "emitUnchanged": "true"}, "deduplicationMode"),
        ({}, FEED, "readChangeFeed"),
        ({}, {"ignoreDeletes": "true"}, "ignoreDeletes"),
    ],
)
@pytest.mark.sweep(2)
def test_options_that_decide_rows_are_kept_by_an_exact_order(
    tmp_path: Path, order: OptionTexts, before: OptionTexts, then: OptionTexts, option: str
) -> None:
    """A batch that ends within an epoch counts its rows; of others it would pass by others."""
    given = {**make(tmp_path, "a", "b"), **order, "maxRowsPerTrigger": "1"}
    whole = kinds(Query().run({**given, **before}, batches_max=99))
    query = Query()
    first = kinds(query.run({**given, **before}, batches_max=4))
    checkpoint = query.checkpoint
    with pytest.raises(OptionError, match=f"'{option}' was"):
        query.run({**given, **then}, batches_max=99)
    query.checkpoint = checkpoint
    assert first + kinds(query.run({**given, **before}, batches_max=99)) == whole


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_batch_that_was_planned_is_not_replayed_by_other_options(
    tmp_path: Path, order: OptionTexts
) -> None:
    given = {**make(tmp_path, "a", "b"), **order, **FEED, "maxRowsPerTrigger": "4"}
    query = Query()
    query.run(given, batches_max=2)
    planned = query.planned(given)
    with pytest.raises(OptionError, match="'deduplicationMode' was"):
        query.replay({**given, "emitUnchanged": "true"}, *planned)
    with pytest.raises(OptionError, match="is that of an exact order"):
        query.replay({**given, "merge": "interleave", "interleaveSeed": ""}, *planned)
    with pytest.raises(OptionError, match="of another order"):
        query.replay({**given, "merge": "interleave", "interleaveSeed": "77"}, *planned)


@pytest.mark.parametrize("order", [{}, *ORDERS], ids=str)
@pytest.mark.parametrize("is_all", [False, True], ids=["a batch", "all there is"])
@pytest.mark.parametrize(
    ("before", "then"), [({}, {"startingVersion": "0"}), ({"startingVersion": "0"}, {})]
)
@pytest.mark.sweep(4)
def test_a_first_batch_is_replayed_as_it_began_or_refused(
    tmp_path: Path, order: OptionTexts, before: OptionTexts, then: OptionTexts, is_all: bool
) -> None:
    given = {**make(tmp_path, "a", "b"), **order, **FEED}
    del given["startingVersion"]
    query = Query()
    planned = query.planned({**given, **before}, everything=is_all)
    rows = query.replay({**given, **before}, *planned)
    assert rows
    with pytest.raises(OptionError, match="the first batch of the input 'a' was planned"):
        query.replay({**given, **then}, *planned)
    query.checkpoint = json.dumps(planned[1])
    # What has begun stands where it stands.
    query.run({**given, **then})


def test_offsets_of_earlier_releases_that_say_less_of_options_are_gone_on_with(
    tmp_path: Path,
) -> None:
    given = {**make(tmp_path, "a", "b"), "merge": "roundrobin", "maxRowsPerTrigger": "1"}
    whole = kinds(Query().run(given, batches_max=99))
    query = Query()
    first = kinds(query.run(given, batches_max=3))
    offset = json.loads(str(query.checkpoint))
    for kind in offset["state"]["order"]["reads"]["kinds"]:
        assert kind.pop("ignoreDeletes") is False
    query.checkpoint = json.dumps(offset)
    with pytest.raises(OptionError, match="'ignoreDeletes' was false"):
        query.run({**given, "ignoreDeletes": "true"})
    query.checkpoint = json.dumps(offset)
    first += kinds(query.run(given, batches_max=1))
    offset = json.loads(str(query.checkpoint))
    del offset["state"]["order"]["reads"]
    offset["state"].pop("began", None)
    query.checkpoint = json.dumps(offset)
    first += kinds(query.run(given, batches_max=1))
    assert json.loads(query.checkpoint)["state"]["order"]["reads"]["kinds"]
    assert first + kinds(query.run(given, batches_max=99)) == whole


def test_different_inputs_say_different_things_once(tmp_path: Path) -> None:
    given = {**make(tmp_path, "a", "b", "c"), "merge": "concat", **FEED}
    query = Query()
    query.run({**given, "input.b.emitUnchanged": "true"})
    reads = json.loads(str(query.checkpoint))["state"]["order"]["reads"]
    assert [kind["deduplicationMode"] for kind in reads["kinds"]] == ["dropCarryovers", "none"]
    assert reads["of"] == {"b": 1}
    with pytest.raises(OptionError, match="now of the input 'b'"):
        query.run(given)


def test_inputs_may_come_and_go_where_others_keep_their_order(tmp_path: Path) -> None:
    paths = make(tmp_path, "a", "b", "c")
    query = Query()

    def given(*names: str) -> OptionTexts:
        own = {f"input.{name}.path": paths[f"input.{name}.path"] for name in names}
        more = {"merge": "roundrobin", "allowInputRemoval": "true", "startingVersion": "earliest"}
        return {"inputs": ",".join(names), **own, **more}

    query.run(given("a", "c"))
    query.run(given("a", "b", "c"))
    query.run(given("b", "c"))
    with pytest.raises(OptionError, match="in another order"):
        query.run(given("c", "b"))


def test_the_order_of_inputs_is_free_where_none_is_promised(tmp_path: Path) -> None:
    given = make(tmp_path, "a", "b")
    query = Query()
    rows = query.run({**given, "maxRowsPerTrigger": "1"}, batches_max=2)
    rows += query.run({**given, "inputs": "b,a"}, batches_max=99)
    assert sorted(map(repr, rows)) == sorted(map(repr, Query().run(given)))


def test_live_is_not_made_exact_under_a_checkpoint(tmp_path: Path) -> None:
    given = make(tmp_path, "a", "b")
    query = Query()
    query.run(given)
    for order in ORDERS:
        with pytest.raises(UpsertFlowError, match="takes what is ready first"):
            query.run({**given, **order})
