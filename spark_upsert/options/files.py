"""The checked options of a growing set of files that is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.options.parse import Options
from spark_upsert.options.reference import FILE_OPTIONS
from spark_upsert.payloads.ddl import parse_schema


class FileFormat(Enum):
    """How files are written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    JSON = "json"
    CSV = "csv"


_CSV_ONLY = ("header", "sep", "quote", "escape", "nullValue")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The checked options of one set of files."""

    format: FileFormat
    path: str
    storage: Mapping[str, str] = field(repr=False)
    schema: pa.Schema | None = None
    glob: str | None = None
    is_recursive: bool = False
    merge_schema: bool = False
    fail_on_data_loss: bool = True
    header: bool = True
    separator: str = ","
    quote: str = '"'
    escape: str | None = None
    null_value: str = ""
    is_projected: bool = False
    """Whether the query chooses among the columns, so that files may have others."""
    counts_rows: bool = False
    """Whether a limit of rows needs to know how many a file has."""

    @classmethod
    def parse(
        cls, format_: FileFormat, given: Mapping[str, str], *, counts_rows: bool = False
    ) -> FileOptions:
        """Check the options of a set of files; raises `OptionError`."""
        options = Options(given, FILE_OPTIONS)
        if format_ is not FileFormat.CSV:
            for name in _CSV_ONLY:
                options.refuse(name, f"has no meaning for {format_.value} files", hint="drop it.")
        text = options.text("schema")
        schema = None if text is None else parse_schema("schema", text, bare_name="value")[0]
        return cls(
            format=format_,
            path=options.path(),
            storage=options.storage,
            schema=schema,
            glob=_glob(options.text("pathGlobFilter")),
            is_recursive=options.flag("recursiveFileLookup"),
            merge_schema=options.flag("mergeSchema"),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            header=options.flag("header", default=True),
            separator=_char("sep", options, ","),
            quote=_char("quote", options, '"'),
            escape=_char("escape", options, "") or None,
            null_value=options.text("nullValue") or "",
            counts_rows=counts_rows,
        )


def _glob(text: str | None) -> str | None:
    if text is not None and set(text) & set("/{}"):
        raise OptionError.invalid(
            "pathGlobFilter",
            text,
            "a pattern of a file's name with *, ? and [...], without '/' and braces",
            hint="give several inputs, one for each pattern; folders below are read by "
            "recursiveFileLookup=true.",
        )
    return text


def _char(name: str, options: Options, default: str) -> str:
    value = options.raw(name)
    if value is None:
        return default
    value = {r"\t": "\t"}.get(value, value)
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise OptionError.invalid(name, value, "one ASCII character")
    return value
