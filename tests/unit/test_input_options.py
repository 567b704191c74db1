"""What is said of several inputs: names, options with a prefix, and every way to get them wrong."""

from __future__ import annotations

import pickle

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import declared
from spark_upsert.options.inputs import UNNAMED, ReadPlan
from spark_upsert.options.read import READ_OPTIONS, QueryOptions
from spark_upsert.streams.planner.formats import KINDS, kind_of

TWO = {"inputs": "east,west", "input.east.path": "/lake/e", "input.west.path": "/lake/w"}


def test_each_input_is_told_its_own_and_what_is_said_of_all() -> None:
    given = {
        **TWO,
        "input.east.startingversion": "7",
        "input.west.storage.region": "eu",
        "storage.region": "us",
        "startingVersion": "latest",
        "readChangeFeed": "true",
        "maxRowsPerTrigger": "10",
        "mergeColumns": "_input",
    }
    plan = ReadPlan.parse(given)
    east, west = (each.of_table() for each in plan.inputs)
    assert [each.name for each in plan.inputs] == ["east", "west"]
    assert (east.path, east.starting_version, east.storage) == ("/lake/e", 7, {"region": "us"})
    assert (west.path, west.storage) == ("/lake/w", {"region": "eu"})
    assert west.starting_version == "latest"
    assert (east.change_feed, west.change_feed) == (True, True)
    assert plan.query.rows_max == 10
    assert plan.query.merge_columns == ("_input",)


@pytest.mark.parametrize(
    ("own", "shared"),
    [
        ("startingTimestamp", "startingVersion"),
        ("endingVersion", "endingTimestamp"),
        ("versionAsOf", "timestampAsOf"),
    ],
)
def test_a_bound_of_one_input_replaces_that_of_all(own: str, shared: str) -> None:
    plan = ReadPlan.parse({**TWO, f"input.east.{own}": "5", shared: "7"})
    east, west = (each.of_table() for each in plan.inputs)
    assert east != west


def test_inputs_keep_their_names_and_a_read_without_names_has_one() -> None:
    plan = ReadPlan.parse({"inputs": "East, north-west", "input.east.path": "/e"})
    assert [each.name for each in plan.inputs] == ["East", "north-west"]
    assert plan.inputs[0].of_table().path == "/e"
    plan = ReadPlan.parse({"path": "/lake/orders", "columns": "k"})
    assert plan.is_unnamed
    assert [each.name for each in plan.inputs] == [UNNAMED]
    assert plan.inputs[0].of_table().columns == ("k",)


def test_the_case_of_a_known_format_is_ignored() -> None:
    plan = ReadPlan.parse({**TWO, "input.east.format": "UpsertFlow", "filter": "k > 1"})
    assert [input_.format for input_ in plan.inputs] == ["upsertflow", "upsertflow"]
    same_path = {**TWO, "input.east.format": "UPSERTFLOW", "input.west.path": "/lake/e"}
    with pytest.raises(OptionError, match="'/lake/e'"):
        ReadPlan.parse(same_path)


WEST = {"inputs": "west", "input.west.path": "/lake/w"}
NORTH = {"inputs": "west,North", "input.west.path": "/lake/w"}

REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "an unknown input": ({**TWO, "input.eats.path": "/x"}, "(east, west) does not name", "'east'?"),
    "no inputs": ({"path": "/t", "input.east.path": "/x"}, "not 'inputs'", "'inputs' = 'east'"),
    "twice": ({**TWO, "inputs": "east,west,east"}, "names 'east' twice", "once"),
    "a letter twice": ({"inputs": "a,a", "input.a.path": "/a"}, "names 'a' twice", "once"),
    "twice but for case": ({**TWO, "inputs": "east,west,East"}, "'East' twice, as 'east'", "case"),
    "one path twice": (
        {**TWO, "input.west.path": "/lake/../lake/e/"},
        "same, at '/lake/e'",
        "drop 'west'",
    ),
    "path and inputs": ({**TWO, "path": "/t"}, "'path' has no meaning beside", "input.east.path"),
    "metadata of several": ({**TWO, "metadata": "epochs"}, "'metadata' has no meaning", "'path'"),
    "removal of found inputs": (
        {"path": "/t", "inputsPattern": "*", "allowInputRemoval": "true"},
        "'allowInputRemoval' is about inputs that are named",
        "failOnDataLoss=false",
    ),
    "an empty name": ({**TWO, "inputs": "east,,west"}, "found 'east,,west'", "names"),
    "a dot in a name": ({**TWO, "inputs": "a.b"}, "found 'a.b'", "letters"),
    "no option": ({**TWO, "input.east": "/x"}, "names no option", "input.<name>"),
    "a typo": ({**TWO, "inputz": "a"}, "unknown option 'inputz'", "'inputs'"),
    "a merge of one": ({"path": "/t", "mergeColumns": "_input"}, "without 'inputs'", "'inputs'"),
    "a large priority": ({**TWO, "input.east.priority": "1001"}, "found '1001'", "-1000 to 1000"),
    "a priority in words": ({**TWO, "input.east.priority": "high"}, "found 'high'", "-1000"),
    "an unknown input's priority": ({**TWO, "input.north.priority": "1"}, "does not name", ""),
    "a priority of all": ({**TWO, "Priority": "1"}, "is of one input", "'input.east.priority'"),
    "a priority of one table": ({"path": "/t", "input.t.priority": "1"}, "not 'inputs'", ""),
    "a priority in an exact order": (
        {**TWO, "merge": "concat", "input.east.priority": "1"},
        "in an exact order",
        "'merge'",
    ),
    "recency in an exact order": (
        {**TWO, "interleaveSeed": "1", "autoPriority": "true"},
        "in an exact order",
        "drop",
    ),
    "recency of one table": ({"path": "/t", "autoPriority": "true"}, "without 'inputs'", "give"),
    "a merge column": ({**TWO, "mergeColumns": "_inputs"}, "one of _input", "'_input'"),
    "an input's typo": (
        {**WEST, "input.west.startingverion": "1"},
        "'west': unknown",
        "startingVersion",
    ),
    "an input's value": ({**WEST, "input.west.splits": "many"}, "'west': option 'splits'", ""),
    "an input's limit": ({**WEST, "input.west.maxrowspertrigger": "1"}, "of the query", "without"),
    "an input's merge": ({**WEST, "input.west.mergecolumns": "_input"}, "of the query", "without"),
    "an input's contradiction": (
        {**WEST, "input.west.startingversion": "1", "input.west.startingtimestamp": "1"},
        "input 'west': options 'startingVersion' and 'startingTimestamp' contradict",
        "one of them",
    ),
    "no path": (NORTH, "the option 'input.North.path' is required", "give 'input.North.path'"),
    "a path of blanks": ({**NORTH, "input.north.path": " "}, "input 'North'", "input.North.path"),
    "an unknown format": ({**TWO, "input.east.format": "upsertflw"}, "'format'", "'upsertflow'?"),
}


@pytest.mark.parametrize(("given", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_inputs_that_cannot_be_read_are_refused(
    given: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(OptionError) as caught:
        _ = [(kind_of(each, KINDS), each.of_table()) for each in ReadPlan.parse(given).inputs]
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


OF_TABLES = ("versionAsOf", "endingVersion", "timestampAsOf", "startingTimestamp", "splits")
OF_QUERY = ("interleaveSeed", "maxRowsPerTrigger", "parallelism")


@pytest.mark.parametrize("option", [*OF_TABLES, *OF_QUERY])
def test_a_text_that_is_no_number_of_64_bits_is_refused(option: str) -> None:
    name = option if option in OF_QUERY else f"input.east.{option}"
    for text in ("²", "9" * 30, "9" * 5000, "1_0", "--5", "0x1", "1.0"):
        with pytest.raises(OptionError, match=f"option '{option}' expects"):
            ReadPlan.parse({**TWO, name: text}).inputs[0].of_table()


def test_the_largest_numbers_are_numbers() -> None:
    told = {"maxRowsPerTrigger": str(2**63 - 1), "interleaveSeed": str(2**64 - 1)}
    query = ReadPlan.parse({**TWO, **told}).query
    assert (query.rows_max, query.seed) == (2**63 - 1, 2**64 - 1)


@pytest.mark.parametrize(("columns", "said"), [("k,v,k", "'k' twice."), ("k,K", "twice, as 'k'")])
def test_a_column_is_named_once(columns: str, said: str) -> None:
    for given in (TWO, {"path": "/t"}):
        with pytest.raises(OptionError, match="option 'columns' names") as caught:
            ReadPlan.parse({**given, "columns": columns})
        assert said in caught.value.message


PYTHON = {"inputs": "a", "input.a.path": "/rows", "input.a.format": "python:rows"}
OF_ALL_INPUTS = {*declared(QueryOptions), "failOnDataLoss"}
"""Options that mean the same for tables and other sources."""


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS} - OF_ALL_INPUTS))
def test_an_option_of_tables_is_refused_where_no_input_is_one(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReadPlan.parse({**PYTHON, name.upper(): "true"})
    assert f"'{name}'" in str(caught.value)


def test_options_of_tables_apply_to_the_tables_among_other_sources() -> None:
    plan = ReadPlan.parse({**PYTHON, "columns": "id", "failOnDataLoss": "false", "storage.x": "1"})
    assert plan.query.columns == ("id",)
    both = {**PYTHON, "inputs": "a,b", "input.b.path": "/table"}
    table = ReadPlan.parse({**both, "startingVersion": "3"}).inputs[1].of_table()
    assert table.starting_version == 3
    with pytest.raises(OptionError, match="its rows would not be filtered"):
        ReadPlan.parse({**both, "filter": "id = 1"})
    ReadPlan.parse({**both, "input.b.filter": "id = 1"})
