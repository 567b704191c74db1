"""No secret in a location is ever shown: at each entry point, each form of a URL with a secret."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.doctor import _check_write
from spark_upsert.core.path_template import Template
from spark_upsert.errors import OptionError, UpsertFlowError, require_plain
from spark_upsert.flow.graph import TableSink, TableSource
from spark_upsert.metrics import Sinks, SinkTarget
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.store.settings import (
    CLIENT_OPTIONS,
    CLOUD_OPTIONS,
    OWN_OPTIONS,
    Cloud,
    ObjectSettings,
)
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.queries import batch
from tools.layers import modules
from tools.option_reference import SCOPES

SECRET = "HUSHhush0123"
"""No message contains this text by chance."""

PREFIXES = ("s3://b/x", "s3a:/b/x", "S3://b", "gs://b/x", "file:///lake/x", "hdfs://n:8020/x")
QUERIES = (
    "?secret_access_key={}",
    "?a=1&AWS_SECRET_ACCESS_KEY={}&se=9",
    "?sig={}%3D",
    "?account_key={}",
    "?pw=a/b+{}==",
    "?note=it's {}",
    "?{}",
    "?{}==",
    "#{}",
    "#token={}",
    "?a=1#{}",
)
CREDENTIALS = (
    "s3://key:{}@b/x",
    "s3://key:a/{}@b/x",
    "s3://key:a?{}@b/x",
    "s3a:/key:{}@b/x",
    "s3://b:{}/x",
    "s3://[{}/x",
    "abfss://c:{}@account/x",
    "hdfs://user:{}@n:8020/x",
    "s3://key:it's {}@b/x",
)
FORMS = [form.format(SECRET) for form in (*map("".join, product(PREFIXES, QUERIES)), *CREDENTIALS)]

REGISTRY = ("schemaRegistry.password", "schemaRegistry.token", "schemaRegistry.headers")

COLUMNS = pa.schema({"id": pa.int64()})


def open_members(path: str) -> object:
    return Sinks().has(SinkTarget.of(path, {}), "query")


def publish(folder: Path, path: str) -> object:
    return Table.create(f"{folder}/t", COLUMNS, keys=["id"], properties={"publishPath": path})


def read_inputs(path: str) -> object:
    given = {"inputs": "a,b", "input.a.path": path, "input.b.path": "/lake/b"}
    return [each.of_table() for each in ReadPlan.parse(given).inputs]


ENTRIES: dict[str, Callable[[Path, str], object]] = {
    "Table.open": lambda _, path: Table.open(path),
    "Table.create": lambda _, path: Table.create(path, COLUMNS, keys=["id"]),
    "publishPath": publish,
    "open_store": lambda _, path: open_store(path),
    "Template": lambda _, path: Template.parse(f"{path}/{{topic}}"),
    "Template's column": lambda _, path: Template.parse(path.replace("x", "{topic}")),
    "watch": lambda _, path: open_members(path),
    "watch of many": lambda _, path: open_members(f"{path}/{{topic}}"),
    "doctor": lambda _, path: _check_write(path, {}),
    "Plan": lambda _, path: Plan.of_table(path),
    "TableSource": lambda _, path: TableSource(path),
    "TableSink": lambda _, path: TableSink(path),
    "reads": lambda _, path: ReadOptions.parse({"path": path}),
    "writes": lambda _, path: WriteOptions.parse({"path": path, "keys": "id"}),
    "inputs": lambda _, path: read_inputs(path),
    "files as an input": lambda _, path: batch(
        {"inputs": "a", "input.a.path": path, "input.a.format": "json"}
    ),
    "root of inputs": lambda _, path: ReadPlan.parse({"path": path, "inputsPattern": "*"}),
    "routed": lambda _, path: RoutedOptions.parse({"path": f"{path}/{{topic}}", "keys": "id"}),
    "schemaRegistry.url": lambda _, path: WriteOptions.parse(
        {"path": "/t", "keys": "id", "schemaRegistry.url": f"http://registry:8081,{path}"}
    ),
    "offsetsPath": lambda _, path: ReadPlan.parse(
        {"path": "/lake", "inputsPattern": "*", "offsetsPath": path}
    ),
    "publishPath of writes": lambda _, path: WriteOptions.parse(
        {"path": "/t", "keys": "id", "publish": "delta", "publishPath": path}
    ),
}


def shown_by(call: Callable[[], object], logs: pytest.LogCaptureFixture) -> str:
    """Return all that a call shows: its result or error, chained errors, and the log."""
    with logs.at_level(logging.DEBUG):
        try:
            result = repr(call())
        except UpsertFlowError as error:
            result = "".join(traceback.format_exception(error))
            # With the text of the fields, that programs log.
            result += repr(error) + repr(error.fields)
    return result + logs.text


@pytest.mark.sweep(8)
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_point_shows_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entry: str
) -> None:
    call = ENTRIES[entry]
    leaks = [form for form in FORMS if SECRET in shown_by(partial(call, tmp_path, form), caplog)]
    assert leaks == []


def commands_with_paths() -> Iterator[tuple[str, str]]:
    """Yield each command with each of its parameters that is a path.

    `doctor` starts other programs: `ENTRIES` has its check of a path.
    """
    for name, command in upsertflow.commands.items():
        for parameter in command.params:
            is_path = parameter.name in ("path", "paths", "root", "place", "directory", "url")
            if is_path and name != "doctor":
                yield name, parameter.name or ""


FILLERS: Mapping[str, str] = {
    "path": "/lake/t",
    "version": "1",
    "value": "x",
    "values": "1",
    "kind": "polars",
    "lsn": "0/1",
    "place": "/lake/of",
    "url": "postgresql://nobody@127.0.0.1:1/none",
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("name", "secret"), list(commands_with_paths()))
def test_no_command_shows_a_secret(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    secret: str,
) -> None:
    command = upsertflow.commands[name]
    monkeypatch.chdir(tmp_path)
    leaks = []
    for form in FORMS[:: 1 if name == "info" else 9]:  # All commands share one check.
        given: list[str] = [name]
        for parameter in command.params:
            if parameter.name == secret or parameter.required:
                if isinstance(parameter, click.Option):
                    given.append(parameter.opts[-1])
                given.append(form if parameter.name == secret else FILLERS[parameter.name or ""])
        if name == "serve":
            given += ["--port", "0"]
        with caplog.at_level(logging.DEBUG):
            result = CliRunner().invoke(upsertflow, given)
        assert result.exit_code, given
        if SECRET in result.output + caplog.text + repr(result.exception):
            leaks.append(form)
    assert leaks == []


def test_a_url_with_a_secret_is_refused_where_it_is_read() -> None:
    for form in FORMS:
        with pytest.raises(OptionError, match=r"has a query or fragment|without credentials"):
            require_plain(form)


def test_other_locations_are_kept() -> None:
    for path in (
        "s3://b/x",
        "s3://user@b/x",
        "s3a:/b/x",
        "file:///lake/a%3Fb",
        "abfss://box@account.dfs.core.windows.net/lake",
        "hdfs://namenode:8020/lake",
        "/lake/a?b#c@d:e",
        "lake/year=2026",
    ):
        require_plain(path)


SECRETS = {"storage", "password", "token", "headers", "config", "client", "shared"}
"""Names of fields whose values may be credentials."""


def test_no_value_shows_the_settings_of_a_storage() -> None:
    shown = [
        f"{name}.{each.name}"
        for module in modules()
        for name, cls in vars(import_module(module)).items()
        if is_dataclass(cls) and getattr(cls, "__module__", None) == module
        for each in fields(cls)
        if each.name in SECRETS and each.repr and re.search("Mapping|tuple", str(each.type))
    ]
    assert shown == []
    settings = {"storage.secret_access_key": SECRET}
    for value in (TableSource("/t", settings), TableSink("/t", settings)):
        assert SECRET not in repr(value)


SETTINGS: tuple[tuple[str, Mapping[str, str]], ...] = (
    *(("registry", {name: SECRET, name.upper(): f"{SECRET}2"}) for name in REGISTRY),
    *(("registry", {name: SECRET}) for name in REGISTRY),
    *(("storage", {name: SECRET}) for name in CLIENT_OPTIONS),
    *(("storage", {name: SECRET}) for name in OWN_OPTIONS if name != "cache_dir"),
    *(("storage", {name: SECRET, f"aws_{name}": SECRET}) for name in CLOUD_OPTIONS[Cloud.S3]),
)
"""Secrets as values of options, malformed, twice, and in the place of other values."""


def test_no_error_of_an_option_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    def parse(kind: str, given: Mapping[str, str]) -> object:
        if kind == "storage":
            return ObjectSettings.of("s3://b/x", given)
        return WriteOptions.parse({"path": "/t", "keys": "id", **given})

    for setting in SETTINGS:
        assert SECRET not in shown_by(partial(parse, *setting), caplog), setting


def test_every_option_with_a_location_is_tried() -> None:
    names = {name for options in SCOPES.values() for name in options}
    locations = {
        name
        for name in names
        if name.lower().endswith(("path", "url", "location"))
        and "<" not in name
        and not name.startswith("allow")
    }
    tried = {"path", "publishPath", "offsetsPath", "schemaRegistry.url"}
    # A database's address is tried on a server: integration/test_postgres_follow.py.
    assert locations == tried | {"checkpointLocation", "url"}
