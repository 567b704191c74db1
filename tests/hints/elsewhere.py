"""Hints that are followed where Spark or a server is, and those that no test can follow."""

from __future__ import annotations

ELSEWHERE: dict[str, str] = {
    "cli.tables:consumers": (
        "tests/unit/test_cli.py::test_a_consumer_that_is_not_there_is_told_from_those_that_are"
    ),
    **dict.fromkeys(
        (
            "store.failures:translate",
            "store.failures:translate:5",
            "store.failures:translate:7",
            "store.object_store:ObjectStore._require_conditional_put",
        ),
        "integration/test_object_store.py::test_hints_of_a_storage_are_followed",
    ),
}
"""By the name of the hint: the file and the test that make the mistake and follow the hint."""

APART: dict[str, str] = {
    **dict.fromkeys(
        (
            "errors:TableNotFoundError.at",
            "errors:OptionError.refused",
            "errors:_rebuild",
            "options.declare:Options.refuse",
            "routed.group:refusal_of",
            "routed.dead_letter:_parked",
            "routed.stage:_Staging._without_folder",
            "core.path_template:_invalid",
            "table.log.storage:StoredLog.other",
            "table.log.reader:LogReader.require",
            "store.local:_storage_error",
            "views.view:View.require",
        ),
        "passes a hint on, which is followed where it is written",
    ),
    "routed.park_staged:CommandParking._tell": "is a line of the log, which tells to run what "
    "tests.unit.test_unpark_hints runs",
    "table.versions:readable_from": "is a line of the log beside a loss that was allowed: a read "
    "anew is a read of the table",
    "routed.park_staged:_refuse_steps": "guards what no write into many tables can stage: a step "
    "of a view is written by itself",
    **dict.fromkeys(
        ("errors:NewerFormatError.of", "errors:EarlierFormatError.of"),
        "tells to install another release",
    ),
    **dict.fromkeys(
        (
            "table.log.log:Log.heads",
            "table.log.reader:LogReader._find_end",
            "table.retention.expiry:_named",
            "table.retention.expiry:despite_expiry",
            "envelopes.write_plan:plan_upon",
            "routed.unmoved:commit_behind",
            "delta.log:DeltaLog.follow",
            "delta.publish:Mirror._publish",
        ),
        "tells to try again what others have won every time: the worlds of tests.simulation do",
    ),
    **dict.fromkeys(
        (
            "store.failures:translate:2",
            "store.failures:translate:3",
            "store.failures:translate:4",
            "store.failures:translate:6",
            "store.object_store:ObjectStore._require_whole",
        ),
        "is of a cloud that the server of the tests is not: what it says is tried as text",
    ),
}
"""By the name of the hint: why no test follows it."""
