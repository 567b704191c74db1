"""One door for conversions of user data: casts elsewhere are of our own columns, and listed."""

from __future__ import annotations

import ast

import pytest

from tools.casts import casts, named

SPARKS = "a cast of Spark's own, in a plan of Spark"
BYTES = "bytes in another layout, of which nothing can be lost"
CHECKED = "numbers whose range was looked at a line before"
COUNTS = "our own counts"
WIDER = "into a wider type of the same kind"
STORED = "columns as they are stored, whose values were checked by the write"
SHOWN = "into the text that a person is shown"

OWN = {
    "table.changelog.read:_change_columns": (1, "the times of our own commits"),
    "cli.tables:_to_values": (1, SHOWN),
    "flow.graph:_fixed_codes": (1, "dates in the unit that is hashed; not stored"),
    "table.index.index:_with_bridge": (1, STORED),
    "table.index.index:rows_at": (2, STORED),
    "table.log.properties:decode_mark": (1, WIDER),
    "delta.publish:_describe_difference": (
        1,
        "a twin's columns, held against the table's value by value",
    ),
    "delta.checkpoints:_member": (1, "our own actions, or others' as their log has them"),
    "delta.parquet_files:in_columns": (1, WIDER),
    "core.keys:_equal": (2, WIDER),
    "core.keys:_as_lists": (1, "maps as the lists that they are"),
    "core.keys:fixed_words": (1, "truth values as 0 and 1"),
    "payloads.avro:AvroDecoder._decode_block": (1, "values that our reader has checked"),
    "payloads.logical_types:decode_base64": (2, BYTES),
    "payloads.schema_registry:ConfluentDecoder._schema_id_errors": (1, SHOWN),
    "payloads.schema_registry:header_ids": (1, BYTES),
    "payloads.logical_types:natural_wire": (1, "Avro's timestamps, which our reader has checked"),
    "payloads.json:JsonDecoder._decode_block": (1, "values that our reader has checked"),
    "payloads.json:_lines": (1, BYTES),
    "payloads.placeholders:Placeholder._find_in_maps": (1, "maps as the lists that they are"),
    "payloads.placeholders:_as_numbers": (2, "numbers that are compared, and not stored"),
    "payloads.placeholders:_equal_any": (1, BYTES),
    "payloads.decoder:RawDecoder.decode": (1, BYTES),
    "payloads.decoder:as_texts": (2, "bytes as text, where Arrow checks that it is UTF-8"),
    "pyspark_upsertflow.flow:_compile": (1, SPARKS),
    "pyspark_upsertflow.flow:_union_sources": (1, SPARKS),
    "pyspark_upsertflow.flow:_select_value": (2, SPARKS),
    "pyspark_upsertflow.flow:_wake_rows": (1, SPARKS),
    "pyspark_upsertflow.readers:MetadataReader.read": (1, "our own metadata"),
    "pyspark_upsertflow.readers:_cast_batches": (1, STORED),
    "routed.park_staged:_iter_batches": (1, STORED),
    "routed.router:_encode_column": (1, "a dictionary as its values"),
    "routed.router:_texts": (2, "into the text that names a table"),
    "routed.replay:_conform": (1, STORED),
    "table.state.fold:_Groups._aggregate": (1, "the type that Arrow's aggregate widened"),
    "table.state.snapshot:_standing": (1, "epochs"),
    "table.run.format:BlockSink.write": (1, "a buffer of Python"),
    "table.run.rows:Rows._adapt": (1, WIDER),
    "plan.functions:<module>": (2, "CEIL and FLOOR of floats; of decimals they are the door's"),
    "task.accumulators:Average.lift": (1, COUNTS),
    "task.accumulators:Average.lower": (1, COUNTS),
    "task.accumulators:Count.lift": (1, COUNTS),
    "task.accumulators:Extreme.lower": (2, "back into the type that the words came from"),
    "task.accumulators:FloatSum.lift": (1, WIDER),
    "plan.join_keys:canonical": (1, "back into the type that the words came from"),
    "table.write.commands:_quarantine_columns": (1, BYTES),
    "table.write.commands:_raw_identity": (1, BYTES),
    "envelopes.changelog:ChangelogEnvelope._reasons": (1, SHOWN),
    "envelopes.debezium_records:_RecordReader.read": (1, BYTES),
    "envelopes.inferred_schema:infer_options": (1, BYTES),
    "envelopes.kafka:KafkaEnvelope.commands": (1, BYTES),
    "table.write.write_set:WriteSet._without_late": (1, STORED),
    "views.group_rows:_aggregate_column": (1, COUNTS),
    "views.grouping:_shifted": (1, CHECKED),
    "views.grouping:round_floats": (3, "whole doubles within the digits, and wider decimals"),
    "plan.join_keys:_plain": (1, BYTES),
}
"""Where Arrow casts or rounds outside of the door: how often, and why that is safe."""


def test_every_cast_outside_of_the_door_is_of_our_own_columns() -> None:
    found = casts()
    extra = [name for name, count in found.items() if count > OWN.get(name, (0, ""))[0]]
    assert not extra, (
        f"Arrow casts or rounds in {', '.join(extra)}, unchecked. Take `convert`, `try_convert` or "
        "`round_decimals` of spark_upsert.core.casts for what came from outside; a cast of our own "
        "columns is listed here, with the reason why it is safe."
    )
    gone = [name for name, (count, _) in OWN.items() if found.get(name, 0) < count]
    assert not gone, f"{', '.join(gone)} casts less often: correct the list."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(column):\n    return column.cast(kind)", ["f"]),
        ("class C:\n    def f(self):\n        return pc.round(x, 1)", ["C.f"]),
        ("FUNCTIONS = {'CEIL': whole(pc.ceil)}", ["<module>"]),
        ("def f(texts):\n    return pc.strptime(texts, '%Y', 's')", ["f"]),
        ("def f(frame):\n    return pa.Table.from_pandas(frame, safe=False)", ["f"]),
        ("def f(column):\n    return convert(column, kind)", []),
    ],
)
def test_a_cast_is_seen_and_the_door_is_none(text: str, names: list[str]) -> None:
    assert list(named(ast.parse(text))) == names
