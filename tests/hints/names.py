"""The names that exist, and the names in a text of a hint that do not.

A hint may name options, properties, their values, commands and their flags, columns, functions and
arguments, pages, extras and modules. Each is looked up where the product declares it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Rule
from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.declare import COLUMN, Option, Options
from spark_upsert.table.log.properties import _CHECKS as PROPERTIES
from tests.hints.texts import VALUE, parameters_of, sources
from tools.layers import ROOT
from tools.option_reference import SCOPES

OPTIONS = {
    name: [scope[name] for scope in SCOPES.values() if name in scope]
    for name in {name for scope in SCOPES.values() for name in scope}
}
"""The options of a name; that of a read and that of a write may differ."""

ELSEWHERE = {
    *("readStream", "saveAsTable", "toTable", "withColumn", "checkpointLocation"),  # Spark's
    "subscribePattern",  # of Spark's Kafka source
    *("channelIsolation", "noChannelInfluence"),  # values of an argument of a flow
    "schemaRegistry",  # the first part of several names
}
"""Names of mixed case that are no options of ours."""

COLUMNS = {"_change_type", "_commit_timestamp", "_commit_version", "_diff", "_merge_seq"}

THEIR_FUNCTIONS = {
    *("pg_drop_replication_slot", "pg_terminate_backend"),  # PostgreSQL's
    *("from_pylist", "table", "Series", "to_list", "run_end_decode"),  # Arrow's and Polars'
    *("option", "save", "start", "schema", "where", "withColumn", "col", "cast", "expr", "json"),
    *("OPTIONS", "WITH", "CAST", "IN", "DECIMAL", "decimal128", "TIME"),  # of SQL, and types
}
"""Functions of Spark and of libraries that a hint may call, and what looks like a call."""

THEIR_WORDS = {
    *("binlog_row_image", "from_avro", "from_json", "protected_hardlinks", "pyspark_datasources"),
    *("pg_drop_replication_slot", "pg_terminate_backend"),  # PostgreSQL's, as the two below
    *("publish_via_partition_root", "wal_level"),
    *("forkserver", "spawn", "subscribe", "with"),  # of Python and of Spark's Kafka source
    *("avro", "avro-confluent", "debezium", "json", "json-confluent", "kafka", "upsert"),
    *("d", "ignore", "true"),  # values of options, as those of the line before
}
"""Words in quotes or with an underscore that are no names of our code."""

COMMAND = re.compile(r"(?:['`]|run |: )upsertflow ([a-z][a-z-]+)((?: [-\w.'\"=\0]+)*)")


@cache
def flags() -> dict[str, set[str]]:
    """Return the flags of each command."""
    return {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in upsertflow.commands.items()
    }


@cache
def arguments() -> dict[str, set[str]]:
    """Return the arguments of each function and class of the product, by its name."""
    found: dict[str, set[str]] = {name: set(fields) for name, fields in sources().fields.items()}
    for name, functions in sources().functions.items():
        for _, function in functions:
            own = {*parameters_of(function)}
            if function.args.kwarg is not None:
                own.add("...")
            found.setdefault(name, set()).update(own)
    return found


@cache
def words() -> set[str]:
    """Return all names with an underscore that code may have."""
    of_options = {re.sub("(?=[A-Z])", "_", name).lower() for name in OPTIONS}
    of_code = {each for own in arguments().values() for each in own}
    rules = {rule.value for rule in Rule}
    return of_options | of_code | rules | arguments().keys() | THEIR_WORDS


def has_option(name: str) -> bool:
    """Return whether options or properties have a name, in which `VALUE` stands for any text."""
    pattern = re.compile(".*".join(map(re.escape, name.split(VALUE))))
    return any(pattern.fullmatch(each) for each in (*OPTIONS, *PROPERTIES))


def accepts(name: str, value: str) -> bool:
    """Return whether an option accepts a value; one that is only known at run time is accepted."""
    if value == "..." or VALUE in name + value or COLUMN in name:
        return True
    readers = [partial(_read, option, value) for option in OPTIONS.get(name, ())]
    for read in [partial(PROPERTIES[name], value)] if name in PROPERTIES else readers:
        with suppress(UpsertFlowError):
            read()
            return True
    return False


def _read(option: Option[Any], value: str) -> object:
    return option.read(Options({option.name: value}, [option.name]), option.name)


def unknown_names(text: str) -> list[str]:
    """Return the names and values in a text of a hint that do not exist."""
    found = (
        *_unknown_options(text),
        *_unknown_commands(text),
        *_unknown_code(text),
        *_unknown_files(text),
    )
    return list(dict.fromkeys(found))


def _unknown_options(text: str) -> Iterator[str]:
    for name in re.findall(r"(?<![\w/.])(?:[a-z]+|\0)[A-Z]\w*", text):
        if name not in ELSEWHERE and not has_option(name):
            yield name
    for name, value in re.findall(r"(\w+)=([\w-]+)", text):
        if name in OPTIONS and not accepts(name, value):
            yield f"{name}={value}"
    for name in re.findall(r"'storage\.(\w+)'", text):
        if f"`storage.{name}`" not in _read_page("docs/object-stores.md"):
            yield f"storage.{name}"
    for name in re.findall(r"(?<![=\w(])['`]([a-z][\w.-]*)['`]", text):
        is_known = name in words() or name in flags() or name.startswith("storage.")
        if not (is_known or name in COLUMNS or name in ELSEWHERE or has_option(name)):
            yield name


def _unknown_commands(text: str) -> Iterator[str]:
    for name, given in COMMAND.findall(text):
        if name not in flags():
            yield f"upsertflow {name}"
        else:
            yield from (flag for flag in _flags_of(given) if flag not in flags()[name])
    known = {flag for own in flags().values() for flag in own}
    yield from (flag for flag in _flags_of(text) if flag not in known)


def _flags_of(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text)


def _unknown_code(text: str) -> Iterator[str]:
    for name in re.findall(r"(?<![\w./])_[a-z]\w+", text):
        if name not in COLUMNS:
            yield name
    for name in re.findall(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+\b(?![\w./])", text):
        if name not in words():
            yield name
    for name, given in re.findall(r"(\w+)\(([^()]*)", text):
        if name in THEIR_FUNCTIONS:
            continue
        if name not in arguments():
            yield f"{name}(...)"
        elif "..." not in arguments()[name]:
            for argument in re.findall(r"(?:^|, )(\w+)=", given):
                if argument not in arguments()[name]:
                    yield f"{name}({argument}=...)"
    for cls, name in re.findall(r"(?<!pa\.)\b(Table|Plan)\.([a-z]\w*)", text):
        if name not in arguments():
            yield f"{cls}.{name}"
    for path in re.findall(r"\b(?:spark_upsert|pyspark_upsertflow)(?:\.\w+)+", text):
        if not _exists(path):
            yield path


def _exists(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def _unknown_files(text: str) -> Iterator[str]:
    for page in re.findall(r"docs/[\w/-]+\.md", text):
        if not (ROOT / page).exists():
            yield page
    for extra in re.findall(r"upsertflow\[(\w+)\]", text):
        project = tomllib.loads(_read_page("pyproject.toml"))["project"]
        if extra not in project["optional-dependencies"]:
            yield f"upsertflow[{extra}]"


@cache
def _read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield the place, name and value of each call of `setting` in the product."""
    for place, call in sources().calls["setting"]:
        name, *more = (_literal(each) for each in call.args)
        value = more[0] if more else "..."
        yield f"{place.path.relative_to(ROOT)}:{call.lineno}", name, value


def _literal(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(map(_literal, values))
        case _:
            return VALUE
