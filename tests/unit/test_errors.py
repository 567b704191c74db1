"""Errors: they cross processes whole, and say what to do."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_upsert
from spark_upsert.errors import (
    ContentionError,
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

BUILT = {
    OptionError.unknown("sequenceby", ["keys", "sequenceBy"]): "Did you mean 'sequenceBy'?",
    OptionError.missing("path", "where the table lies"): "where the table lies",
    OptionError.invalid("limit", -1, "a positive number"): "a positive number",
    OptionError.conflict("a", "b", why="one is enough"): (
        "options 'a' and 'b' contradict each other: one is enough."
    ),
    OptionError.fixed("sequenceBy", "n", None): "the table has none",
    OptionError.fixed("ties", "first", "last", why="rows are gone"): (
        "option 'ties' is 'first', but the table has 'last', and its first write fixed that, "
        "because rows are gone."
    ),
    SchemaError.missing_column("id", ["idd", "name"], role="key column"): "Did you mean 'idd'?",
    PlanError.missing_column("idd", ["id", "name"]): "Did you mean 'id'?",
    PlanError.missing_column("zzz", []): "'zzz'",
    TableNotFoundError.at("/lake/orders"): "/lake/orders",
    CorruptionError.in_file("data/1.arrow", "12 bytes", "7"): "data/1.arrow",
}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_shows_code_message_and_hint_also_behind_pickle(
    cls: type[UpsertFlowError],
) -> None:
    assert cls.code.isupper()
    assert [other.code for other in ALL].count(cls.code) == 1
    error = cls("this was found.", hint="do that.", column="id", count=3)
    more = f"More: upsertflow explain-error {cls.code}"
    assert str(cls("this was found.")) == f"[{cls.code}] this was found.\n\n{more}"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.hint) == (error.message, error.hint)
    assert copy.fields == {"column": "id", "count": 3}
    text = f"[{cls.code}] this was found.\n\nHint: do that.\n{more}"
    assert str(copy) == str(error) == text


@pytest.mark.parametrize(("error", "text"), BUILT.items(), ids=str)
def test_a_built_error_has_a_hint_and_survives_pickle(error: UpsertFlowError, text: str) -> None:
    assert text in str(error)
    assert error.hint
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.fields) == (str(error), error.fields)


@pytest.mark.parametrize("is_pickled", [False, True], ids=["as it is", "from another process"])
def test_who_takes_settings_says_how_they_are_given(is_pickled: bool) -> None:
    hint = f"give {setting('lateRows', 'apply')}, or an order, {setting('sequenceBy')}."
    original = DataError("two rows are late.", hint=hint)
    assert original.hint == "give late_rows=apply, or an order, sequence_by=...."
    assert original.hint in str(original)
    error = pickle.loads(pickle.dumps(original))
    error.name_settings(as_option)
    error = pickle.loads(pickle.dumps(error)) if is_pickled else error
    expected = 'give .option("lateRows", "apply"), or an order, .option("sequenceBy", ...).'
    assert error.hint == expected
    assert str(error).startswith(f"[DATA] two rows are late.\n\nHint: {expected}\n")
    error.name_settings(as_argument)
    assert str(error) == str(original)


def test_a_property_has_one_name_for_all_but_spark_and_secrets_of_settings_are_masked() -> None:
    error = DataError("no.", hint=f"set {setting('onFull', 'wait', is_property=True)}.")
    assert error.hint == "set onFull=wait."
    assert error.hint_as(as_option) == 'set .option("onFull", "wait").'
    assert error.hint_as(as_flag) == "set --set onFull=wait."
    error = DataError("no.", hint=f"give {setting('path', 's3://me:hush@bucket/x')}.")
    assert error.hint == "give path=s3://***@bucket/x."


def test_a_hint_says_of_each_property_that_it_is_one() -> None:
    calls = [
        (call, path)
        for path, call in calls_of("setting")
        if isinstance(call.args[0], ast.Constant) and call.args[0].value in PROPERTIES
    ]
    assert len(calls) >= 4
    for call, path in calls:
        assert [each.arg for each in call.keywords] == ["is_property"], (path, call.lineno)


def calls_of(name: str) -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted(Path(spark_upsert.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Most files call it nowhere, and need not be parsed.
        for node in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            match node:
                case ast.Call(func=ast.Name(id=called)) if called == name:
                    yield path, node


def test_an_error_is_also_the_builtin_that_a_user_would_catch() -> None:
    assert all(issubclass(cls, ValueError) for cls in (OptionError, SchemaError, DataError))
    assert issubclass(TableNotFoundError, FileNotFoundError)
    assert issubclass(ContentionError, TimeoutError)
    assert not issubclass(DataLossError, CorruptionError)


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


def test_the_nearest_name_ignores_case_and_without_one_all_are_listed() -> None:
    assert nearest("ORDER_ID", ["order_id", "name"]) == "order_id"
    assert nearest("zzz", ["path"]) is None
    assert did_you_mean("zzz", ["path", "keys"]) == "Choose one of: keys, path."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'s3://AKIA:hush@bucket/x'", "'s3://***@bucket/x'"),
        ("s3://AKIA:hu/sh+hush@bucket/x", "s3://***@bucket/x"),
        ("https://hush@host/x", "https://***@host/x"),
        ("http://user:hush@proxy:8080", "http://***@proxy:8080"),
        ("az://c/x?sv=2024&sig=hush%2B&se=9", "az://c/x?sv=2024&sig=***&se=9"),
        ("https://b/x?X-Amz-Signature=hush", "https://b/x?X-Amz-Signature=***"),
        ("https://b/x?x-amz-security-token=h'", "https://b/x?x-amz-security-token=***'"),
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


@pytest.mark.parametrize("kind", ["input", "node", "operator", "table"])
def test_an_error_names_the_innermost_of_each_kind_and_one_of_others_has_a_note(
    kind: Subject,
) -> None:
    field, value = ("operators", ("in",)) if kind == "operator" else (kind, "in")
    with pytest.raises(PlanError) as caught, about(kind, "out"), about(kind, "in"), about(kind, ""):
        raise PlanError("no.")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.message, error.fields) == (f"{kind} 'in': no.", {field: value})
    with pytest.raises(ZeroDivisionError) as other, about(kind, "out"), about(kind, "in"):
        _ = 1 // 0
    [note] = other.value.__notes__
    assert note.startswith(f"It is about the {kind} 'in'")
