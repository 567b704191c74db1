"""Records that somebody has altered: each reader gives a value, or an error of ours with a hint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.views import ViewOptions
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.inputs.view import ViewPosition
from spark_upsert.streams.offsets.offset import Offset, Position
from spark_upsert.streams.planner.formats import BEGAN, require_same_start_options
from spark_upsert.streams.planner.rate_limit import SCHEDULE, waiting_count
from spark_upsert.table.log.manifest import KeptPosition, TableVersion
from spark_upsert.views.grouping import Grouping
from tests.support.alterations import alterations

PLACE = TableVersion(table_id="t1", version=3, token="t7")
PLAN = "0123456789abcdef"
HASH = 1 << 60

TABLE = TablePosition(origin=3, hash=HASH, upper=4, place=PLACE)
VIEW = ViewPosition(
    plan=PLAN,
    at={"orders": 3},
    origin={"orders": 3},
    snapshot=HASH,
    begun=HASH,
    places={"orders": PLACE},
    pinned={"rates@3": PLACE},
)
GROUPING = Grouping(
    pa.schema([("g", pa.int64()), ("v", pa.decimal128(9, 2))]),
    ("g",),
    (Aggregate("total", AggregateKind.SUM, "v"),),
)


def _table(record: Any) -> object:
    return TablePosition.from_position(Position(json.dumps(record)))


def _view(record: Any) -> object:
    return ViewPosition.from_position(Position(json.dumps(record)), PLAN)


READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "a position in a table": (TABLE.to_position().record, _table),
    "a position of a view": (VIEW.to_position().record, _view),
    "the marker of a kept table": (
        json.loads(VIEW.kept.text),
        lambda record: KeptPosition.read(json.dumps(record)),
    ),
    "an offset": (
        Offset(positions={"t": TABLE.to_position()}, state={"a": {"b": [1]}}).to_json(),
        Offset.from_json,
    ),
    "the inputs that wait": (
        {"band": 1, "credit": 1, "dirty": [[5, "a", "b"], [7, "c"]]},
        lambda record: waiting_count({SCHEDULE: record}),
    ),
    "how inputs began": (
        {"kinds": [{"startingVersion": "1"}, {}], "of": {"b": 1}},
        lambda record: require_same_start_options({BEGAN: record}, {}),
    ),
    "a grouping": (
        json.loads(GROUPING.to_json()),
        lambda record: Grouping.from_json(json.dumps(record)),
    ),
    "the options of a read that is put off": (
        {"plan": "{}", "consumerId": "c"},
        lambda record: ViewOptions.from_deferred_text(json.dumps(record), {}),
    ),
}


@pytest.mark.parametrize(("record", "read"), READERS.values(), ids=READERS)
def test_whatever_stands_in_a_record_it_is_one_or_an_error_with_a_hint(
    record: Any, read: Callable[[Any], object]
) -> None:
    read(record)
    refused = 0
    for what, altered in alterations(record):
        try:
            read(altered)
        except UpsertFlowError as error:
            refused += 1
            if not error.hint:
                pytest.fail(f"{what}: no hint in {error}")
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"{what}: {error!r}")
    assert refused
