"""Arguments with names: a text is one name in each public function, and never its letters."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert import ChangeOptions, Table, TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.flow import ArrowSource, CollectSink, Flow
from spark_upsert.task import (
    ArrowLookup,
    ArrowScan,
    Group,
    IndexLookupJoin,
    JoinKeys,
    JoinType,
    LocalPartition,
    TableLookup,
)

PACKAGES = ("spark_upsert", "spark_upsert.task", "spark_upsert.flow")

NAMES = re.compile(r"(Sequence|Iterable|Collection|list|tuple|set)\[str\b")
"""Annotations of arguments that contain names."""

ROWS = pa.table({"id": [1], "day": [7]})
SCAN = ArrowScan(id="input", schema=ROWS.schema)


def table(folder: Path) -> Table:
    """Return a table with the columns ``id`` and ``day``."""
    shutil.rmtree(folder / "t", ignore_errors=True)
    found = Table.create(str(folder / "t"), ROWS.schema, keys=["id", "day"], hash_prefix=1)
    found.upsert(ROWS)
    return found


def upsert(folder: Path, **how: Any) -> object:
    commit = table(folder).upsert(ROWS, **how)
    assert commit is not None
    return commit.counters  # Its file has a name of its own.


def regions(folder: Path, **how: Any) -> object:
    flow = Flow()
    rows = flow.source("in", ArrowSource(ROWS))
    with flow.parallel("region", 2, **how):
        rows = flow.operator("same", Group(id="g", input=SCAN, keys=("id",)), rows)
    flow.sink("out", CollectSink(), rows)
    return flow.graph()


def create(folder: Path, **how: Any) -> object:
    schema = Table.create(str(folder / "new"), ROWS.schema, **{"keys": ["day"], **how}).schema
    return schema.keys, schema.order


Call = Callable[[Path, Any], object]

CALLS: dict[str, Call] = {
    "ChangeOptions.columns": lambda _, names: ChangeOptions(columns=names),
    "Table.create.keys": lambda folder, names: create(folder, keys=names),
    "Table.create.sequence_by": lambda folder, names: create(folder, sequence_by=names),
    "Table.get.columns": lambda folder, names: table(folder).get((1, 7), columns=names),
    "Table.having_prefix.columns": lambda folder, names: table(folder).having_prefix(
        ROWS.select(["id"]), columns=names
    ),
    "Table.history.columns": lambda folder, names: table(folder).history(columns=names).schema,
    "Table.history.tracked": lambda folder, names: table(folder).history(tracked=names).schema,
    "Table.history.untracked": lambda folder, names: table(folder).history(untracked=names).schema,
    "Table.pieces.columns": lambda folder, names: [
        pa.RecordBatchReader.from_stream(each).schema
        for each in table(folder).pieces(columns=names)
    ],
    "Table.rows_having.columns": lambda folder, names: table(folder).rows_having(
        "day", [7], columns=names
    ),
    "Table.scan.columns": lambda folder, names: table(folder).scan(names).read_all(),
    "Table.scan_changes.columns": lambda folder, names: (
        table(folder).scan_changes(columns=names).schema
    ),
    "Table.upsert.columns": lambda folder, names: upsert(folder, columns=names),
    "Table.snapshot.columns": lambda folder, names: table(folder).snapshot(columns=names),
    "TableSchema.of.keys": lambda _, names: TableSchema.of(ROWS.schema, keys=names),
    "TableSchema.select.names": lambda folder, names: table(folder).schema.select(names),
    "ArrowLookup.keys": lambda _, names: ArrowLookup(ROWS, names).keys,
    "ArrowLookup.columns": lambda _, names: ArrowLookup(ROWS, ["day"], names).schema,
    "TableLookup.columns": lambda folder, names: TableLookup(table(folder).at(), names).schema,
    "Group.keys": lambda _, names: Group(id="g", input=SCAN, keys=names),
    "IndexLookupJoin.keys": lambda _, names: IndexLookupJoin(
        id="j", input=SCAN, how=JoinType.INNER, keys=names
    ),
    "LocalPartition.keys": lambda _, names: LocalPartition(id="p", parts=(SCAN,), keys=names),
    "JoinKeys.pairs.left": lambda _, names: JoinKeys.pairs(names, ["id"]),
    "JoinKeys.pairs.right": lambda _, names: JoinKeys.pairs(["id"], names),
    "Flow.parallel.partition_by": lambda folder, names: regions(folder, partition_by=names),
}
"""A call for each argument of a public function that contains names of columns."""

OF_OUTPUT = re.compile(
    r"(FusedGraph|LogicalOperator|Parallel|PartitionBy|Replica|Splitter|WidthChange)\.__init__\..*"
    r"|MergeEngine\.(check|resolved)\..*|Flow\.parallel\.broadcast"
    r"|TableSchema\.__init__\.(keys|binlogs|unreadable|unchanged)"
    r"|TableSchema\.(with_unchanged|for_columns)\.names"
)
"""Values that the package makes, or that `flow.validate` checks; ports are no columns."""


def arguments() -> Iterator[str]:
    """Yield each argument of a public function that contains names, as in `CALLS`."""
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            members = inspect.getmembers(value) if inspect.isclass(value) else [("", value)]
            for member, function in members:
                function = getattr(function, "__func__", function)
                if not inspect.isfunction(function) or member.startswith("_") > (
                    member == "__init__"
                ):
                    continue
                for parameter in inspect.signature(function).parameters.values():
                    path = ".".join(filter(None, (name, member, parameter.name)))
                    if NAMES.search(str(parameter.annotation)) and not OF_OUTPUT.fullmatch(path):
                        yield path.replace(".__init__", "")


def test_each_argument_with_names_is_tried() -> None:
    assert {*arguments(), "Flow.parallel.partition_by"} == CALLS.keys()


@pytest.mark.sweep(9)
@pytest.mark.parametrize("argument", CALLS)
def test_a_text_is_one_name(tmp_path: Path, argument: str) -> None:
    results = []
    for number, names in enumerate(("id", ["id"], np.array(["id"]), (each for each in ["id"]))):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = repr(CALLS[argument](folder, names))
        results.append(result.replace(str(folder), "FOLDER"))
    assert results == [results[1]] * 4


@pytest.mark.sweep(9)
@pytest.mark.parametrize("argument", CALLS)
def test_no_names_are_refused_by_the_name_of_the_argument(tmp_path: Path, argument: str) -> None:
    for names in ({"id"}, b"id", ["id", 3], 7):
        with pytest.raises(OptionError, match="must be a name or a list of names") as caught:
            CALLS[argument](tmp_path, names)
        assert f"'{caught.value.fields['option']}'" in caught.value.message


CHOICES = re.compile(r"\b(Scope|ErrorPolicy|Ties|OnUnknown|LateRows)\b")
"""Annotations of arguments that choose a member of an enumeration."""

CHOOSING: dict[str, Callable[[Path, Any], Any]] = {
    "create.scope": lambda folder, value: created(folder, scope=value).schema.scope,
    "create.on_error": lambda folder, value: created(folder, on_error=value).schema.on_error,
    "create.ties": lambda folder, value: (
        created(folder, sequence_by="day", keys=["id"], scope="table", ties=value).schema.ties
    ),
    "create.on_unknown": lambda folder, value: created(folder, on_unknown=value).schema.on_unknown,
    "upsert.late_rows": lambda folder, value: upsert(folder, late_rows=value),
}
TEXTS = {"scope": "arrival", "late_rows": "apply", "ties": "first"}


def created(folder: Path, **how: Any) -> Table:
    how = {"keys": ["id"], "scope": "arrival", **how}
    return Table.create(str(folder / "chosen"), ROWS.schema, **how)


def test_each_argument_that_chooses_is_tried() -> None:
    methods = inspect.getmembers(Table, lambda member: callable(member))
    found = {
        f"{name}.{parameter.name}"
        for name, method in methods
        if not name.startswith("_")
        for parameter in inspect.signature(method).parameters.values()
        if CHOICES.search(str(parameter.annotation))
    }
    assert found == CHOOSING.keys()


@pytest.mark.parametrize("argument", CHOOSING)
def test_a_text_chooses(tmp_path: Path, argument: str) -> None:
    name = argument.partition(".")[2]
    text = TEXTS.get(name, "quarantine")
    chosen = CHOOSING[argument](tmp_path, text)
    assert name == "late_rows" or chosen.value == text
    with pytest.raises(OptionError, match=r"expects a member of .* or one of") as caught:
        CHOOSING[argument](tmp_path / "other", "no such")
    assert caught.value.fields["option"] == name
