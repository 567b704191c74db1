"""Tables of every engine and every life: what each version shows, and the bytes of one more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.codec import manifest_to_json
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from tests.golden.case import Case, Seen, log_text, sorted_rows
from tests.support.envelopes import JSON, KAFKA

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64(), "s": pa.string()})
ORDERED = pa.schema([*COLUMNS, ("at", pa.int64())])
GONE = pa.field("gone", pa.bool_())
PAIR = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.int64()})

Row = tuple[Any, ...]


class Made(NamedTuple):
    """How a table is made, which rows it gets epoch by epoch, and what else befalls it."""

    columns: pa.Schema
    how: dict[str, Any]
    epochs: Sequence[Sequence[Row]]
    one_more: Sequence[Row]
    life: Callable[[Table], object] = lambda table: None


def rows_of(made: Made, rows: Sequence[Row]) -> pa.Table:
    """Return rows as they are appended."""
    deletes = [GONE] if _deletes(made) else []
    schema = pa.schema([*made.columns, *deletes])
    return pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )


def _deletes(made: Made) -> str | None:
    engine = made.how.get("engine")
    return "gone" if engine is None or engine.takes_deletes else None


def append(path: str, made: Made, rows: Sequence[Row], number: int) -> None:
    """Append rows as the next epoch of a writer."""
    Table.open(path).upsert(
        rows_of(made, rows),
        deletes=_deletes(made),
        transaction=Transaction(writer="golden", number=number),
        late_rows=LateRows.REJECT,
    )


def _made(how: dict[str, Any], life: Callable[[Table], object] = lambda table: None) -> Made:
    """Return a table of keys, values and deletes."""
    epochs = (
        ((1, 10, "a", False), (2, 20, None, False), (3, 30, "ü", False)),
        ((2, 21, "b", False), (3, None, None, True)),
        ((4, None, "", False), (1, 11, "a", False)),
    )
    return Made(
        COLUMNS, {"keys": ["k"], **how}, epochs, ((2, None, None, True), (5, 5, "e", False)), life
    )


def _ordered(how: dict[str, Any], *, deletes: bool = True) -> Made:
    """Return a table whose rows are ordered by ``at``."""
    gone = (False,) if deletes else ()
    last = (3, None, None, 9, True) if deletes else (3, 1, "c", 9)
    epochs = (
        ((1, 10, "a", 5, *gone), (2, 20, None, 5, *gone), (3, 30, "c", 5, *gone)),
        ((1, 9, "late", 4, *gone), (2, 22, "b", 6, *gone), (3, 31, "tie", 5, *gone)),
        ((2, None, "n", 7, *gone), last),
    )
    more = ((1, 12, None, 8, *gone), (3, 3, "again", 8, *gone), (6, 6, "f", 1, *gone))
    return Made(ORDERED, {"keys": ["k"], "sequence_by": ["at"], **how}, epochs, more)


TYPES = pa.schema(
    {
        "k": pa.string(),
        "bool": pa.bool_(),
        "byte": pa.int8(),
        "float": pa.float32(),
        "double": pa.float64(),
        "decimal": pa.decimal128(20, 3),
        "date": pa.date32(),
        "time": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "bytes": pa.binary(),
        "list": pa.list_(pa.field("element", pa.int32())),
        "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct({"x": pa.int64(), "y": pa.list_(pa.string())}),
        "gone": pa.bool_(),
    }
)


def _expire(table: Table) -> None:
    table.compact(full=True)
    table.expire(retain_versions=1, safety_ms=0)


def _hold(table: Table) -> None:
    table.hold("reader", 2, ttl_ms=10**14)


def _quarantined(table: Table) -> None:
    options = WriteOptions.parse({"path": table.store.url, "onError": "quarantine", **JSON})
    records = [(b'{"k": 1}', b'{"v": "a"}'), (b"no", b"{}"), (b'{"k": 2}', b"no"), (None, None)]
    kafka = pa.Table.from_pylist(
        [{"key": key, "value": value, "offset": i} for i, (key, value) in enumerate(records)],
        schema=KAFKA,
    )
    plan = plan_table_write(table, options, KAFKA)
    table.upsert(kafka, envelope=plan.envelope)


def _alter(table: Table) -> None:
    more = pa.table({"k": [7], "v": [7], "s": ["s"], "added": [1.5]})
    table.upsert(more, merge_schema=True)
    table.alter(table.schema, {"tombstoneRetention": "2 epochs"})


AGGREGATION = MergeEngine(
    kind=Engine.AGGREGATION,
    rules={"v": Rule.SUM, "low": Rule.MIN, "high": Rule.MAX, "all": Rule.COLLECT},
)
SUMS = pa.schema(
    {"k": pa.int64(), "v": pa.int64(), "low": pa.int64(), "high": pa.float64(), "all": pa.string()}
)

TABLES: dict[str, Made] = {
    "plain": _made({}),
    "scope_epoch": _ordered({"scope": Scope.EPOCH}),
    "ordered": _ordered({}),
    "ties_first": _ordered({"ties": Ties.FIRST}),
    "first_row": _ordered({"engine": MergeEngine(kind=Engine.FIRST_ROW)}, deletes=False),
    "partial": _ordered({"engine": MergeEngine(kind=Engine.PARTIAL_UPDATE)}),
    "aggregation": Made(
        SUMS,
        {"keys": ["k"], "engine": AGGREGATION},
        (((1, 1, 5, 0.5, "a"), (2, 2, 2, None, "b")), ((1, 3, 4, 2.5, "c"), (1, 1, 9, -1.0, "a"))),
        ((2, 7, 1, 1.0, "z"), (3, None, None, None, None)),
    ),
    "prefixed": Made(
        PAIR,
        {"keys": ["a", "b"], "hash_prefix": 1},
        ((("x", 1, 1, False), ("x", 2, 2, False), ("y", 1, 3, False)), (("x", 2, None, True),)),
        (("x", 3, 4, False), ("y", 1, 5, False)),
    ),
    "types": Made(
        TYPES.remove(TYPES.get_field_index("gone")),
        {"keys": ["k"]},
        (
            (
                (
                    "a",
                    True,
                    -1,
                    0.5,
                    -0.0,
                    None,
                    None,
                    None,
                    None,
                    b"\x00",
                    [1, None],
                    [("m", 1)],
                    {"x": 1, "y": ["q"]},
                    False,
                ),
                ("b", *[None] * 12, False),
            ),
        ),
        (("a", False, 1, 1.5, 1e300, None, None, None, None, b"", [], [], None, False),),
    ),
    "indexed": _made({"properties": {"indexBy": "s"}}),
    "quarantined": Made(
        pa.schema({"k": pa.int64(), "v": pa.string()}),
        {"keys": ["k"], "on_error": ErrorPolicy.QUARANTINE},
        (((5, "e", False),),),
        ((2, "healed", False), (5, None, True)),
        _quarantined,
    ),
    "compacted": _made({}, lambda table: table.compact(full=True)),
    "forgetful": Made(
        **{
            **_ordered({"properties": {"tombstoneRetention": "0 epochs"}})._asdict(),
            "life": lambda table: table.compact(full=True),
        }
    ),
    "overwritten": _made(
        {}, lambda table: table.upsert(pa.table({"k": [9], "v": [9], "s": ["i"]}), overwrite=True)
    ),
    "restored": _made({}, lambda table: table.restore(1)),
    "expired": _made({}, _expire),
    "altered": _made({}, _alter),
    "leased": _made({}, _hold),
    "checkpointed": _made({}),
}
"""By the names of their folders."""


LARGE: dict[str, Made] = {"leaves": _made({})}
"""Tables whose checkpoints have leaves, as those with many files have."""


def build(tables: Mapping[str, Made]) -> Seen:
    """Write tables."""
    are_large = tables is LARGE
    for name, made in tables.items():
        every = 2 if are_large or name == "checkpointed" else storage.CHECKPOINT_EVERY
        with (
            patch.object(storage, "CHECKPOINT_EVERY", every),
            patch.object(slices, "LEAF_SLICES", 1 if are_large else slices.LEAF_SLICES),
        ):
            Table.create(name, made.columns, **made.how)
            for number, rows in enumerate(made.epochs):
                append(name, made, rows, number)
            made.life(Table.open(name))
    return {}


def see(tables: Mapping[str, Made], _: Seen) -> Seen:
    """Return what each table shows at each version that can be read."""
    return {name: _seen(name) for name in tables}


def go_on(tables: Mapping[str, Made], kept: Seen) -> Seen:
    """Append to each table once more, and compact it; return the texts of its log as well."""
    found: Seen = {}
    for name, made in tables.items():
        last = max(int(path.stem) for path in Path(name, "_log").glob("?" * 20 + ".json"))
        rows = made.one_more
        if name == "altered":
            more = rows_of(made, rows).append_column("added", pa.nulls(len(rows), pa.float64()))
            Table.open(name).upsert(
                more, deletes="gone", transaction=Transaction(writer="golden", number=99)
            )
        else:
            append(name, made, rows, 99)
        if name != "altered":
            append(name, made, rows, 99)  # It is known, and does nothing.
        Table.open(name).compact(full=True)
        logs = sorted(Path(name, "_log").glob("?" * 20 + ".json"))
        texts = {path.stem: log_text(path) for path in logs if int(path.stem) > last}
        found[name] = {"log": texts, **_seen(name)}
    return found


def _seen(name: str) -> Seen:
    table = Table.open(name)
    head = table.log.head()
    epochs = {
        str(v): sorted_rows([table.changes(v, v + 1)])
        for v in range(max(1, head.since + 1), head.version + 1)
    }
    return {
        "manifest": manifest_to_json(head),
        "rows": {
            str(v): sorted_rows([table.snapshot(v)]) for v in range(head.since, head.version + 1)
        },
        "changes": epochs,
        "quarantine": sorted_rows(table.quarantine()) if head.schema.has_quarantine else [],
        "problems": [str(each) for each in table.check().findings],
        "indexed": sorted_rows([table.rows_having("s", ["a", "e"])]) if name == "indexed" else [],
    }


CASE, LARGE_CASE = (
    Case(name, partial(build, tables), partial(see, tables), partial(go_on, tables))
    for name, tables in (("tables", TABLES), ("leaves", LARGE))
)
