"""Options that choose: one way to say a value, and what goes with what."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.changelog.render import Deduplication


def write(**given: str) -> WriteOptions:
    return WriteOptions.parse({"path": "/lake", **given})


def read(**given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/lake", **given})


@pytest.mark.parametrize("text", ["partial-update", "Partial_Update", "partialUpdate"])
def test_a_choice_is_matched_as_names_of_options_are(text: str) -> None:
    assert write(mergeEngine=text).engine == MergeEngine(Engine.PARTIAL_UPDATE)


@pytest.mark.parametrize("text", ["netChanges", "net-changes", "NET_CHANGES"])
def test_a_mode_of_changes_is_matched_alike(text: str) -> None:
    assert read(deduplicationMode=text).deduplication is Deduplication.NET_CHANGES


def test_a_scope_is_a_choice_of_two() -> None:
    assert write(sequenceScope="Epoch").scope is Scope.EPOCH
    with pytest.raises(OptionError, match="expects one of table, epoch, found 'arrival'"):
        write(sequenceScope="arrival")


def test_a_rule_is_named_with_its_column() -> None:
    given = {"mergeEngine": "aggregation", "aggregate.n": "LAST-NON-NULL"}
    assert write(**given).engine == MergeEngine(Engine.AGGREGATION, {"n": Rule.LAST})
    with pytest.raises(OptionError, match=r"'aggregate\.n' expects one of .*, found 'su'") as error:
        write(**{**given, "aggregate.n": "su"})
    assert error.value.hint == "Did you mean 'sum'?"


@pytest.mark.parametrize(
    ("given", "one", "other"),
    [
        ({"aggregate.n": "sum"}, "aggregate.n", "mergeEngine"),
        ({"sequenceBy.n": "m", "mergeEngine": "aggregation"}, "sequenceBy.n", "mergeEngine"),
        ({"columnList": "a", "exceptColumnList": "b"}, "columnList", "exceptColumnList"),
    ],
)
def test_options_of_a_write_that_contradict_each_other(
    given: Mapping[str, str], one: str, other: str
) -> None:
    with pytest.raises(OptionError, match="contradict each other") as error:
        write(**given)
    assert (error.value.fields["option"], error.value.fields["other"]) == (one, other)
    assert error.value.hint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"emitUnchanged": "true", "deduplicationMode": "netChanges"},
            "'emitUnchanged' and 'deduplicationMode=netChanges' contradict",
        ),
        ({"versionAsOf": "1", "timestampAsOf": "2"}, "'versionAsOf' and 'timestampAsOf'"),
    ],
)
def test_options_of_a_read_that_contradict_each_other(
    given: Mapping[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read(**given)


def test_an_engine_is_shown_by_the_options_that_ask_for_it() -> None:
    engine = MergeEngine(Engine.AGGREGATION, {"n": Rule.SUM})
    assert str(engine) == "aggregation aggregate.n=sum"


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
