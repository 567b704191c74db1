"""Inputs of a read and their options (`ReadPlan`): ``inputs=east,west``, ``input.east.path=...``.

Options without a prefix apply to the query, and to each input not setting them. With
``inputsPattern`` inputs are discovered (`DiscoveryOptions`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from spark_upsert.core.lsn import lsn_argument
from spark_upsert.errors import OptionError, about, did_you_mean, is_url
from spark_upsert.options.declare import (
    BATCH,
    Change,
    Life,
    Option,
    Options,
    at_least,
    combined_field,
    declared,
    exclusive_groups,
    flag,
    fold,
    names_for_whole_operation,
    path_below,
)
from spark_upsert.options.read import READ_OPTIONS, MergeOptions, QueryOptions, ReadOptions
from spark_upsert.options.spark import drop_spark_options
from spark_upsert.options.views import ON_ERROR, PLAN, ViewOptions, plan_paths
from spark_upsert.scheduler.scheduler import parse_priority
from spark_upsert.table.log.manifest import TableVersion

UNNAMED = ""
"""Name for the only input if the read names none."""

TABLE = "upsertflow"
"""Format for table inputs."""

VIEW = "view"
"""Format for the only input if the read has a plan; cannot be set by an option."""

_PREFIX = "input."
_FORMAT = "format"
_PRIORITY = "priority"
_PATH = "path"
_NAME = re.compile(r"[\w-]+")


_UNSUPPORTED_GLOB = re.compile(r"\*\*|\{[^/]*,[^/]*\}")
"""Unsupported glob syntax: any depth, or alternatives."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob for folders below a root, one part per level."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse a pattern.

        Raises `OptionError` if it is empty or absolute, leads upwards, or has ``**`` or ``{a,b}``.
        """
        parts = text.strip().split("/")
        if not all(parts) or any(
            part in (".", "..") or _UNSUPPORTED_GLOB.search(part) for part in parts
        ):
            raise OptionError.invalid(
                "inputsPattern",
                text,
                "a glob over the folders below 'path'",
                hint="write '*' for all tables directly below 'path', or one part for each level, "
                "such as 'region=*/orders'; '**', '..', '{a,b}' and a '/' at either end have no "
                "meaning.",
            )
        return cls(tuple(parts))

    def __str__(self) -> str:
        return "/".join(self.parts)


def _pattern(options: Options, name: str) -> Pattern | None:
    text = options.text(name)
    return None if text is None else Pattern.parse(text)


def _lsn(options: Options, name: str) -> int | None:
    text = options.text(name)
    return None if text is None else lsn_argument(name, text)


_AS_OF_BATCH = ("asOfBatch", "asOfLsn", "asOfSourceTime")


def _as_of_option(options: Options) -> str | None:
    """Return the option that chooses an earlier batch, None if there is none."""
    options.refuse_together(*_AS_OF_BATCH)
    return next((name for name in _AS_OF_BATCH if options.text(name) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The table version to read for a complete batch."""

    place: TableVersion
    batch: int | None
    """Batch number; None if the batch has none."""


@dataclass(frozen=True, kw_only=True)
class DiscoveryOptions:
    """Options for discovered inputs: tables below a root, matched by a pattern."""

    root: str
    pattern: Pattern = Option(
        "inputsPattern",
        _pattern,
        Life(
            Change.REFUSED,
            "if it no longer matches a table (`failOnDataLoss`); new tables join",
        ),
        required=True,
    ).as_field(
        "Instead of `inputs`: a glob for folders below `path`, such as `*` or `region=*/orders`. "
        "Each matching table is an input, named by its path below `path`. New tables join a "
        "running stream with all their rows. A missing table is an error, or with "
        "`failOnDataLoss=false` a warning."
    )
    storage: Mapping[str, str] = field(repr=False)
    fail_on_data_loss: bool
    begins_at_latest: bool
    shared: Mapping[str, str] = field(repr=False)
    """Options for each input."""
    is_consistent: bool = Option(
        "consistent",
        flag,
        Life(Change.NEXT, "the batch may wait until all tables have it"),
        default=False,
    ).as_field(
        "With `inputsPattern`, or `inputs` and the root as `path`, for tables that one query "
        "writes (its `path` has braces): read all tables at the newest batch that is complete in "
        "each of them. A stream never reads past it. Tables without a batch are left out. Default "
        "`false`."
    )
    """Whether all inputs are read at the same batch from the query writing them."""
    as_of_batch: int | None = Option("asOfBatch", at_least(0), BATCH).as_field(
        "Batch: like `consistent`, at an earlier batch, by its number in the writing query."
    )
    """Batch number; None for the newest."""
    as_of_lsn: int | None = Option("asOfLsn", _lsn, BATCH).as_field(
        "Batch: like `consistent`, for tables that follow a PostgreSQL database: at the newest "
        "batch that is `whole` at or before a position of its log, such as `0/1A2B3C4`."
    )
    as_of_source_time_ms: int | None = Option(
        "asOfSourceTime", Options.timestamp_ms, BATCH
    ).as_field(
        "Batch: like `asOfLsn`, by the database's commit time of the batch's last transaction "
        "(ISO 8601, UTC by default, or milliseconds since 1970)."
    )
    as_of: str | None = None
    """The option that chooses an earlier batch; None for the newest."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Folders by input name; empty if inputs are discovered and named after their folders."""

    @classmethod
    def of_named(
        cls, options: Options, shared: Mapping[str, str], paths: Mapping[str, str]
    ) -> DiscoveryOptions:
        """Parse the options for named inputs read at the same batch.

        Raises `OptionError` for an input outside the root, which is the ``path``.
        """
        _refuse_inconsistent(options)
        root = options.path().rstrip("/")
        path_by_name = {name: path.strip().rstrip("/") for name, path in paths.items()}
        for name, path in path_by_name.items():
            if not path.startswith(f"{root}/"):
                raise OptionError(
                    f"the input '{name}' lies at '{path}', and not below '{root}': inputs are read "
                    "at one batch only where one query writes them below one root.",
                    hint=f"give the root as 'path', and 'input.{name}.path' = '{root}/...'.",
                    option=f"input.{name}.path",
                )
        return cls(
            **_shared_fields(options, shared),
            pattern=Pattern(("*",)),
            fail_on_data_loss=True,
            is_consistent=True,
            named={
                name: unquote(folder) if ":/" in root else folder
                for name, folder in (
                    (name, path[len(root) + 1 :]) for name, path in path_by_name.items()
                )
            },
        )

    @classmethod
    def parse(cls, options: Options, shared: Mapping[str, str]) -> DiscoveryOptions | None:
        """Parse the options; None if no pattern is set.

        ``shared`` has the query options also valid for tables.
        """
        pattern = _pattern(options, "inputsPattern")
        if pattern is None:
            return None
        options.refuse_together("inputsPattern", "inputs")
        options.refuse(
            "metadata",
            "has no meaning beside 'inputsPattern': it is of one table",
            hint="drop 'inputsPattern', and give the 'path' of the table.",
        )
        as_of = _as_of_option(options)
        is_consistent = options.flag("consistent", default=as_of is not None)
        if is_consistent:
            _refuse_inconsistent(options)
        elif as_of is not None:
            raise OptionError.conflict("consistent=false", as_of)
        return cls(
            **_shared_fields(options, shared),
            pattern=pattern,
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            is_consistent=is_consistent,
        )

    def input_texts(self, name: str, *, joins: bool = False) -> dict[str, str]:
        """Return options for the table at a path below the root, in addition to `shared`.

        With ``joins`` the table joins a running stream and is read from its beginning: all its rows
        are new.
        """
        texts = {"path": path_below(self.root, self.named.get(name, name))}
        if joins and self.begins_at_latest:
            texts["startingVersion"] = "earliest"
        return texts


def _shared_fields(options: Options, shared: Mapping[str, str]) -> dict[str, Any]:
    """Return the `DiscoveryOptions` fields shared by discovered and named inputs."""
    return {
        "root": options.path(),
        "storage": options.storage,
        "as_of": _as_of_option(options),
        "as_of_batch": options.number("asOfBatch"),
        "as_of_lsn": _lsn(options, "asOfLsn"),
        "as_of_source_time_ms": options.timestamp_ms("asOfSourceTime"),
        "begins_at_latest": (options.text("startingVersion") or "").lower() == "latest",
        "shared": {name: text for name, text in shared.items() if fold(name) != "path"},
    }


def _refuse_inconsistent(options: Options) -> None:
    """Raise for options selecting another version than the batch's, or only a part."""
    for name in ("versionAsOf", "timestampAsOf", "endingVersion", "endingTimestamp"):
        if options.text(name) is not None:
            raise OptionError.conflict(
                "consistent",
                name,
                why="the batch says at which version each table is read",
                hint="drop one of them; an earlier batch is read by 'asOfBatch'.",
            )
    if not options.flag("failOnDataLoss", default=True):
        raise OptionError.conflict(
            "consistent",
            "failOnDataLoss=false",
            why="a read that leaves out what is lost has not the same batch of all tables",
            hint="drop one of them.",
        )


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Options for one input."""

    name: str
    """Name as written; `UNNAMED` for the only input if the read names none."""
    own: Mapping[str, str] = combined_field(
        Option(
            "input.<name>.<option>",
            Options.text,
            Life(Change.NEXT, "like that option, for this input"),
        ).with_meaning(
            "A read option for one input, such as `input.east.path`. Without the prefix, an option "
            "applies to every input that does not override it. `columns`, `readChangeFeed`, "
            "`parallelism` and the limits per trigger apply to the query only."
        ),
        repr=False,
    )
    """Options set for this input only, by name as passed; Spark lowercases names."""
    format: str = Option(
        "input.<name>.format",
        Options.text,
        Life(Change.REFUSED),
        required=True,
    ).as_field(
        "Input type. `upsertflow`: a table. `python:name` or `python:module:Class`: another Python "
        "data source, by its registered name or its class; it receives all other options of the "
        "input. Default `upsertflow`."
    )
    """Format as written; `TABLE` and `VIEW` in their canonical case."""
    shared: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Query options also valid for table reads."""
    pin: Pin | None = None
    """End version for a batch read from many tables; None otherwise."""

    def of_table(self) -> ReadOptions:
        """Parse the options for a table read.

        Raises `OptionError` if one is unknown, malformed, or applies to the query only.
        """
        with about("input", self.name):
            self._require_of_table()
            return ReadOptions.parse(self._merged())

    def _require_of_table(self) -> None:
        """Raise if a named input has no path or sets a query-only option."""
        if not self.name:
            return
        for name in self.own:
            if (of_query := _find_option(name, _QUERY_ONLY)) is not None:
                raise OptionError.refused(
                    of_query,
                    "is of the query, and not of an input",
                    hint=f"give '{of_query}' without '{_PREFIX}{self.name}.'.",
                )
        if not any(fold(name) == _PATH and text.strip() for name, text in self.own.items()):
            path = f"{_PREFIX}{self.name}.{_PATH}"
            raise OptionError(
                f"the option '{path}' is required (where it lies), but was not given.",
                hint=f"give '{path}', or drop '{self.name}' from 'inputs'.",
                option=_PATH,
            )

    def with_all_columns(self) -> InputOptions:
        """Return a copy without the query's `columns`."""
        remaining = {name: text for name, text in self.shared.items() if fold(name) != "columns"}
        return replace(self, shared=remaining)

    def _merged(self) -> dict[str, str]:
        folded_names = {fold(name) for name in self.own}
        for group in _EXCLUSIVE:
            folded = {fold(name) for name in group}
            if folded_names & folded:
                folded_names |= folded
        shared = {
            name: text for name, text in self.shared.items() if fold(name) not in folded_names
        }
        return {**shared, **self.own}


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """A parsed read: query options, and inputs in declared order."""

    query: QueryOptions
    inputs: tuple[InputOptions, ...] = combined_field(
        Option(
            "inputs",
            Options.text,
            Life(
                Change.REFUSED,
                "if you remove an input (`allowInputRemoval`); new inputs join; their order only "
                "matters in an exact order, where a change is refused",
            ),
        ).with_meaning(
            "Comma-separated input names, instead of `path`. The checkpoint and error messages "
            "identify an input by its name."
        ),
        default=(),
    )
    """Empty if inputs are discovered."""
    discovery: DiscoveryOptions | None = None
    """Discovery options; None if inputs are named."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Query-wide storage options."""

    @property
    def is_unnamed(self) -> bool:
        """Whether the read has a single unnamed input: a table or a view."""
        return self.discovery is None and self.inputs[0].name == UNNAMED

    @property
    def is_of_table(self) -> bool:
        """Whether the read has a single unnamed table."""
        return self.is_unnamed and self.inputs[0].format == TABLE

    @property
    def view(self) -> ViewOptions:
        """The view's options; only for reads with a plan."""
        assert self.inputs[0].format == VIEW
        return ViewOptions.parse(self.inputs[0].own)

    @property
    def paths(self) -> list[str]:
        """Input paths as far as options contain them; the root if inputs are discovered."""
        if self.discovery is not None:
            return [self.discovery.root]
        if self.inputs[0].format == VIEW:
            return plan_paths(self.view.plan)
        return [
            text
            for input_ in self.inputs
            for name, text in input_.own.items()
            if fold(name) == "path"
        ]

    def input_below(
        self, name: str, *, joins: bool = False, pin: Pin | None = None
    ) -> InputOptions:
        """Return the options for a discovered input (`DiscoveryOptions.input_texts`)."""
        assert self.discovery is not None
        texts = self.discovery.input_texts(name, joins=joins)
        return InputOptions(
            name=name, format=TABLE, own=texts, shared=self.discovery.shared, pin=pin
        )

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> ReadPlan:
        """Parse the options for a read.

        Raises `OptionError` if an option is unknown or malformed, an input is named twice or not at
        all, or an option refers to a missing input. Formats validate their own input options.
        """
        of_query, of_inputs = _split_by_input(drop_spark_options(texts_by_name))
        _refuse_priority_of_all(of_query, of_inputs)
        options = Options(of_query, {**READ_OPTIONS, **INPUT_OPTIONS})
        if options.text(PLAN) is None:
            options.refuse(
                "deferred",
                f"has no meaning without '{PLAN}': only what is read of a view is put off",
                hint="drop it: 'keep' sets it.",
            )
            _refuse_on_error(options)
        names = _names(options.text("inputs"))
        shared = {
            name: text
            for name, text in of_query.items()
            if _find_option(name, INPUT_OPTIONS) is None
        }
        if (discovery := DiscoveryOptions.parse(options, shared)) is not None:
            _refuse_of_inputs(of_inputs)
            options.refuse(
                "allowInputRemoval",
                "is about inputs that are named, and these are found",
                hint="give failOnDataLoss=false to go on without tables that are gone.",
            )
            return cls(
                query=QueryOptions.parse(options),
                inputs=(),
                discovery=discovery,
                storage=options.storage,
            )
        if not names:
            _refuse_without_root(options)
            _refuse_without_inputs(options, of_inputs)
            if options.text(PLAN) is not None:
                view = ViewOptions.parse(of_query)
                only_input = InputOptions(name=UNNAMED, format=VIEW, own=of_query)
                return cls(query=view.query, inputs=(only_input,), storage=view.storage)
            only_input = InputOptions(name=UNNAMED, format=TABLE, own=of_query)
            return cls(query=QueryOptions.parse(options), inputs=(only_input,))
        texts_by_input = _group_by_input(names, of_inputs)
        if (discovery := _named_discovery(options, shared, texts_by_input)) is not None:
            query = QueryOptions.parse(options, _parse_priorities(texts_by_input))
            return cls(query=query, inputs=(), discovery=discovery, storage=options.storage)
        for name, reason in (
            ("path", "each input has its own"),
            ("metadata", "it is of one table"),
            (PLAN, "a view names its tables itself"),
        ):
            options.refuse(
                name,
                f"has no meaning beside 'inputs': {reason}",
                hint=f"drop 'path', and give '{_PREFIX}{names[0]}.path'."
                if name == "path"
                else "drop 'inputs', and give the 'path' of the table."
                if name == "metadata"
                else "drop 'inputs'.",
            )
        priority_by_input = _parse_priorities(texts_by_input)
        inputs = tuple(_input(name, texts_by_input[name], shared) for name in names)
        _refuse_one_path_twice(inputs)
        _refuse_of_tables(shared, inputs)
        query = QueryOptions.parse(options, priority_by_input)
        return cls(query=query, inputs=inputs, storage=options.storage)


def _refuse_on_error(options: Options) -> None:
    options.refuse(
        ON_ERROR,
        f"has no meaning without '{PLAN}': a table has no formulas",
        hint="drop it; what a write does with rows that it cannot apply, the write says.",
    )


def _split_by_input(
    texts_by_name: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Split into query options and options per input, by lowercase input name."""
    of_query: dict[str, str] = {}
    of_inputs: dict[str, dict[str, str]] = {}
    for name, text in texts_by_name.items():
        if not name.lower().startswith(_PREFIX):
            of_query[name] = text
            continue
        input_name, dot, option_name = name[len(_PREFIX) :].partition(".")
        if not (input_name and dot and option_name):
            raise OptionError.refused(
                name,
                "names no option of an input",
                hint=f"write {_PREFIX}<name>.<option>, such as '{_PREFIX}east.path'.",
            )
        of_inputs.setdefault(input_name.lower(), {})[option_name] = text
    return of_query, of_inputs


def _refuse_of_tables(shared: Mapping[str, str], inputs: Sequence[InputOptions]) -> None:
    """Raise for table options if no input is a table, and for `filter` if any input is not a table.

    Other table options apply to the tables among the inputs.
    """
    first_other = next((input_ for input_ in inputs if input_.format != TABLE), None)
    if first_other is None:
        return
    tables = [input_.name for input_ in inputs if input_.format == TABLE]
    for name in shared:
        meant = _find_option(name, READ_OPTIONS)
        if meant is None or meant in _QUERY_OPTIONS or meant in _OF_EVERY_INPUT:
            continue
        if not tables:
            raise OptionError.refused(
                meant,
                "is of tables, and no input is one",
                hint=f"drop '{meant}'; or, if '{first_other.name}' is a table, "
                f"'{_PREFIX}{first_other.name}.{_FORMAT}'.",
            )
        if meant == "filter":
            raise OptionError(
                f"option 'filter' is of tables, and '{first_other.name}' is none: its rows would "
                "not be filtered.",
                hint=f"give '{_PREFIX}{tables[0]}.filter', for that table alone; or filter behind "
                "the read, with where(...).",
                option=meant,
            )


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise OptionError.invalid(
                "inputs",
                text,
                "comma-separated names of letters, digits, '_' and '-'",
                hint="give names of letters, digits, '_' and '-', and say by 'input.<name>.path' "
                "where each lies: a folder may have other characters in its name.",
            )
    first_spellings: dict[str, str] = {}
    for name in names:
        if (first_spelling := first_spellings.get(name.lower())) is not None:
            as_what = "" if first_spelling == name else f", as '{first_spelling}', too"
            raise OptionError.refused(
                "inputs",
                f"names '{name}' twice{as_what}",
                hint="name each input once; case does not tell them apart.",
            )
        first_spellings[name.lower()] = name
    return names


def _group_by_input(
    names: tuple[str, ...], of_inputs: Mapping[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the options set for each input, by input name as written."""
    by_lower = {name.lower(): name for name in names}
    texts_by_input: dict[str, dict[str, str]] = {name: {} for name in names}
    for lower, texts in of_inputs.items():
        if lower not in by_lower:
            raise OptionError(
                f"option '{_PREFIX}{lower}.{next(iter(texts))}' is of an input that 'inputs' "
                f"({', '.join(names)}) does not name.",
                hint=did_you_mean(lower, names),
                option="inputs",
            )
        texts_by_input[by_lower[lower]] = texts
    return texts_by_input


def _named_discovery(
    options: Options, shared: Mapping[str, str], texts_by_input: Mapping[str, Mapping[str, str]]
) -> DiscoveryOptions | None:
    """Return discovery options for named inputs read at the same batch; None if not requested.

    By default an input's name is its folder. Inputs may only differ in path and priority.
    """
    if not options.flag("consistent", default=_as_of_option(options) is not None):
        _refuse_without_root(options)
        return None
    options.refuse(
        ("metadata", PLAN, "allowInputRemoval"),
        "has no meaning where named inputs are read at one batch",
        hint="drop it.",
    )
    paths = {}
    for name, texts in texts_by_input.items():
        for option in texts:
            if fold(option) not in (_PATH, _PRIORITY):
                raise OptionError(
                    f"option '{_PREFIX}{name}.{option}': inputs that are read at one batch differ "
                    "in their paths and priorities alone.",
                    hint=f"give '{option}' without '{_PREFIX}{name}.', for all of them.",
                    option=f"{_PREFIX}{name}.{option}",
                )
        path = next((text for option, text in texts.items() if fold(option) == _PATH), None)
        paths[name] = path_below(options.path(), name) if path is None else path
    _refuse_one_path_twice(tuple(_input(name, {_PATH: path}, {}) for name, path in paths.items()))
    return DiscoveryOptions.of_named(options, shared, paths)


def _refuse_of_inputs(of_inputs: Mapping[str, Mapping[str, str]]) -> None:
    for name, texts in of_inputs.items():
        raise OptionError(
            f"option '{_PREFIX}{name}.{next(iter(texts))}' is given, but not 'inputs'.",
            hint=f"give 'inputs', such as 'inputs' = '{','.join(of_inputs)}'.",
            option="inputs",
        )


def _refuse_without_root(options: Options) -> None:
    options.refuse(
        ("consistent", *_AS_OF_BATCH),
        "is about tables below one root, that one query writes",
        hint="give the root as 'path', and the tables by 'inputsPattern': '*' is all of them.",
    )


def _refuse_without_inputs(options: Options, of_inputs: Mapping[str, Mapping[str, str]]) -> None:
    _refuse_of_inputs(of_inputs)
    options.refuse(
        INPUT_OPTIONS, "has no meaning without 'inputs'", hint="give 'inputs', or drop the option."
    )


def _refuse_priority_of_all(of_query: Mapping[str, str], of_inputs: Mapping[str, object]) -> None:
    for name in of_query:
        if fold(name) == _PRIORITY:
            raise OptionError.refused(
                name,
                "is of one input, since it says which one comes before others",
                hint=f"give '{_PREFIX}{next(iter(of_inputs), '<name>')}.{_PRIORITY}' beside "
                "'inputs', or write to the table with the option 'priority', which is a property "
                "of it then.",
            )


def _parse_priorities(texts_by_input: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return explicit priorities by input name."""
    priority_by_input: dict[str, int] = {}
    for input_name, texts in texts_by_input.items():
        for name, text in texts.items():
            if fold(name) == _PRIORITY:
                option = f"{_PREFIX}{input_name}.{_PRIORITY}"
                priority_by_input[input_name] = parse_priority(text, option=option)
    return priority_by_input


def _input(name: str, texts_by_name: Mapping[str, str], shared: Mapping[str, str]) -> InputOptions:
    texts = {key: text for key, text in texts_by_name.items() if fold(key) != _PRIORITY}
    formats = [texts.pop(key) for key in list(texts) if fold(key) == _FORMAT]
    return InputOptions(
        name=name, format=_input_format((formats or [TABLE])[-1]), own=texts, shared=shared
    )


def _input_format(text: str) -> str:
    """Return an input format, `TABLE` and `VIEW` in their canonical case."""
    name, colon, rest = text.strip().partition(":")
    canonical = {fold(each): each for each in (TABLE, VIEW)}.get(fold(name), name)
    return f"{canonical}{colon}{rest}"


def _refuse_one_path_twice(inputs: tuple[InputOptions, ...]) -> None:
    name_by_path: dict[tuple[str, str], str] = {}
    for input_ in inputs:
        path = next((text for name, text in input_.own.items() if fold(name) == _PATH), None)
        if path is None:
            continue
        path = path.strip().rstrip("/")
        full_path = path if is_url(path) else os.path.abspath(path)
        first_name = name_by_path.setdefault((input_.format, full_path), input_.name)
        if first_name != input_.name:
            raise listed_twice(first_name, input_.name, f"at '{full_path}'")


def listed_twice(one: str, other: str, what: str) -> OptionError:
    """Return the error for two inputs with the same data."""
    return OptionError(
        f"the inputs '{one}' and '{other}' are the same, {what}: each row would come twice.",
        hint=f"drop '{other}' from 'inputs', or correct its path; a copy that 'inputsPattern' "
        "finds belongs elsewhere.",
        option="inputs",
        input=other,
    )


def _find_option(name: str, known: Iterable[str]) -> str | None:
    """Return the known option matching a name, else None."""
    return next((option for option in known if fold(option) == fold(name)), None)


INPUT_OPTIONS = declared(ReadPlan, DiscoveryOptions, InputOptions, MergeOptions)

_QUERY_OPTIONS = declared(QueryOptions)
"""Options independent of input formats."""

_QUERY_ONLY = (
    *names_for_whole_operation(READ_OPTIONS),
    *(name for name in INPUT_OPTIONS if not name.startswith(_PREFIX)),
)
"""Options not settable for a single input."""

_EXCLUSIVE = exclusive_groups(READ_OPTIONS)
"""Groups from which an input setting one option does not inherit the others."""

_OF_EVERY_INPUT = ("failOnDataLoss",)
"""Table read options also valid for other formats."""
