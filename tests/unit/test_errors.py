"""Errors: they cross processes whole, and say what to do."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_upsert
import spark_upsert.errors as errors
from spark_upsert.errors import (
    CorruptionError,
    DataError,
    DataLossError,
    OptionError,
    PlanError,
    SchemaError,
    Subject,
    TableNotFoundError,
    UpsertFlowError,
    about,
    as_argument,
    as_flag,
    as_option,
    did_you_mean,
    nearest,
    setting,
)
from spark_upsert.table.log.properties import PROPERTIES


def subclasses(cls: type[UpsertFlowError]) -> Iterator[type[UpsertFlowError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from subclasses(child)


ALL = sorted(set(subclasses(UpsertFlowError)), key=lambda cls: cls.__name__)

BUILT = [
    OptionError.unknown("pth", ["path", "keys"]),
    OptionError.missing("path", "where the table lies"),
    OptionError.invalid("limit", -1, "a positive number"),
    OptionError.conflict("columnList", "exceptColumnList"),
    OptionError.fixed("sequenceBy", "n", None),
    SchemaError.missing_column("id", ["idd", "name"], role="key column"),
    PlanError.missing_column("idd", ["id", "name"]),
    PlanError.missing_column("zzz", []),
    TableNotFoundError.at("/lake/orders"),
    CorruptionError.in_file("data/1.arrow", "12 bytes", "7"),
]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickle_with_its_fields(cls: type[UpsertFlowError]) -> None:
    error = cls("what happened.", hint="do this.", column="id", count=3)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.hint) == (error.message, error.hint)
    assert copy.fields == {"column": "id", "count": 3}
    assert str(copy) == str(error)


@pytest.mark.parametrize("error", BUILT, ids=lambda error: error.message)
def test_a_built_error_survives_pickle(error: UpsertFlowError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.fields) == (str(error), error.fields)


HINTED = DataError(
    "two rows are late.",
    hint=f"give {setting('lateRows', 'apply')}, or an order, {setting('sequenceBy')}.",
)


def test_a_hint_names_settings_as_plain_python_gives_them() -> None:
    assert HINTED.hint == "give late_rows=apply, or an order, sequence_by=...."
    assert HINTED.hint in str(HINTED)


@pytest.mark.parametrize("is_pickled", [False, True], ids=["as it is", "from another process"])
def test_who_takes_settings_says_how_they_are_given(is_pickled: bool) -> None:
    error = pickle.loads(pickle.dumps(HINTED))
    error.name_settings(as_option)
    error = pickle.loads(pickle.dumps(error)) if is_pickled else error
    expected = 'give .option("lateRows", "apply"), or an order, .option("sequenceBy", ...).'
    assert error.hint == expected
    assert str(error).startswith(f"[DATA] two rows are late.\n\nHint: {expected}\n")
    error.name_settings(as_argument)
    assert str(error) == str(HINTED)


def test_a_property_has_one_name_for_all_but_spark() -> None:
    error = DataError("no.", hint=f"set {setting('onFull', 'wait', is_property=True)}.")
    assert error.hint == "set onFull=wait."
    assert error.hint_as(as_option) == 'set .option("onFull", "wait").'
    assert error.hint_as(as_flag) == "set --set onFull=wait."


def test_a_hint_says_of_each_property_that_it_is_one() -> None:
    own = [
        (call, path)
        for path, call in calls_of("setting")
        if isinstance(call.args[0], ast.Constant) and call.args[0].value in PROPERTIES
    ]
    assert len(own) >= 4
    for call, path in own:
        assert [each.arg for each in call.keywords] == ["is_property"], (path, call.lineno)


def calls_of(name: str) -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted(Path(spark_upsert.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Most files call it nowhere, and need not be parsed.
        for node in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            match node:
                case ast.Call(func=ast.Name(id=found)) if found == name:
                    yield path, node


def test_a_setting_is_masked_as_all_text_is() -> None:
    error = DataError("no.", hint=f"give {setting('path', 's3://me:hush@bucket/x')}.")
    assert error.hint == "give path=s3://***@bucket/x."


def test_options_that_contradict_each_other_are_both_named() -> None:
    error = OptionError.conflict("a", "b", why="one is enough")
    assert error.message == "options 'a' and 'b' contradict each other: one is enough."
    assert error.fields == {"option": "a", "other": "b"}


def test_what_the_first_write_has_fixed_is_said() -> None:
    error = OptionError.fixed("ties", "first", "last", why="rows that lost are gone")
    assert error.message == (
        "option 'ties' is 'first', but the table has 'last', and its first write fixed that, "
        "because rows that lost are gone."
    )
    assert "the table has none" in OptionError.fixed("sequenceBy", "n", None).message


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_a_code_is_stable_and_unique(cls: type[UpsertFlowError]) -> None:
    assert cls.code.isupper()
    assert [other.code for other in ALL].count(cls.code) == 1


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_text_shows_code_message_and_hint(cls: type[UpsertFlowError]) -> None:
    text = str(cls("this was found.", hint="do that."))
    more = f"More: upsertflow explain-error {cls.code}"
    assert text == f"[{cls.code}] this was found.\n\nHint: do that.\n{more}"
    assert str(cls("this was found.")) == f"[{cls.code}] this was found.\n\n{more}"


@pytest.mark.parametrize("error", BUILT, ids=lambda error: error.message)
def test_every_built_error_has_a_hint(error: UpsertFlowError) -> None:
    assert error.hint


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (OptionError, ValueError),
        (SchemaError, ValueError),
        (errors.DataError, ValueError),
        (TableNotFoundError, FileNotFoundError),
        (errors.ContentionError, TimeoutError),
    ],
)
def test_an_error_is_also_the_builtin_that_a_user_would_catch(
    cls: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(cls, builtin)


def test_an_unknown_option_names_the_nearest() -> None:
    assert "Did you mean 'sequenceBy'?" in str(
        OptionError.unknown("sequenceby", ["keys", "sequenceBy"])
    )


def test_without_a_near_name_all_are_listed() -> None:
    assert did_you_mean("zzz", ["path", "keys"]) == "Choose one of: keys, path."


@pytest.mark.parametrize(
    "error",
    [
        SchemaError.missing_column("v", ["id", "serial"], role="column"),
        SchemaError.missing_column("idd", ["id", "serial"], role="column"),
        OptionError.not_one_of("onError", "zzz", ["id", "serial"]),
        OptionError.not_one_of("onError", "idd", ["id", "serial"]),
    ],
    ids=str,
)
def test_what_there_is_to_choose_from_is_said_once(error: UpsertFlowError) -> None:
    assert str(error).count("serial") == 1
    assert ("Did you mean 'id'?" in error.hint) == ("idd" in error.message)


def test_the_nearest_name_ignores_case() -> None:
    assert nearest("ORDER_ID", ["order_id", "name"]) == "order_id"


def test_nothing_is_near_an_unlike_name() -> None:
    assert nearest("zzz", ["path"]) is None


def test_a_damaged_file_is_named() -> None:
    error = CorruptionError.in_file("data/1.arrow", "12 bytes", "7")
    assert "data/1.arrow" in str(error)
    assert error.fields == {"path": "data/1.arrow"}


def test_data_loss_is_no_corruption() -> None:
    assert not issubclass(DataLossError, CorruptionError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'s3://AKIA:hush@bucket/x'", "'s3://***@bucket/x'"),
        ("s3://AKIA:hu/sh+hush@bucket/x", "s3://***@bucket/x"),
        ("https://hush@host/x", "https://***@host/x"),
        ("http://user:hush@proxy:8080", "http://***@proxy:8080"),
        ("az://c/x?sv=2024&sig=hush%2B&se=9", "az://c/x?sv=2024&sig=***&se=9"),
        ("https://b/x?X-Amz-Signature=hush", "https://b/x?X-Amz-Signature=***"),
        (
            "https://b/x?a=1&x-amz-security-token=hush'",
            "https://b/x?a=***&x-amz-security-token=***'",
        ),
        ("s3://b/x?secret_access_key=hush", "s3://b/x?secret_access_key=***"),
        ("gs://b/x?note=hush==", "gs://b/x?note=***"),
        ("s3://b/x?hush==, s3:/b#hush", "s3://b/x?*** s3:/b#***"),
        ("s3a:/key:hush@bucket/x", "s3a:/***@bucket/x"),
        ("/lake/x?AWS_SECRET_ACCESS_KEY=hush", "/lake/x?AWS_SECRET_ACCESS_KEY=***"),
        ("https://b/x?token=hush", "https://b/x?token=***"),
        # Nothing to hide.
        ("abfss://container@account.net/x", "abfss://container@account.net/x"),
        ("s3://bucket/user@example.com", "s3://bucket/user@example.com"),
        ("id=7, sig=8 is no column", "id=7, sig=8 is no column"),
        ("https://b/?list-type=2&prefix=a%2F", "https://b/?list-type=2&prefix=a%2F"),
        ("/lake/x?day=7", "/lake/x?day=7"),
    ],
)
def test_secrets_of_urls_are_masked(text: str, shown: str) -> None:
    error = UpsertFlowError(f"could not read {text}", hint=f"look at {text}")
    assert f"[UPSERTFLOW] could not read {shown}\n\nHint: look at {shown}\n" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert UpsertFlowError("no.", path=text).fields == {"path": shown}


def test_an_error_of_a_plan_names_the_innermost_node() -> None:
    with pytest.raises(PlanError) as caught, about("node", "outer"), about("node", "inner"):
        raise PlanError.missing_column("idd", ["id"])
    assert caught.value.message == "node 'inner': there is no column 'idd' among id."
    assert pickle.loads(pickle.dumps(caught.value)).fields["node"] == "inner"


@pytest.mark.parametrize("kind", ["input", "node", "operator", "table"])
def test_of_each_kind_the_innermost_name_stays(kind: Subject) -> None:
    field, value = ("operators", ("in",)) if kind == "operator" else (kind, "in")
    with pytest.raises(PlanError) as caught, about(kind, "out"), about(kind, "in"), about(kind, ""):
        raise PlanError("no.")
    assert (caught.value.message, caught.value.fields) == (f"{kind} 'in': no.", {field: value})
    with (
        pytest.raises(ZeroDivisionError) as told,
        about(kind, "out"),
        about(kind, "in"),
        about(kind, ""),
    ):
        _ = 1 // 0
    [note] = told.value.__notes__
    assert note.startswith(f"It is about the {kind} 'in'")


def test_an_error_of_others_gets_a_note_of_the_node() -> None:
    with pytest.raises(ZeroDivisionError) as caught, about("node", "outer"), about("node", "sums"):
        _ = 1 // 0
    assert caught.value.__notes__ == ["It is about the node 'sums' of the plan."]
