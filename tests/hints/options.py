"""Hints of options that are not right: each is a change of the options as they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.options.inputs import TABLE, ReadPlan
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.routed import RoutedOptions, is_routed_write
from spark_upsert.options.views import ViewOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows

Change = Mapping[str, str | None]
"""Options that are added; those that are None are dropped."""

Parse = Callable[[Mapping[str, str]], Any]


def writes(given: Mapping[str, str]) -> None:
    if is_routed_write(given):
        RoutedOptions.parse(given).of("shop.orders", "shop.orders")
    else:
        WriteOptions.parse(given)


def reads(given: Mapping[str, str]) -> None:
    plan = ReadPlan.parse(given)
    for each in plan.inputs:
        if each.format == TABLE:
            each.of_table()


def reads_inputs(given: Mapping[str, str]) -> None:
    reads(given)


def writes_to_many(given: Mapping[str, str]) -> None:
    writes(given)


def reads_batch(given: Mapping[str, str]) -> None:
    ReadOptions.parse(given).require_batch()


def streams(given: Mapping[str, str]) -> None:
    ReadOptions.parse(given).require_stream()


READS = {"path": "/lake/orders"}
WRITES = {"path": "/lake/orders", "keys": "id"}
PYTHON = {"inputs": "a", "input.a.path": "/a", "input.a.format": "python:rows"}

BEGIN: Mapping[Parse, Mapping[str, str]] = {
    writes: WRITES,
    writes_to_many: {"path": "/lake/{topic}", "keys": "id"},
    reads: READS,
    reads_inputs: {},
    reads_batch: READS,
    streams: READS,
}
"""What is given, beside what a case changes of it."""


def changed(given: Mapping[str, str], change: Change) -> dict[str, str]:
    """Return the options with a change."""
    return {name: text for name, text in {**given, **change}.items() if text is not None}


def options(site: str, parse: Parse, wrong: Change, advice: Mapping[str, Change]) -> None:
    """Follow a hint about options.

    Parameters
    ----------
    wrong : mapping of str to str or None
        A change that is refused.
    advice : mapping of str to mapping
        By what is quoted of the hint: what is changed then, and works.
    """

    @follows(site)
    def _(told: Told) -> None:
        given = changed(BEGIN[parse], wrong)
        with told:
            parse(given)
        for quoted, change in advice.items():
            told(quoted)
            parse(changed(given, change))


CASES: tuple[tuple[str, Parse, Change, Mapping[str, Change]], ...] = (
    # Names of options.
    (
        "options.declare:Options.__init__",
        writes,
        {"sequenceBy": "n", "sequence_by": "m"},
        {"give it once": {"sequence_by": None}},
    ),
    (
        "options.declare:_unknown",
        writes,
        {"createTables": "false"},
        {
            "write columns in braces, as in '/lake/{topic}'": {"path": "/lake/{topic}"},
            "drop the option": {"createTables": None},
        },
    ),
    (
        "options.declare:_unknown:2",
        writes,
        {"versionAsOf": "3"},
        {"drop it here": {"versionAsOf": None}},
    ),
    (
        "errors:OptionError.conflict",
        reads,
        {"versionAsOf": "3", "timestampAsOf": "2026-01-31"},
        {"give one of them": {"versionAsOf": None}},
    ),
    (
        "errors:OptionError.missing",
        writes,
        {"txnAppId": "nightly"},
        {"give txn_version": {"txnVersion": "7"}},
    ),
    (
        "errors:OptionError.invalid",
        reads,
        {"splits": "many"},
        {"give 'splits' as a whole number of at least 1": {"splits": "1"}},
    ),
    (
        "options.spark:_several_paths",
        reads_inputs,
        {"paths": '["/lake/a", "/lake/b"]'},
        {
            '.option("inputs", "a,b"), .option("input.a.path", ...), .option("input.b.path"': {
                "paths": None,
                "inputs": "a,b",
                "input.a.path": "/lake/a",
                "input.b.path": "/lake/b",
            }
        },
    ),
    (
        "options.spark:missing_path",
        reads_inputs,
        {},
        {'add .option("path", ...)': {"path": "/lake/orders"}},
    ),
    # Writes.
    (
        "options.write:EnvelopeOptions.parse",
        writes,
        {"valueFormat": "json", "valueSchema": "id INT"},
        {
            "add .option('envelope', 'kafka')": {"envelope": "kafka"},
            "'debezium' for change events in them": {"envelope": "debezium"},
            "drop it": {"valueFormat": None, "valueSchema": None},
        },
    ),
    (
        "options.write:EnvelopeOptions.parse:2",
        writes,
        {"envelope": "debezium", "timeUnit": "millis"},
        {
            "add 'valueFormat' and 'valueSchema'": {"valueFormat": "json", "valueSchema": "id INT"},
            "drop it": {"timeUnit": None},
        },
    ),
    (
        "options.write:EnvelopeOptions.parse:3",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "json",
            "valueSchema": "id INT",
            "onTruncate": "ignore",
        },
        {
            "add .option('envelope', 'debezium')": {"envelope": "debezium"},
            "drop it": {"onTruncate": None},
        },
    ),
    (
        "options.write:EnvelopeOptions.parse:4",
        writes,
        {"envelope": "changelog", "unavailableValuePlaceholder": "n/a"},
        {"drop it": {"unavailableValuePlaceholder": None}},
    ),
    (
        "options.write:EnvelopeOptions.parse:5",
        writes,
        {"envelope": "changelog", "applyAsDeletes": "gone"},
        {"drop it": {"applyAsDeletes": None}},
    ),
    (
        "options.write:EnvelopeOptions.parse:6",
        writes,
        {"schemaRegistry.url": "http://r:8081"},
        {
            "use the envelope 'kafka' or 'debezium' with a format 'avro-confluent'": {
                "envelope": "kafka",
                "valueFormat": "avro-confluent",
            },
            "drop the option": {"schemaRegistry.url": None},
        },
    ),
    (
        "options.write:_refuse_what_schemas_say",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "json",
            "valueSchema": "id INT",
            "valueSubject": "orders-value",
        },
        {
            "drop it": {"valueSubject": None},
            "use a Confluent format with 'schemaRegistry.url' and without 'valueSchema'": {
                "valueFormat": "json-confluent",
                "schemaRegistry.url": "http://r:8081",
                "valueSchema": None,
            },
        },
    ),
    (
        "options.write:_refuse_what_schemas_say:2",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "json-confluent",
            "schemaRegistry.url": "http://r:8081",
            "valueSchemaId": "3",
        },
        {
            "drop it": {"valueSchemaId": None},
            "give that schema as 'valueSchema'": {
                "valueSchema": '{"type": "object", "properties": {"id": {"type": "integer"}}}',
                "schemaRegistry.url": None,
            },
        },
    ),
    (
        "options.write:_refuse_what_schemas_say:3",
        writes,
        {
            "envelope": "debezium",
            "valueFormat": "json",
            "valueSchema": "inline",
            "timeUnit": "millis",
        },
        {"drop it": {"timeUnit": None}},
    ),
    (
        "options.write:_refuse_what_schemas_say:4",
        writes,
        {
            "envelope": "debezium",
            "valueFormat": "json",
            "valueSchema": "inline",
            "timeUnit.at": "millis",
        },
        {"drop it": {"timeUnit.at": None}},
    ),
    (
        "options.write:_on_error",
        writes,
        {"onError": "fail", "errorColumn": "why"},
        {"use onError=inline": {"onError": "inline"}, "drop it": {"errorColumn": None}},
    ),
    (
        "options.write:no_aggregate_of_changes",
        writes,
        {"envelope": "changelog", "mergeEngine": "aggregation"},
        {
            "use mergeEngine=deduplicate": {"mergeEngine": "deduplicate"},
            "write without 'envelope'": {"envelope": None},
        },
    ),
    (
        "options.views:ViewOptions.put_off",
        writes,
        {"deferred": "yes"},
        {"drop it": {"deferred": None}},
    ),
    (
        "options.write:_source",
        writes,
        {"envelope": "kafka", "valueFormat": "avro", "valueSchema": "inline"},
        {
            "use valueFormat=json": {"valueFormat": "json"},
            "give the schema": {
                "valueSchema": '{"type": "record", "name": "r", "fields": '
                '[{"name": "id", "type": "int"}]}'
            },
        },
    ),
    (
        "options.write:_source:2",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "json",
            "valueSchema": "registry",
            "schemaRegistry.url": "http://r:8081",
        },
        {
            "use valueFormat=avro-confluent": {"valueFormat": "avro-confluent"},
            "json-confluent": {"valueFormat": "json-confluent"},
        },
    ),
    (
        "options.write:registry_settings",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "avro-confluent",
            "valueSchema": '"int"',
            "schemaRegistry.user": "me",
        },
        {
            "give 'schemaRegistry.url'": {
                "schemaRegistry.url": "http://r:8081",
                "valueSchema": None,
            },
            "drop it": {"schemaRegistry.user": None},
        },
    ),
    (
        "options.write:registry_settings:2",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "avro-confluent",
            "schemaRegistry.url": "http://me:hush@r:8081",
        },
        {
            "give 'schemaRegistry.user' and 'schemaRegistry.password'": {
                "schemaRegistry.url": "http://r:8081",
                "schemaRegistry.user": "me",
                "schemaRegistry.password": "hush",
            }
        },
    ),
    (
        "options.write:_headers",
        writes,
        {
            "envelope": "kafka",
            "valueFormat": "avro-confluent",
            "schemaRegistry.url": "http://r:8081",
            "schemaRegistry.headers": "A",
        },
        {
            "write 'Name: value'": {"schemaRegistry.headers": "A: value"},
            "each header in a line of its own": {"schemaRegistry.headers": "A: 1\nB: 2"},
        },
    ),
    # Writes into many tables.
    (
        "options.routed:RoutedOptions.parse",
        writes_to_many,
        {"deferred": "{}"},
        {"drop it": {"deferred": None}},
    ),
    (
        "options.routed:RoutedOptions.parse:2",
        writes_to_many,
        {"operation": "delete"},
        {
            "drop it, and mark deletes by 'applyAsDeletes'": {
                "operation": None,
                "applyAsDeletes": "gone",
            }
        },
    ),
    (
        "options.write:_refuse_beside_delete",
        writes,
        {"operation": "delete", "sequenceBy": "n"},
        {
            "drop 'sequenceBy'": {"sequenceBy": None},
            "mark deletes among other rows by 'applyAsDeletes', without 'operation'": {
                "operation": None,
                "applyAsDeletes": "gone",
            },
        },
    ),
    (
        "options.routed:_told",
        writes_to_many,
        {"table.shop.orders.createTables": "false"},
        {
            "give 'createTables' without 'table.shop.orders.'": {
                "table.shop.orders.createTables": None,
                "createTables": "false",
            }
        },
    ),
    (
        "options.routed:_told:2",
        writes_to_many,
        {"table.shop.*.sequenzBy": "n"},
        {
            "Did you mean 'table.shop.*.sequenceBy'": {
                "table.shop.*.sequenzBy": None,
                "table.shop.*.sequenceBy": "n",
            }
        },
    ),
    (
        "options.routed:_told:2",
        writes_to_many,
        {"table.qqq": "n"},
        {"write for example 'table.shop.*.keys'": {"table.qqq": None, "table.shop.*.keys": "id"}},
    ),
    (
        "options.routed:_strongest",
        writes_to_many,
        {
            "table.shop.*.keys": "a",
            "table.*rders.keys": "b",
        },
        {
            "add 'table.shop.orders.keys'": {"table.shop.orders.keys": "id"},
            "change one of the two": {"table.*rders.keys": "a"},
        },
    ),
    # Reads of one table.
    (
        "options.read:ReadOptions.parse",
        reads_batch,
        {"onError": "null"},
        {
            "drop it": {"onError": None},
            "give it beside 'plan'": {"onError": None},
        },
    ),
    (
        "options.read:refuse_of_changes",
        reads_batch,
        {"computeUpdates": "false"},
        {
            "add read_change_feed=true": {"readChangeFeed": "true"},
            "drop the option": {"computeUpdates": None},
        },
    ),
    (
        "options.read:refuse_of_changes",
        reads_batch,
        {"readHistory": "true", "emitUnchanged": "true"},
        {"drop the option, or emitUnchanged": {"emitUnchanged": None}},
    ),
    (
        "options.read:refuse_wrong_bounds",
        reads_batch,
        {"readChangeFeed": "true", "startingVersion": "3", "endingVersion": "2"},
        {
            "let 'endingVersion' be the start or later": {"endingVersion": "3"},
            "drop it": {"endingVersion": None},
        },
    ),
    (
        "options.read:refuse_wrong_bounds:2",
        reads_batch,
        {"readChangeFeed": "true", "startingTimestamp": "7", "endingTimestamp": "6"},
        {
            "let 'endingTimestamp' be the start or later": {"endingTimestamp": "7"},
            "drop it": {"endingTimestamp": None},
        },
    ),
    (
        "options.read:refuse_wrong_bounds:3",
        reads_batch,
        {"readChangeFeed": "true", "startingVersion": "1", "endingBoundInclusive": "false"},
        {
            "give 'endingVersion'": {"endingVersion": "3"},
            "'endingTimestamp' beside it": {"endingTimestamp": "2026-01-31"},
            "drop it": {"endingBoundInclusive": None},
        },
    ),
    (
        "options.read:ReadOptions.require_batch",
        reads_batch,
        {"startingVersion": "3"},
        {
            "add .option('readChangeFeed', 'true')": {"readChangeFeed": "true"},
            "use 'versionAsOf'": {"startingVersion": None, "versionAsOf": "3"},
        },
    ),
    (
        "options.read:ReadOptions.require_batch:2",
        reads_batch,
        {"readChangeFeed": "true", "startingVersion": "1", "versionAsOf": "3"},
        {"use 'startingVersion' and 'endingVersion'": {"versionAsOf": None, "endingVersion": "3"}},
    ),
    (
        "options.read:ReadOptions.require_stream",
        streams,
        {"versionAsOf": "3"},
        {
            "'startingVersion' to choose where the stream begins": {
                "versionAsOf": None,
                "startingVersion": "3",
            }
        },
    ),
    (
        "options.read:ReadOptions.require_stream",
        streams,
        {"metadata": "epochs"},
        {"'startingVersion' to choose": {"metadata": None, "startingVersion": "3"}},
    ),
    (
        "options.read:ReadOptions.require_stream:2",
        streams,
        {"readChangeFeed": "true", "ignoreDeletes": "true"},
        {
            "drop one of them": {"ignoreDeletes": None},
            "filter with where(\"_change_type != 'delete'\")": {"ignoreDeletes": None},
        },
    ),
    (
        "options.read:refuse_of_new_values",
        streams,
        {"computeUpdates": "false"},
        {
            "add .option('readChangeFeed', 'true')": {"readChangeFeed": "true"},
            "drop the option": {"computeUpdates": None},
        },
    ),
    (
        "options.read:ReadOptions._refuse_position",
        streams,
        {"startingPosition": "{}"},
        {
            "drop it": {"startingPosition": None},
            "use 'startingVersion'": {"startingPosition": None, "startingVersion": "3"},
        },
    ),
    (
        "options.read:_deduplication",
        reads,
        {"emitUnchanged": "true", "deduplicationMode": "netChanges"},
        {
            "drop 'emitUnchanged'": {"emitUnchanged": None},
            "use deduplicationMode=none": {"deduplicationMode": "none"},
        },
    ),
    (
        "options.read:of_streams_only",
        reads_batch,
        {"maxRowsPerTrigger": "10"},
        {"drop the option": {"maxRowsPerTrigger": None}},
    ),
    (
        "options.read:_columns",
        reads,
        {"columns": "id,ID"},
        {"name each column once": {"columns": "id"}},
    ),
    # Reads of several inputs.
    (
        "options.read:QueryOptions._require_consistent",
        reads,
        {"minRowsPerTrigger": "9", "maxRowsPerTrigger": "5"},
        {"give minRowsPerTrigger=5 or less": {"minRowsPerTrigger": "5"}},
    ),
    (
        "options.read:QueryOptions._require_consistent:2",
        reads_inputs,
        {
            "inputs": "a",
            "input.a.path": "/a",
            "merge": "concat",
            "interleaveSeed": "3",
        },
        {
            "drop 'interleaveSeed'": {"interleaveSeed": None},
            "use merge=interleave": {"merge": "interleave"},
        },
    ),
    (
        "options.read:QueryOptions._require_consistent:3",
        reads_inputs,
        {"inputs": "a", "input.a.path": "/a", "mergeColumns": "_merge_seq"},
        {
            "add merge=concat": {"merge": "concat"},
            "merge=roundrobin": {"merge": "roundrobin"},
            "'interleaveSeed'": {"interleaveSeed": "3"},
            "drop '_merge_seq'": {"mergeColumns": None},
        },
    ),
    (
        "options.read:QueryOptions._require_consistent:4",
        reads_inputs,
        {
            "inputs": "a",
            "input.a.path": "/a",
            "merge": "concat",
            "maxBytesPerTrigger": "3",
        },
        {
            "give 'maxRowsPerTrigger' instead": {
                "maxBytesPerTrigger": None,
                "maxRowsPerTrigger": "3",
            }
        },
    ),
    (
        "options.read:QueryOptions._require_consistent:5",
        reads_inputs,
        {
            "inputs": "a",
            "input.a.path": "/a",
            "merge": "concat",
            "autoPriority": "true",
        },
        {
            "drop the option": {"autoPriority": None},
            "leave out 'merge' and 'interleaveSeed'": {"merge": None},
        },
    ),
    (
        "options.inputs:InputOptions._require_of_table:2",
        reads_inputs,
        {"inputs": "a,b", "input.a.path": "/a"},
        {"give 'input.b.path'": {"input.b.path": "/b"}, "drop 'b' from 'inputs'": {"inputs": "a"}},
    ),
    (
        "options.inputs:InputOptions._require_of_table",
        reads_inputs,
        {"inputs": "a", "input.a.path": "/a", "input.a.maxRowsPerTrigger": "5"},
        {
            "give 'maxRowsPerTrigger' without 'input.a.'": {
                "input.a.maxRowsPerTrigger": None,
                "maxRowsPerTrigger": "5",
            }
        },
    ),
    ("options.inputs:ReadPlan.parse", reads, {"deferred": "true"}, {"drop it": {"deferred": None}}),
    (
        "options.inputs:ReadPlan.parse:2",
        reads,
        {"inputsPattern": "*", "allowInputRemoval": "true"},
        {"give failOnDataLoss=false": {"failOnDataLoss": "false", "allowInputRemoval": None}},
    ),
    (
        "options.inputs:ReadPlan.parse:3",
        reads,
        {"inputs": "a"},
        {"drop 'path', and give 'input.a.path'": {"path": None, "input.a.path": "/a"}},
    ),
    (
        "options.inputs:ReadPlan.parse:3",
        reads_inputs,
        {"inputs": "a", "input.a.path": "/a", "metadata": "epochs"},
        {
            "drop 'inputs', and give the 'path' of the table": {
                "inputs": None,
                "input.a.path": None,
                "path": "/a",
            }
        },
    ),
    (
        "options.inputs:_apart",
        reads_inputs,
        {"inputs": "east", "input.path": "/a"},
        {
            "write input.<name>.<option>, such as 'input.east.path'": {
                "input.path": None,
                "input.east.path": "/a",
            }
        },
    ),
    (
        "options.inputs:_refuse_of_tables",
        reads_inputs,
        {**PYTHON, "startingVersion": "3"},
        {
            "drop 'startingVersion'": {"startingVersion": None},
            "if 'a' is a table, 'input.a.format'": {"input.a.format": "upsertflow"},
        },
    ),
    (
        "options.inputs:_refuse_of_tables:2",
        reads_inputs,
        {**PYTHON, "inputs": "a,b", "input.b.path": "/b", "filter": "v = 1"},
        {
            "give 'input.b.filter', for that table alone": {
                "filter": None,
                "input.b.filter": "v = 1",
            },
            "filter behind the read": {"filter": None},
        },
    ),
    (
        "options.inputs:_names",
        reads_inputs,
        {"inputs": "a b", "input.a b.path": "/a b"},
        {
            "give names of letters, digits, '_' and '-', and say by 'input.<name>.path'": {
                "inputs": "a_b",
                "input.a b.path": None,
                "input.a_b.path": "/a b",
            }
        },
    ),
    (
        "options.inputs:_names:2",
        reads_inputs,
        {"inputs": "a,A", "input.a.path": "/a"},
        {"name each input once": {"inputs": "a"}},
    ),
    (
        "options.inputs:_told",
        reads_inputs,
        {"inputs": "east", "input.east.path": "/a", "input.eest.columns": "id"},
        {"Did you mean 'east'": {"input.eest.columns": None}},
    ),
    (
        "options.inputs:_at_one_batch",
        reads,
        {"inputs": "a", "consistent": "true", "allowInputRemoval": "true"},
        {"drop it": {"allowInputRemoval": None}},
    ),
    (
        "options.inputs:_at_one_batch:2",
        reads,
        {"inputs": "a", "consistent": "true", "input.a.consumerId": "me"},
        {"give 'consumerId' without 'input.a.'": {"input.a.consumerId": None, "consumerId": "me"}},
    ),
    (
        "options.inputs:_refuse_of_inputs",
        reads_inputs,
        {"input.a.path": "/a"},
        {"give 'inputs', such as 'inputs' = 'a'": {"inputs": "a"}},
    ),
    (
        "options.inputs:_refuse_without_root",
        reads,
        {"consistent": "true"},
        {"the tables by 'inputsPattern': '*' is all of them": {"inputsPattern": "*"}},
    ),
    (
        "options.inputs:_refuse_without_inputs",
        reads,
        {"merge": "concat"},
        {
            "give 'inputs'": {"path": None, "inputs": "a", "input.a.path": "/a"},
            "drop the option": {"merge": None},
        },
    ),
    (
        "options.inputs:_refuse_priority_of_all",
        reads,
        {"priority": "3"},
        {
            "give 'input.<name>.priority' beside 'inputs'": {
                "priority": None,
                "path": None,
                "inputs": "a",
                "input.a.path": "/a",
                "input.a.priority": "3",
            }
        },
    ),
    (
        "options.inputs:listed_twice",
        reads_inputs,
        {"inputs": "a,b", "input.a.path": "/a", "input.b.path": "/a/"},
        {
            "drop 'b' from 'inputs'": {"inputs": "a", "input.b.path": None},
            "correct its path": {"input.b.path": "/b"},
        },
    ),
    (
        "options.inputs:Pattern.parse",
        reads,
        {"inputsPattern": "**"},
        {
            "write '*' for all tables directly below 'path'": {"inputsPattern": "*"},
            "such as 'region=*/orders'": {"inputsPattern": "region=*/orders"},
        },
    ),
    (
        "options.inputs:DiscoveryOptions.of_named",
        reads,
        {"path": "/lake", "inputs": "a", "consistent": "true", "input.a.path": "/pond/a"},
        {"give the root as 'path', and 'input.a.path' = '/lake/...'": {"input.a.path": "/lake/a"}},
    ),
    (
        "options.inputs:DiscoveryOptions.parse",
        reads,
        {"inputsPattern": "*", "metadata": "epochs"},
        {"drop 'inputsPattern', and give the 'path'": {"inputsPattern": None}},
    ),
    (
        "options.inputs:_refuse_what_is_not_consistent",
        reads,
        {"inputsPattern": "*", "consistent": "true", "versionAsOf": "3"},
        {
            "drop one of them": {"versionAsOf": None},
            "an earlier batch is read by 'asOfBatch'": {"versionAsOf": None, "asOfBatch": "3"},
        },
    ),
    (
        "options.inputs:_refuse_what_is_not_consistent:2",
        reads,
        {"inputsPattern": "*", "consistent": "true", "failOnDataLoss": "false"},
        {"drop one of them": {"failOnDataLoss": None}},
    ),
    (
        "core.merge_engines:MergeEngine.chosen",
        writes,
        {"mergeEngine": "deduplicate", "aggregate.n": "sum"},
        {
            "use mergeEngine=aggregation": {"mergeEngine": "aggregation"},
            "drop the option": {"aggregate.n": None},
        },
    ),
    (
        "table.log.properties:checked:2",
        writes,
        {"backpresure": "true"},
        {"Did you mean 'backpressure'": {"backpresure": None, "backpressure": "true"}},
    ),
)

for _site, _parse, _wrong, _advice in CASES:
    options(_site, _parse, _wrong, _advice)


# Views ------------------------------------------------------------------------------------


def plan_below(folder: Path) -> str:
    path = str(folder / "orders")
    Table.create(path, pa.schema([("id", pa.int64())]), keys=["id"])
    return Plan.of_table(path).filter("id > 0").to_json()


def of_view(site: str, wrong: Change, advice: Mapping[str, Change], *, batch: bool = False) -> None:
    @follows(site)
    def _(told: Told) -> None:
        plan = {"plan": plan_below(told.folder)}

        def parse(given: Mapping[str, str]) -> None:
            parsed = ViewOptions.parse(given)
            parsed.require_batch() if batch else parsed.require_stream()

        given = changed(plan, wrong)
        with told:
            parse(given)
        for quoted, change in advice.items():
            told(quoted)
            parse(changed(given, change))


of_view("options.views:ViewOptions.parse", {"columns": "id"}, {"drop 'columns'": {"columns": None}})
of_view(
    "options.views:ViewOptions.parse:2",
    {"deduplicationMode": "none"},
    {"drop the option": {"deduplicationMode": None}},
)
of_view(
    "options.views:ViewOptions.parse:3",
    {"failOnDataLoss": "false"},
    {
        "drop the option": {"failOnDataLoss": None},
        "consumer_id=... keeps what the query has to read": {
            "failOnDataLoss": None,
            "consumerId": "me",
        },
    },
)
of_view(
    "options.views:ViewOptions.require_batch",
    {"startingVersion": "3"},
    {
        "add read_change_feed=true": {"readChangeFeed": "true"},
        "use 'timestampAsOf'": {"startingVersion": None, "timestampAsOf": "2026-01-31"},
    },
    batch=True,
)
of_view(
    "options.views:ViewOptions.require_stream",
    {"timestampAsOf": "2026-01-31"},
    {
        "'startingTimestamp' to choose": {
            "timestampAsOf": None,
            "startingTimestamp": "2026-01-31",
        }
    },
)
