"""Options of writes into many tables: each table is told what is said of it, or it is an error."""

from __future__ import annotations

import pickle
import random
from fnmatch import fnmatchcase

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.routed import RoutedOptions, is_routed_write
from spark_upsert.options.write import WriteOptions

PATH = {"path": "/lake/{db}.{table}"}


BAD_OPTIONS = {
    "a name that is near": ({"creatTables": "false"}, "Did you mean 'createTables'?"),
    "an option of reads": ({"versionAsOf": "1"}, "belongs to reads only"),
    "a truth value": ({"createTables": "no"}, "'true' or 'false'"),
    "no tables at all": ({"tablesMax": "0"}, "at least 1"),
    "too many threads": ({"commitThreads": "1000"}, "from 1 to 256"),
    "what becomes of a table": ({"onTableError": "skip"}, "one of fail, park"),
    "half a transaction": ({"txnAppId": "a"}, "'txnVersion' is required"),
    "no pattern": ({"table.keys": "id"}, "names no table and option"),
    "an empty pattern": ({"table..keys": "id"}, "names no table and option"),
    "a pattern alone": ({"table.orders.": "id"}, "names no table and option"),
    "a name of a table's option": ({"table.a.b.kyes": "id"}, "Did you mean 'table.a.b.keys'?"),
    "a value of a table's option": ({"table.a.b.ties": "both"}, "table 'a.b': option 'ties'"),
    "the path of a table": ({"table.a.b.path": "/x"}, "'path' is of the whole write"),
    "the storage of a table": ({"table.a.storage.region": "x"}, "is of the whole write"),
    "a transaction of a table": ({"table.a.b.txnAppId": "x"}, "is of the whole write"),
    "a routed option of a table": ({"table.a.b.tablesMax": "1"}, "is of the whole write"),
    "two that contradict": (
        {"columnList": "a", "exceptColumnList": "b"},
        "'columnList' and 'exceptColumnList' contradict each other",
    ),
    "two that contradict in a table": (
        {"table.a.*.columnList": "a", "table.a.b.exceptColumnList": "b"},
        "table 'a.b': options 'columnList' and 'exceptColumnList'",
    ),
    "a bad value of all tables": ({"hashPrefix": "x"}, "'hashPrefix' expects"),
}


@pytest.mark.parametrize(("given", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_p5_an_option_that_nobody_understands_is_refused(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        RoutedOptions.parse({**PATH, **given})
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["createTables", "onTableError", "table.orders.keys"])
def test_p5_an_option_of_many_tables_needs_a_column_in_the_path(name: str) -> None:
    given = {"path": "/lake/orders", name: "false"}
    assert not is_routed_write(given)
    with pytest.raises(OptionError, match="'path' names no column"):
        WriteOptions.parse(given)


def test_p5_a_write_without_a_path_is_refused() -> None:
    with pytest.raises(OptionError, match="'path' is required"):
        RoutedOptions.parse({"keys": "id"})


TOLD = {
    "all": ({"keys": "id"}, "id"),
    "a pattern before all": ({"keys": "id", "table.a.*.keys": "x"}, "x"),
    "the longer pattern": ({"table.*.keys": "id", "table.a.*.keys": "x"}, "x"),
    "a name before a pattern": ({"table.a.b*.keys": "id", "table.a.b.keys": "x"}, "x"),
    "one character": ({"table.a.?.keys": "x"}, "x"),
    "some characters": ({"table.a.[bc].keys": "x"}, "x"),
    "none of some characters": ({"table.a.[!b].keys": "id"}, ""),
    "another table": ({"table.a.c.keys": "id"}, ""),
    "not a part of the name": ({"table.a.keys": "id", "table.b.keys": "id"}, ""),
    "without case": ({"TABLE.A.B.Keys": "x"}, "x"),
    "taken back": ({"keys": "id", "table.a.b.keys": ""}, ""),
    "two that say the same": ({"table.a.*.keys": "x", "table.*.b.keys": "x"}, "x"),
    "spelt otherwise": ({"table.a.*.merge-schema": "true", "table.a.b.keys": "x"}, "x"),
}


@pytest.mark.parametrize(("given", "keys"), TOLD.values(), ids=TOLD)
def test_p5_a_table_is_told_what_says_most_about_its_name(given: dict[str, str], keys: str) -> None:
    found = RoutedOptions.parse({**PATH, **given}).of("A.b", "A.b")
    assert ",".join(found.keys) == keys
    assert found.path == "/lake/A.b"


def test_p5_two_patterns_that_are_alike_and_disagree_are_named() -> None:
    found = RoutedOptions.parse({**PATH, "table.a.*.keys": "x", "table.*.b.keys": "y"})
    assert found.of("a.c", "a.c").keys == ("x",)
    with pytest.raises(OptionError) as caught:
        found.of("a.b", "a.b")
    for part in ("'table.a.*.keys'", "'table.*.b.keys'", "'a.b'"):
        assert part in caught.value.message
    assert "table.a.b.keys" in caught.value.hint


def test_p5_a_family_of_options_is_told_column_by_column() -> None:
    given = {
        **PATH,
        "mergeEngine": "aggregation",
        "aggregate.a_b": "sum",
        "aggregate.ab": "max",
        "table.shop.orders.aggregate.a_b": "min",
        "table.shop.orders.sequenceBy": "v",
    }
    engine = RoutedOptions.parse(given).of("shop.orders", "shop.orders").engine
    assert engine is not None
    assert {name: rule.value for name, rule in engine.rules.items()} == {"a_b": "min", "ab": "max"}


def test_p5_a_table_told_of_columns_is_not_told_otherwise_with_all() -> None:
    given = {**PATH, "exceptColumnList": "a", "table.a.b.columnList": "b,c"}
    found = RoutedOptions.parse(given)
    assert found.of("a.b", "a.b").columns == ("b", "c")
    assert found.of("a.c", "a.c").except_columns == ("a",)


def test_p5_a_table_told_of_nulls_is_not_told_otherwise_with_all() -> None:
    given = {
        **PATH,
        "ignoreNullUpdates": "true",
        "onUnknown": "null",
        "table.a.b.ignoreNullUpdatesColumnList": "b,c",
        "table.a.c.ignoreNullUpdatesExceptColumnList": "d",
        "table.a.c.onUnknown": "quarantine",
    }
    parsed = RoutedOptions.parse(given)
    tables = [parsed.of(name, name) for name in ("a.a", "a.b", "a.c")]
    envelopes = [table.envelope for table in tables]
    assert [options.ignores_nulls for options in envelopes] == [True, False, False]
    assert [options.ignore_nulls_in for options in envelopes] == [(), ("b", "c"), ()]
    assert [options.ignore_nulls_except for options in envelopes] == [(), (), ("d",)]
    policies = [table.on_unknown and table.on_unknown.value for table in tables]
    assert policies == ["null", "null", "quarantine"]


def test_p5_a_table_lies_at_its_folder_and_has_nothing_of_the_whole_write() -> None:
    given = {
        "path": "s3://b/lake/{topic}",
        "storage.region": "eu",
        "checkpointLocation": "/c",
        "allowMissingBatches": "true",
    }
    found = RoutedOptions.parse(given)
    table = found.of("größe", "gr=C3=B6=C3=9Fe")
    assert table.path == "s3://b/lake/gr=C3=B6=C3=9Fe"
    assert table.storage == found.storage == {"region": "eu"}
    assert (table.checkpoint, table.allow_missing_batches) == (None, False)
    assert (found.checkpoint, found.allow_missing_batches) == ("/c", True)


def test_p5_a_pattern_that_matches_nothing_is_told() -> None:
    given = {**PATH, "table.a.*.keys": "x", "table.c.d.keys": "x", "table.c.d.ties": "last"}
    found = RoutedOptions.parse(given)
    assert found.unmatched(["a.b"]) == ("c.d",)
    assert found.unmatched(["a.b", "C.D"]) == ()
    assert found.unmatched([]) == ("a.*", "c.d")


@pytest.mark.parametrize("seed", range(3))
def test_p5_each_table_is_told_what_a_look_at_all_patterns_finds(seed: int) -> None:
    dice = random.Random(seed)
    patterns = ["*", "a*", "*b", "a.b", "a.?", "?.b", "a.*", "**", "b.a", "aa.b"]
    checked = 0
    for _ in range(60):
        told = {pattern: dice.choice("xy") for pattern in dice.sample(patterns, 3)}
        given = {f"table.{pattern}.keys": text for pattern, text in told.items()}
        found = pickle.loads(pickle.dumps(RoutedOptions.parse({**PATH, **given, "keys": "all"})))
        for name in ("a.b", "A.a", "b.a", "b.b", "aa.b"):
            about = {p: keys for p, keys in told.items() if fnmatchcase(name.lower(), p)}
            weight = {p: 99 if p == name.lower() else len(p.strip("*?")) for p in about}
            best = {about[p] for p in about if weight[p] == max(weight.values())}
            if len(best) > 1:
                with pytest.raises(OptionError, match="different things about the table"):
                    found.of(name, name)
                continue
            checked += 1
            assert found.of(name, name).keys == tuple(best or {"all"})
    assert checked > 100
