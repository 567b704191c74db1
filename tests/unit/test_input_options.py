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
    assert (west.path, west.starting_version, west.storage) == (
        "/lake/w",
        "latest",
        {"region": "eu"},
    )
    assert east.change_feed
    assert west.change_feed
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
def test_who_says_where_to_begin_is_not_told_so_in_another_way(own: str, shared: str) -> None:
    plan = ReadPlan.parse({**TWO, f"input.east.{own}": "5", shared: "7"})
    east, west = (each.of_table() for each in plan.inputs)
    assert east != west


def test_names_are_kept_as_written_and_found_without_case() -> None:
    plan = ReadPlan.parse({"inputs": "East, north-west", "input.east.path": "/e"})
    assert [each.name for each in plan.inputs] == ["East", "north-west"]
    assert plan.inputs[0].of_table().path == "/e"


def test_a_read_that_names_no_inputs_has_one() -> None:
    plan = ReadPlan.parse({"path": "/lake/orders", "columns": "k"})
    assert plan.is_unnamed
    assert [each.name for each in plan.inputs] == [UNNAMED]
    assert plan.inputs[0].of_table().columns == ("k",)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        pytest.param(
            {**TWO, "input.eats.path": "/x"},
            r"'input.eats.path' is of an input that 'inputs' \(east, west\) does not name",
            "Did you mean 'east'?",
            id="an input that does not exist",
        ),
        pytest.param(
            {"path": "/t", "input.east.path": "/x"},
            "'input.east.path' is given, but not 'inputs'",
            "'inputs' = 'east'",
            id="inputs are not named",
        ),
        pytest.param(
            {**TWO, "inputs": "east,west,east"}, "names 'east' twice", "once", id="named twice"
        ),
        pytest.param(
            {"inputs": "a,a", "input.a.path": "/a"}, "names 'a' twice", "once", id="a letter twice"
        ),
        pytest.param(
            {**TWO, "inputs": "east,west,East"},
            "names 'East' twice, as 'east', too",
            "case",
            id="named twice but for case",
        ),
        pytest.param(
            {**TWO, "input.west.path": "/lake/../lake/e/"},
            "inputs 'east' and 'west' are the same, at '/lake/e'",
            "drop 'west'",
            id="one path twice",
        ),
        pytest.param(
            {**TWO, "path": "/t"},
            "'path' has no meaning beside 'inputs'",
            "input.east.path",
            id="path and inputs",
        ),
        pytest.param(
            {**TWO, "metadata": "epochs"},
            "'metadata' has no meaning beside 'inputs'",
            "'path'",
            id="metadata of several",
        ),
        pytest.param(
            {"path": "/t", "inputsPattern": "*", "allowInputRemoval": "true"},
            "'allowInputRemoval' is about inputs that are named",
            "failOnDataLoss=false",
            id="removal of inputs that are found",
        ),
        pytest.param({**TWO, "inputs": "east,,west"}, "found 'east,,west'", "names", id="no name"),
        pytest.param({**TWO, "inputs": "a.b"}, "found 'a.b'", "letters", id="a dot in a name"),
        pytest.param(
            {**TWO, "input.east": "/x"}, "names no option", "input.<name>", id="no option"
        ),
        pytest.param({**TWO, "inputz": "a"}, "unknown option 'inputz'", "'inputs'", id="a typo"),
        pytest.param(
            {"path": "/t", "mergeColumns": "_input"},
            "'mergeColumns' has no meaning without 'inputs'",
            "give 'inputs'",
            id="about a merge of none",
        ),
        pytest.param(
            {**TWO, "input.east.priority": "1001"},
            "option 'input.east.priority' expects a whole number from -1000 to 1000, found '1001'",
            "from -1000 to 1000",
            id="a priority above all",
        ),
        pytest.param(
            {**TWO, "input.east.priority": "high"},
            "found 'high'",
            "-1000",
            id="a priority in words",
        ),
        pytest.param(
            {**TWO, "input.north.priority": "1"},
            "does not name",
            "",
            id="a priority of an unknown input",
        ),
        pytest.param(
            {**TWO, "Priority": "1"},
            "option 'Priority' is of one input",
            "'input.east.priority'",
            id="a priority of all",
        ),
        pytest.param(
            {"path": "/t", "input.t.priority": "1"},
            "not 'inputs'",
            "",
            id="a priority of one alone",
        ),
        pytest.param(
            {**TWO, "merge": "concat", "input.east.priority": "1"},
            "'input.east.priority' has no meaning in an exact order",
            "leave out 'merge'",
            id="a priority in an exact order",
        ),
        pytest.param(
            {**TWO, "interleaveSeed": "1", "autoPriority": "true"},
            "'autoPriority' has no meaning in an exact order",
            "drop the option",
            id="recency in an exact order",
        ),
        pytest.param(
            {"path": "/t", "autoPriority": "true"},
            "'autoPriority' has no meaning without 'inputs'",
            "give 'inputs'",
            id="recency of one table",
        ),
        pytest.param(
            {**TWO, "mergeColumns": "_inputs"}, "one of _input", "'_input'", id="a merge column"
        ),
    ],
)
def test_what_cannot_be_a_read_is_refused(given: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        ReadPlan.parse(given)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        pytest.param(
            {"input.west.startingverion": "1"},
            "input 'west': unknown option 'startingverion'",
            "startingVersion",
            id="a typo",
        ),
        pytest.param(
            {"input.west.splits": "many"}, "input 'west': option 'splits' expects", "", id="value"
        ),
        pytest.param(
            {"input.west.maxrowspertrigger": "1"},
            "input 'west': option 'maxRowsPerTrigger' is of the query",
            "without 'input.west.'",
            id="a limit",
        ),
        pytest.param(
            {"input.west.mergecolumns": "_input"},
            "input 'west': option 'mergeColumns' is of the query",
            "without",
            id="about the merge",
        ),
        pytest.param(
            {"input.west.startingversion": "1", "input.west.startingtimestamp": "1"},
            "input 'west': options 'startingVersion' and 'startingTimestamp' contradict",
            "one of them",
            id="a contradiction",
        ),
        pytest.param(
            {"inputs": "west,north"},
            "input 'north': the option 'input.north.path' is required",
            "give 'input.north.path'",
            id="no path",
        ),
        pytest.param(
            {"inputs": "west,North", "input.north.path": " "},
            "input 'North': the option 'input.North.path' is required",
            "give 'input.North.path'",
            id="a path of blanks",
        ),
    ],
)
def test_what_is_wrong_with_one_input_names_it(
    given: dict[str, str], message: str, hint: str
) -> None:
    told = {name: text for name, text in TWO.items() if not name.startswith("input.east")}
    plan = ReadPlan.parse({**told, "inputs": "west", **given})
    with pytest.raises(OptionError, match=message) as caught:
        plan.inputs[-1].of_table()
    assert hint in caught.value.hint
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


NO_NUMBERS = ["²", "9" * 30, "9" * 5000, "1_0", "--5", "0x1", "1.0"]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: text[:31])
@pytest.mark.parametrize(
    "option",
    ["versionAsOf", "endingVersion", "timestampAsOf", "startingTimestamp", "splits"],
)
def test_what_is_no_number_of_64_bits_is_refused_by_name(option: str, text: str) -> None:
    plan = ReadPlan.parse({**TWO, f"input.east.{option}": text})
    with pytest.raises(OptionError, match=f"input 'east': option '{option}' expects"):
        plan.inputs[0].of_table()


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: text[:31])
@pytest.mark.parametrize("option", ["interleaveSeed", "maxRowsPerTrigger", "parallelism"])
def test_what_is_no_number_is_refused_of_the_query_too(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}' expects"):
        ReadPlan.parse({**TWO, option: text})


def test_the_largest_numbers_are_numbers() -> None:
    told = {"maxRowsPerTrigger": str(2**63 - 1), "interleaveSeed": str(2**64 - 1)}
    query = ReadPlan.parse({**TWO, **told}).query
    assert (query.rows_max, query.seed) == (2**63 - 1, 2**64 - 1)


@pytest.mark.parametrize(("columns", "said"), [("k,v,k", "'k' twice."), ("k,K", "twice, as 'k'")])
@pytest.mark.parametrize("given", [TWO, {"path": "/t"}], ids=["of inputs", "of one table"])
def test_a_column_is_named_once(given: dict[str, str], columns: str, said: str) -> None:
    with pytest.raises(OptionError, match="option 'columns' names") as caught:
        ReadPlan.parse({**given, "columns": columns})
    assert said in caught.value.message


def test_an_unknown_format_is_refused_by_name() -> None:
    [east, _] = ReadPlan.parse({**TWO, "input.east.format": "upsertflw"}).inputs
    with pytest.raises(OptionError, match="input 'east': option 'format'") as caught:
        kind_of(east, KINDS)
    assert "Did you mean 'upsertflow'?" in caught.value.hint


PYTHON = {"inputs": "a", "input.a.path": "/rows", "input.a.format": "python:rows"}
OF_ALL_INPUTS = {*declared(QueryOptions), "failOnDataLoss"}
"""Options that mean the same for tables and other sources."""


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS} - OF_ALL_INPUTS))
def test_an_option_of_tables_is_refused_where_no_input_is_one(name: str) -> None:
    """Whatever options there will be: one that changes nothing, and is taken, is a wrong answer."""
    with pytest.raises(OptionError) as caught:
        ReadPlan.parse({**PYTHON, name.upper(): "true"})
    assert f"'{name}'" in str(caught.value)


def test_an_option_of_every_input_is_not_refused() -> None:
    plan = ReadPlan.parse({**PYTHON, "columns": "id", "failOnDataLoss": "false", "storage.x": "1"})
    assert plan.query.columns == ("id",)


def test_options_of_tables_apply_to_the_tables_among_other_sources() -> None:
    given = {**PYTHON, "inputs": "a,b", "input.b.path": "/table", "startingVersion": "3"}
    table = ReadPlan.parse(given).inputs[1].of_table()
    assert table.starting_version == 3


def test_no_filter_is_of_some_inputs_alone_unless_it_says_so() -> None:
    both = {**PYTHON, "inputs": "a,b", "input.b.path": "/table"}
    with pytest.raises(OptionError, match="its rows would not be filtered"):
        ReadPlan.parse({**both, "filter": "id = 1"})
    ReadPlan.parse({**both, "input.b.filter": "id = 1"})
