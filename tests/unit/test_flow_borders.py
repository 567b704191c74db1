"""Rows between two passes: ports of unlike columns, and numbers that say where rows go."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Legacy,
    PythonFunction,
    expanded,
    fused,
)
from spark_upsert.flow.partitioner import Parcel
from spark_upsert.flow.stages import cut_into_stages
from spark_upsert.flow.validate import schemas_of
from spark_upsert.flow.wire_format import Border, is_woken, tasks_of

LEFT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
RIGHT = pa.schema({"name": pa.string(), "id": pa.int64(), "of": pa.int64(), "at": pa.float64()})
ROWS = {
    "left": pa.record_batch([[1, 2], ["a", None], [["x"], []]], schema=LEFT),
    "right": pa.record_batch([["b", "c"], [3, None], [5, 6], [0.5, None]], schema=RIGHT),
}


def border() -> tuple[Border, dict[str, int]]:
    """Return the border before two regions of unlike columns, and the first address of each."""
    flow = Flow()
    for name, rows in ROWS.items():
        read = flow.source(f"read-{name}", ArrowSource(pa.Table.from_batches([rows])))
        with flow.parallel(name, 2):
            same = PythonFunction(iter, rows.schema)
            flow.sink(f"kept-{name}", CollectSink(), flow.operator("same", same, read))
    plan = fused(expanded(flow.graph()), Legacy())
    schemas = schemas_of(
        plan.physical.graph, {f"read-{name}": r.schema for name, r in ROWS.items()}
    )
    stages = cut_into_stages(plan, schemas)
    first = {port.replica: at for at, port in enumerate(stages.book.ports)}
    addresses = {name: first[f"{name}.same[0]"] for name in ROWS}
    return Border(stages, 1, lambda schema: schema), addresses


def test_unlike_columns_share_those_of_equal_types() -> None:
    assert border()[0].schema.types == [
        *(pa.int64(), pa.int64(), pa.string(), pa.list_(pa.string())),
        *(pa.int64(), pa.float64()),
    ]


@pytest.mark.parametrize("name", ROWS)
def test_rows_come_out_as_they_went_in(name: str) -> None:
    between, addresses = border()
    batch = between.pack(Parcel(ROWS[name], addresses[name]), task=0)
    assert list(between.unpack(batch)) == [(addresses[name], ROWS[name])]


def test_rows_say_which_task_they_go_to_and_wakes_are_no_rows() -> None:
    between, addresses = border()
    batches = [between.pack(Parcel(rows, addresses[name]), task=0) for name, rows in ROWS.items()]
    tasks = [set(tasks_of(batch).tolist()) for batch in batches]
    assert [len(each) for each in tasks] == [1, 1]
    assert tasks[0] != tasks[1]
    wakes = between.wakes(range(4))
    assert tasks_of(wakes).tolist() == [0, 1, 2, 3]
    assert list(between.unpack(wakes)) == []
    assert (is_woken(batches[0]), is_woken(wakes)) == (False, True)
    [both] = pa.Table.from_batches([batches[0], wakes]).combine_chunks().to_batches()
    assert list(between.unpack(both)) == [(addresses["left"], ROWS["left"])]
