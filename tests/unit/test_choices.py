"""Options that choose: one way to say a value, and what goes with what."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.changelog.read import Deduplication


def write(**given: str) -> WriteOptions:
    return WriteOptions.parse({"path": "/lake", **given})


def read(**given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/lake", **given})


def test_a_choice_is_matched_as_names_of_options_are() -> None:
    for text in ("partial-update", "Partial_Update", "partialUpdate"):
        assert write(mergeEngine=text).engine == MergeEngine(Engine.PARTIAL_UPDATE)
    for text in ("netChanges", "net-changes", "NET_CHANGES"):
        assert read(deduplicationMode=text).deduplication is Deduplication.NET_CHANGES
    assert write(sequenceScope="Epoch").scope is Scope.EPOCH
    with pytest.raises(OptionError, match="expects one of table, epoch, found 'arrival'"):
        write(sequenceScope="arrival")


def test_a_rule_is_named_with_its_column() -> None:
    options = {"mergeEngine": "aggregation", "aggregate.n": "LAST-NON-NULL"}
    engine = write(**options).engine
    assert engine == MergeEngine(Engine.AGGREGATION, {"n": Rule.LAST})
    assert str(engine) == "aggregation aggregate.n=last_non_null"
    with pytest.raises(OptionError, match=r"'aggregate\.n' expects one of .*, found 'su'") as error:
        write(**{**options, "aggregate.n": "su"})
    assert error.value.hint == "Did you mean 'sum'?"


@pytest.mark.parametrize(
    ("parse", "options", "one", "other"),
    [
        (write, {"aggregate.n": "sum"}, "aggregate.n", "mergeEngine"),
        (write, {"sequenceBy.n": "m", "mergeEngine": "aggregation"}, "sequenceBy.n", "mergeEngine"),
        (write, {"columnList": "a", "exceptColumnList": "b"}, "columnList", "exceptColumnList"),
        (
            read,
            {"emitUnchanged": "true", "deduplicationMode": "netChanges"},
            "emitUnchanged",
            "deduplicationMode=netChanges",
        ),
        (read, {"versionAsOf": "1", "timestampAsOf": "2"}, "versionAsOf", "timestampAsOf"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_options_that_contradict_each_other_are_refused(
    parse: Callable[..., object], options: Mapping[str, str], one: str, other: str
) -> None:
    with pytest.raises(OptionError, match=f"'{one}' and '{other}.* contradict") as error:
        parse(**options)
    assert error.value.fields["option"] == one
    assert error.value.hint


def test_a_storage_error_is_caught_where_object_storage_is_not_installed() -> None:
    code = """
import sys
sys.modules["obstore"] = None
from spark_upsert.errors import StorageError
from spark_upsert.store.open import open_store
try:
    open_store("/proc/upsertflow/table").put("data/x", b"")
except StorageError as error:
    print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("STORAGE\n", "")
