"""One stream into many tables: what cannot be a table's name is an error that says why (P5)."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.path_template import Template, is_routed
from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.routed.router import Router
from tests.support.routes import check_routes

BAD_TEMPLATES = {
    "names no column": ("/lake/orders", "names no column"),
    "doubled braces alone": ("/lake/{{topic}}", "names no column"),
    "a column without a name": ("/lake/{}", "lacks the name of a column"),
    "a field without a name": ("/lake/{source.}", "lacks the name of a column"),
    "a column twice": ("/lake/{topic}/{Topic}", "names {Topic} twice"),
    "a brace that is not closed": ("/lake/{topic", "'{' without its counterpart at character 7"),
    "a brace that is not opened": ("/lake/topic}", "'}' without its counterpart at character 12"),
    "braces in braces": ("/lake/{a{b}}", "'{' without its counterpart"),
    "the bucket": ("s3://{bucket}/lake", "name of the bucket"),
    "a part of the bucket": ("s3://lake-{tenant}/{topic}", "name of the bucket"),
    "columns that touch": ("/lake/{db}{table}", "nothing between {db} and {table}"),
    "a letter between columns": ("/lake/{db}x{table}", "'x' between {db} and {table}"),
    "an equals sign between columns": ("/lake/{db}={table}", "'=' between {db} and {table}"),
    "upwards": ("/lake/{topic}/../other", "'..' behind its root"),
    "here": ("/lake/{topic}/./rows", "'.' behind its root"),
    "an empty name": ("/lake/{topic}//rows", "'' behind its root"),
    "a folder of ours": ("/lake/{topic}/_log", "'_log' behind its root"),
    "a hidden name": ("/lake/.{topic}", "'.{topic}' behind its root"),
    "a name of engines": ("/lake/_{topic}", "'_{topic}' behind its root"),
    "a glob": ("/lake/{topic}*", "has '*'"),
    "a part of a URL": ("s3://b/{topic}%2F", "has '%2F'"),
    "a text that is not ASCII": ("/lake/größe-{topic}", "has 'größe-'"),
}


@pytest.mark.parametrize(("path", "message"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES)
def test_p5_a_path_that_could_mix_tables_is_refused(path: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        Template.parse(path)
    assert message in caught.value.message
    assert caught.value.hint


GOOD_TEMPLATES = {
    "one column": ("/lake/{topic}", "/lake", ("topic",)),
    "fields of structs": (
        "/lake/{source.schema}.{source.table}/rows",
        "/lake",
        ("source.schema", "source.table"),
    ),
    "blanks in braces": ("/lake/{ source . db }", "/lake", ("source.db",)),
    "as Hive names partitions": ("s3://b/x/db={db}/t={t}", "s3://b/x", ("db", "t")),
    "a whole bucket": ("s3://b/{topic}", "s3://b", ("topic",)),
    "the root of a disk": ("/{topic}", "/", ("topic",)),
    "a file URL": ("file:///lake/{topic}", "file:///lake", ("topic",)),
    "the root of a disk, as a URL": ("file:///{topic}", "file:///", ("topic",)),
    "braces that are meant as such": ("/a{{b}}/{{{c}}}", "/a{b}", ("c",)),
    "a slash at the end": ("/lake/{topic}/", "/lake", ("topic",)),
}


@pytest.mark.parametrize(("path", "root", "columns"), GOOD_TEMPLATES.values(), ids=GOOD_TEMPLATES)
def test_p5_a_path_says_where_the_root_is_and_which_columns(
    path: str, root: str, columns: tuple[str, ...]
) -> None:
    template = Template.parse(path)
    assert is_routed(path)
    assert (template.root, template.columns) == (root, columns)


def test_p5_a_template_is_the_same_however_it_is_written() -> None:
    template = Template.parse("/lake/a{{}}{ source . db }/rows/")
    assert template.relative == "a{{}}{source.db}/rows"
    assert Template.parse(f"/lake/{template.relative}") == template


def test_p5_a_path_without_braces_is_one_table() -> None:
    assert not is_routed("/lake/orders")


FOLDERS = {
    "kept as it is": ("/l/{a}", ("Shop-1.orders_x",), "Shop-1.orders_x"),
    "a slash": ("/l/{a}", ("a/b",), "a=2Fb"),
    "an equals sign": ("/l/{a}", ("a=2Fb",), "a=3D2Fb"),
    "a percent sign": ("/l/{a}", ("100%",), "100=25"),
    "other than ASCII": ("/l/{a}", ("größe",), "gr=C3=B6=C3=9Fe"),
    "a null character": ("/l/{a}", ("\0",), "=00"),
    "here": ("/l/{a}", (".",), "=2E"),
    "upwards": ("/l/{a}", ("..",), "=2E."),
    "a way upwards": ("/l/{a}", ("../../etc",), "=2E.=2F..=2Fetc"),
    "the group's own folder": ("/l/{a}", ("_group",), "=5Fgroup"),
    "hidden": ("/l/{a}", (".x",), "=2Ex"),
    "an underscore behind a text": ("/l/t{a}", ("_x",), "t_x"),
    "what stands between two": ("/l/{a}.{b}", ("x.y", "z"), "x=2Ey.z"),
    "the same, other way round": ("/l/{a}.{b}", ("x", "y.z"), "x.y=2Ez"),
    "two folders": ("/l/{a}/{b}", ("x.y", "_z"), "x.y/=5Fz"),
    "an empty value beside a text": ("/l/t-{a}", ("",), "t-"),
    "case": ("/l/{a}", ("Orders",), "Orders"),
    "255 bytes": ("/l/{a}", ("x" * 255,), "x" * 255),
}


@pytest.mark.parametrize(("path", "values", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_p5_a_value_is_a_folder_below_the_root(
    path: str, values: tuple[str, ...], folder: str
) -> None:
    template = Template.parse(path)
    assert template.folder(values) == folder
    assert template.try_values(folder) == values


BAD_VALUES = {
    "empty": ("/l/{a}", ("",), "a='' makes an empty folder name"),
    "empty before a point": ("/l/{a}.{b}", ("", "x"), "a='', b='x' makes the hidden"),
    "256 bytes": ("/l/{a}", ("x" * 256,), "a folder name of 256 bytes"),
    "256 bytes when escaped": ("/l/{a}", ("é" * 43,), "a folder name of 258 bytes"),
}


@pytest.mark.parametrize(("path", "values", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_p5_a_value_without_a_folder_is_named(
    path: str, values: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        Template.parse(path).folder(values)
    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_p5_a_table_is_called_by_its_values_as_they_are() -> None:
    template = Template.parse("/l/{db}.{table}/rows")
    assert template.name(("shop.eu", "größe")) == "shop.eu.größe/rows"


@pytest.mark.parametrize("seed", range(3))
def test_p5_rows_of_other_values_never_meet_in_a_folder(seed: int) -> None:
    dice = random.Random(seed)
    template = Template.parse("/l/{a}.{b}")
    met: dict[str, tuple[str, ...]] = {}
    for _ in range(300):
        values = tuple("".join(dice.choices("a._/=é", k=dice.randrange(4))) for _ in "ab")
        try:
            folder = template.folder(values)
        except DataError:
            continue
        assert met.setdefault(folder, values) == values
        assert template.try_values(folder) == values
        assert not {"/", "."} & {*folder[:1]}
        assert not folder.startswith("_")
    assert len(met) > 100
    with pytest.raises(DataError):
        template.folder(("x" * 200, "y" * 200))


INCOMING = pa.schema(
    {
        "topic": pa.string(),
        "value": pa.binary(),
        "price": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "source": pa.struct({"db": pa.string(), "tags": pa.list_(pa.string())}),
        "a.b": pa.string(),
        "Twin": pa.string(),
        "twin": pa.string(),
    }
)

BAD_COLUMNS = {
    "one that is not there": ("topics", "the column of the path 'topics' is not among the columns"),
    "a field that is not there": ("source.table", "'table' is not among the columns (db, tags)"),
    "a field of a text": ("topic.x", "leads into 'topic', which is no struct but string"),
    "two that differ in case alone": ("TWIN", "'TWIN' is not among the columns"),
    "bytes": ("value", "'value' is binary"),
    "a fraction": ("price", "'price' is double"),
    "a time": ("at", "'at' is timestamp"),
    "a list": ("source.tags", "'source.tags' is list"),
    "a struct": ("source", "'source' is struct"),
}


@pytest.mark.parametrize(("column", "message"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_p5_a_column_that_names_no_table_is_refused(column: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Router(Template.parse(f"/l/{{{column}}}"), INCOMING)
    assert message in caught.value.message
    assert caught.value.hint


TYPES = {
    "a text": (pa.string(), "Shop", "Shop"),
    "a small number": (pa.int8(), -1, "-1"),
    "a large number": (pa.uint64(), 2**64 - 1, "18446744073709551615"),
    "a truth value": (pa.bool_(), True, "true"),
    "a date": (pa.date32(), datetime.date(2026, 1, 31), "2026-01-31"),
}


@pytest.mark.parametrize(("type_", "value", "text"), TYPES.values(), ids=TYPES)
def test_p5_a_table_is_named_by_the_text_of_a_value(
    type_: pa.DataType, value: Any, text: str
) -> None:
    batch = pa.record_batch({"A": pa.array([value], type_)})
    (route,) = Router(Template.parse("/l/{a}"), batch.schema).route(batch).routes
    assert route.values == (text,)


def test_p5_a_null_names_no_table() -> None:
    batch = pa.record_batch({"topic": pa.array(["a", None, "a"])})
    routed = Router(Template.parse("/l/{topic}"), batch.schema).route(batch)
    assert [route.folder for route in routed.routes] == ["a", None]
    problem = routed.routes[1].problem
    assert problem is not None
    assert "topic is null" in problem.message


def test_p5_a_column_with_a_point_in_its_name_comes_before_a_field() -> None:
    batch = pa.record_batch({"a.b": ["one"], "a": [{"b": "other"}]})
    (route,) = Router(Template.parse("/l/{a.b}"), batch.schema).route(batch).routes
    assert route.folder == "one"


@pytest.mark.parametrize("seed", range(3))
def test_p5_each_row_goes_where_its_own_values_lead(seed: int) -> None:
    dice = random.Random(seed)
    template = Template.parse("/l/t-{a}/{b}")
    router = None
    for _ in range(8):
        count = dice.randrange(1, 12)
        columns = {name: dice.choices(["", "x", "y", None], k=count) for name in "ab"}
        batch = pa.record_batch({n: pa.array(v, pa.string()) for n, v in columns.items()})
        batch = batch.append_column("at", pa.array(range(count)))
        router = router or Router(template, batch.schema)
        values = list(zip(*columns.values(), strict=True))
        check_routes(router, template, batch, values, lambda own: None not in own and own[1] != "")
