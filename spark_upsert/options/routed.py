"""Options of a write into many tables (`RoutedOptions`): ``table.<pattern>.<option>``.

The most specific pattern wins: a name, then the pattern with more literal characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import translate
from functools import cached_property

from spark_upsert.core.path_template import Template, is_routed
from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import OptionError, about, nearest
from spark_upsert.options.declare import (
    COLUMN,
    FREE,
    NEXT,
    STORAGE_PREFIX,
    TABLE_PREFIX,
    Change,
    Life,
    Option,
    Options,
    at_least,
    choice,
    combined_field,
    declared,
    exclusive_groups,
    flag,
    fold,
    names_for_whole_operation,
    path_below,
    read_values,
)
from spark_upsert.options.spark import drop_spark_options, missing_path
from spark_upsert.options.write import (
    WRITE_OPTIONS,
    EnvelopeKind,
    WriteOptions,
    named_transaction,
)
from spark_upsert.store.open import is_remote

TABLES_MAX = 2000
"""Largest measured count; each table has its own folders, versions and work."""

COMMIT_THREADS = 32
"""Default for remote storage: at 30 ms per request, 1 000 tables took 7 s with 16 threads and 3.7 s
with 32. A file system needs half the time with one thread, because threads would wait for each
other instead of the storage."""

COMMIT_THREADS_MAX = 256

GROUP_RETENTION_MS = 7 * 24 * 3_600_000
"""Same as the default consumer lease."""

_REGISTRY = "schemaregistry."
_REGISTRY_OPEN = frozenset({"schemaregistry.url"})
"""Storable schema registry options; the others are credentials."""

_WILDCARD = re.compile(r"[*?]|\[!?\]?[^\]]*\]")


class OnTableError(Enum):
    """Policy for tables unable to accept their rows."""

    FAIL = "fail"
    PARK = "park"


def is_routed_write(texts_by_name: Mapping[str, str]) -> bool:
    """Return whether the path contains braces, for column names."""
    return any(fold(name) == "path" and is_routed(text) for name, text in texts_by_name.items())


@dataclass(frozen=True, slots=True)
class TableOption:
    """An option for tables matching a pattern."""

    pattern: str
    """In lower case, as Spark passes names."""
    option: str
    """Option name as passed."""
    text: str

    @property
    def given(self) -> str:
        """Full name as passed."""
        return f"{TABLE_PREFIX}{self.pattern}.{self.option}"

    @property
    def is_name(self) -> bool:
        """Whether the pattern has no wildcards."""
        return _WILDCARD.search(self.pattern) is None

    @property
    def weight(self) -> tuple[bool, int]:
        """Specificity; the greatest wins."""
        return self.is_name, len(_WILDCARD.sub("", self.pattern))


def _template(options: Options, name: str) -> Template:
    path = options.text(name)
    if path is None:
        raise missing_path()
    return Template.parse(path)


def _parks(options: Options, name: str) -> bool:
    return choice(options, name, OnTableError) is OnTableError.PARK


@dataclass(frozen=True, kw_only=True)
class RoutedOptions:
    """Parsed options for a write into the tables below a root."""

    template: Template = Option(
        "path",
        _template,
        Life(Change.REFUSED, "root and template; a different root requires a new query"),
        required=True,
    ).as_field(
        "Path template: the root, then a folder per table with column names in braces: "
        "`/lake/{topic}`, `s3://b/lake/{source.db}/{source.table}`. Use dots for struct fields. "
        "Columns are strings, integers, Booleans or dates. Double a literal brace. Required."
    )
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_options: tuple[TableOption, ...] = combined_field(
        Option(
            "table.<pattern>.<option>",
            Options.text,
            Life(Change.NEXT, "like that option, for the matching tables"),
        ).with_meaning(
            "A write option for the tables whose names match the pattern: "
            "`table.shop.orders.keys`, `table.shop.*.mergeSchema`. A table's name is its path "
            "below the root, with unescaped values. `*` matches any text, `?` one character, "
            "`[ab]` one of a set; case is ignored. The pattern with the most literal characters "
            "wins; two equally specific patterns with different values are an error. Options "
            "without a pattern apply to all tables; an empty value removes an option. Options that "
            "apply to the complete write take no pattern."
        ),
        default=(),
        repr=False,
    )
    create_tables: bool = Option("createTables", flag, NEXT, default=True).as_field(
        "Whether to create a table for a new value. `false`: a value without a table is an error. "
        "Default `true`."
    )
    tables_max: int = Option("tablesMax", at_least(1), NEXT, default=TABLES_MAX).as_field(
        "Maximum number of tables below the root; one more is an error that names the value. "
        "Default `2000`."
    )
    park: bool = Option("onTableError", _parks, NEXT, default=False).as_field(
        "Policy for a table that rejects its rows (schema, invalid rows, corruption, replaced "
        "table). `fail`: the write fails. `park`: its rows go to the dead-letter table until "
        "`upsertflow replay`, and the other tables continue; an option that is invalid for all "
        "tables still fails the write. Default `fail`."
    )
    """Whether a failing table's rows become dead letters."""
    take_over: bool = Option("takeOver", flag, NEXT, default=False).as_field(
        "Stream: whether the query may take over the root from the query that writes to it, which "
        "is rejected from then on. Default `false`."
    )
    group_retention_ms: int = Option(
        "groupRetention", Options.duration_ms, NEXT, default=GROUP_RETENTION_MS
    ).as_field(
        "How long the group table retains the table versions of each complete batch (for "
        "`asOfBatch` and past versions of `metadata=group`). The query removes older records every "
        "100 batches, unless a consumer of the group needs them; also dead-letter rows that were "
        "applied or dropped, never waiting rows. Default `7 days`."
    )
    """Retention time for complete batches in the group."""
    commit_threads: int = combined_field(
        Option("commitThreads", at_least(1), FREE).with_meaning(
            "Number of tables to commit in parallel. Default `32` in an object store, `1` on a "
            "file system, where one thread is faster."
        ),
        default=COMMIT_THREADS,
    )
    checkpoint: str | None = None
    app_id: str | None = None
    app_version: int | None = None
    allow_missing_batches: bool = False
    shared: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options for all tables, as passed."""

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> RoutedOptions:
        """Parse the options for a routed write.

        Raises `OptionError` if one is unknown or malformed, or if a table sets a write-wide option.
        """
        user_texts = drop_spark_options(texts_by_name)
        table_options = tuple(
            _parse_table_option(name, text)
            for name, text in user_texts.items()
            if _is_table_option(name)
        )
        shared_texts = {
            name: text for name, text in user_texts.items() if not _is_table_option(name)
        }
        options = Options(shared_texts, {**WRITE_OPTIONS, **ROUTED_OPTIONS})
        options.refuse("deferred", "is of one table", hint="drop it: 'keep' sets it.")
        options.refuse(
            "operation",
            "is of one table",
            hint="drop it, and mark deletes by 'applyAsDeletes'; or write keys into one table.",
        )
        app_id, app_version = named_transaction(options)
        own_values = read_values(cls, options)
        of_write = {fold(name) for name in _WRITE_ONLY}
        routed_options = cls(
            storage=options.storage,
            commit_threads=_commit_threads(
                options, is_remote=is_remote(own_values["template"].root)
            ),
            checkpoint=options.text("checkpointLocation"),
            app_id=app_id,
            app_version=app_version,
            allow_missing_batches=options.flag("allowMissingBatches"),
            shared={
                name: text for name, text in shared_texts.items() if fold(name) not in of_write
            },
            table_options=table_options,
            **own_values,
        )
        routed_options._require_consistent()
        return routed_options

    @property
    def parks_nameless(self) -> bool:
        """Whether rows without a table name become dead letters instead of failing the write."""
        shared_by_fold = {fold(name): text.strip().lower() for name, text in self.shared.items()}
        return self.park or shared_by_fold.get("onerror") == ErrorPolicy.QUARANTINE.value

    @property
    def has_source_changes(self) -> bool:
        """Whether the rows are the changes of a PostgreSQL database."""
        shared_by_fold = {fold(name): text.strip() for name, text in self.shared.items()}
        return fold(shared_by_fold.get("envelope", "")) == EnvelopeKind.POSTGRES.value

    @property
    def allows_non_empty_root(self) -> bool:
        """Whether the root may contain foreign files before its first table is created."""
        shared_by_fold = {fold(name): text.strip().lower() for name, text in self.shared.items()}
        return shared_by_fold.get(fold("allowNonEmptyPath")) == "true"

    def of(self, name: str, folder: str) -> WriteOptions:
        """Return write options for a table by name and folder.

        Raises `OptionError` if equally specific patterns contradict each other, or if pattern
        options conflict with shared options.
        """
        return replace(
            self._parse_cached(name, _select_most_specific(name, self._find_matching(name))),
            path=path_below(self.template.root, folder),
        )

    def given(self, name: str) -> dict[str, str]:
        """Return a table's options as text, without secrets and storage options.

        Options on which equally specific patterns contradict each other are left out.
        """
        table_texts = self._merge_shared(
            _select_most_specific(name, self._find_matching(name), skips_contradictions=True)
        )
        return {
            option_name: text
            for option_name, text in table_texts.items()
            if not _is_secret(option_name)
        }

    def tells(self, name: str) -> bool:
        """Return whether an option names the table exactly."""
        return name.lower() in self._by_name

    @cached_property
    def digest(self) -> str:
        """Digest over all table options except secrets: 32 hexadecimal digits."""
        entries = [("", name, text) for name, text in self.shared.items()]
        entries += [
            (table_option.pattern, table_option.option, table_option.text)
            for table_option in self.table_options
        ]
        open_ = sorted(
            (p, _normalize_option(name), text) for p, name, text in entries if not _is_secret(name)
        )
        return hashlib.blake2b(repr(open_).encode(), digest_size=16).hexdigest()

    def unmatched(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return patterns matching no name, sorted."""
        lower = {name.lower() for name in names}
        met = lower | {
            table_option.pattern
            for matcher, table_option in self._by_pattern
            if any(map(matcher.match, lower))
        }
        return tuple(sorted({table_option.pattern for table_option in self.table_options} - met))

    def __getstate__(self) -> dict[str, object]:
        # What is derived does not travel.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def _by_name(self) -> dict[str, list[TableOption]]:
        options_by_name: dict[str, list[TableOption]] = {}
        for table_option in self.table_options:
            if table_option.is_name:
                options_by_name.setdefault(table_option.pattern, []).append(table_option)
        return options_by_name

    @cached_property
    def _by_pattern(self) -> list[tuple[re.Pattern[str], TableOption]]:
        patterns = [table_option for table_option in self.table_options if not table_option.is_name]
        return [
            (re.compile(translate(table_option.pattern)), table_option) for table_option in patterns
        ]

    @cached_property
    def _parsed_cache(self) -> dict[frozenset[tuple[str, str]], WriteOptions]:
        """Cache for parsed options, shared by tables with equal options."""
        return {}

    def _find_matching(self, name: str) -> list[TableOption]:
        lower = name.lower()
        matching = (
            table_option for pattern, table_option in self._by_pattern if pattern.match(lower)
        )
        return [*self._by_name.get(lower, ()), *matching]

    def _parse_cached(self, name: str, chosen: Mapping[str, str]) -> WriteOptions:
        key = frozenset(chosen.items())
        write_options = self._parsed_cache.get(key)
        if write_options is None:
            texts = self._merge_shared(chosen)
            with about("table", name):
                write_options = self._parsed_cache[key] = WriteOptions.parse({**texts, "path": "/"})
        return write_options

    def _merge_shared(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Merge the shared options with the options chosen for one table."""
        return overridden(self.shared, chosen)

    def _require_consistent(self) -> None:
        """Validate before tables exist, treating each pattern as a name."""
        patterns = {table_option.pattern for table_option in self.table_options}
        for pattern in sorted(patterns):
            pattern_options = [
                table_option
                for table_option in self.table_options
                if table_option.pattern == pattern
            ]
            heard = [
                *sorted(self._find_matching(pattern), key=lambda option: option.weight),
                *pattern_options,
            ]
            held = {_normalize_option(table_option.option): table_option for table_option in heard}
            self._parse_cached(
                pattern, {table_option.option: table_option.text for table_option in held.values()}
            )
        if "*" not in patterns:
            WriteOptions.parse({**self.shared, "path": "/"})


def overridden(texts_by_name: Mapping[str, str], otherwise: Mapping[str, str]) -> dict[str, str]:
    """Override a table's options, whatever their spelling.

    ``columnList`` and ``exceptColumnList`` remove each other; an empty text removes an option.
    """
    replaced = set(map(_normalize_option, otherwise))
    for group in _EXCLUSIVE:
        replaced |= set(group) if replaced & set(group) else set()
    remaining = {
        option_name: text
        for option_name, text in texts_by_name.items()
        if _normalize_option(option_name) not in replaced
    }
    return {
        **remaining,
        **{option_name: text for option_name, text in otherwise.items() if text.strip()},
    }


def _is_secret(name: str) -> bool:
    folded = fold(name)  # It may be written in any way in which it is known.
    is_of_access = folded.startswith(_REGISTRY) and folded not in _REGISTRY_OPEN
    return is_of_access or folded.startswith(STORAGE_PREFIX)


def _is_table_option(name: str) -> bool:
    return name.lower().startswith(TABLE_PREFIX)


def _parse_table_option(name: str, text: str) -> TableOption:
    """Parse a table option, splitting at the first dot before a known option.

    Raises `OptionError` without a pattern or a known option, and for a write-wide option.
    """
    words = name[len(TABLE_PREFIX) :].split(".")
    for at in range(1, len(words)):
        pattern, option = ".".join(words[:at]), ".".join(words[at:])
        if fold(option) in _FOLDED_WRITE_ONLY or option.lower().startswith(STORAGE_PREFIX):
            raise OptionError(
                f"option '{name}': '{option}' is of the whole write, and not of a table.",
                hint=f"give '{option}' without '{TABLE_PREFIX}{pattern}.'.",
                option=name,
            )
        if pattern and _is_of_tables(option):
            return TableOption(pattern.lower(), option, text)
    near = nearest(words[-1], WRITE_OPTIONS)
    meant = f"'{TABLE_PREFIX}{'.'.join(words[:-1]) or '<pattern>'}.{near}'"
    raise OptionError.refused(
        name,
        f"names no table and option: expected '{TABLE_PREFIX}<pattern>.<option>'",
        hint=f"Did you mean {meant}?"
        if near
        else f"write for example '{TABLE_PREFIX}shop.*.keys'.",
    )


ROUTED_OPTIONS = declared(RoutedOptions)

_WRITE_ONLY = (
    *names_for_whole_operation(WRITE_OPTIONS),
    *(name for name in ROUTED_OPTIONS if not name.startswith(TABLE_PREFIX)),
)
"""Options not settable for a single table."""

_EXCLUSIVE = tuple(tuple(map(fold, group)) for group in exclusive_groups(WRITE_OPTIONS))
"""Groups from which a table setting one option does not inherit the other."""

_FOLDED_WRITE_ONLY = frozenset(map(fold, _WRITE_ONLY))
_FOLDED = frozenset(fold(name) for name in WRITE_OPTIONS if COLUMN not in name)
_FAMILIES = tuple(fold(name.removesuffix(COLUMN)) for name in WRITE_OPTIONS if COLUMN in name)


def _is_of_tables(option: str) -> bool:
    folded = fold(option)
    is_of_column = any(folded.startswith(prefix) and folded != prefix for prefix in _FAMILIES)
    return folded in _FOLDED or is_of_column


def _normalize_option(option: str) -> str:
    """Normalize an option for comparison; a column keeps its ``-`` and ``_``."""
    prefix, dot, column = option.partition(".")
    return f"{fold(prefix)}.{column.lower()}" if fold(prefix + dot) in _FAMILIES else fold(option)


def _select_most_specific(
    name: str, about: Iterable[TableOption], *, skips_contradictions: bool = False
) -> dict[str, str]:
    """Return the most specific value per option."""
    by_option: dict[str, list[TableOption]] = {}
    for table_option in about:
        by_option.setdefault(_normalize_option(table_option.option), []).append(table_option)
    chosen = {}
    for candidates in by_option.values():
        try:
            strongest = _strongest(name, candidates)
        except OptionError:
            if not skips_contradictions:
                raise
            continue
        chosen[strongest.option] = strongest.text
    return chosen


def option_of_table(name: str) -> str:
    """Return the option without its table prefix."""
    return _parse_table_option(name, "").option if _is_table_option(name) else name


def _strongest(name: str, about: Sequence[TableOption]) -> TableOption:
    most = max(table_option.weight for table_option in about)
    one, *others = (table_option for table_option in about if table_option.weight == most)
    for competitor in others:
        if competitor.text != one.text:
            raise OptionError(
                f"options '{one.given}' and '{competitor.given}' say different things about the "
                f"table '{name}', and neither says more of its name.",
                hint=f"add '{TABLE_PREFIX}{name}.{one.option}', or change one of the two.",
                option=one.given,
                other=competitor.given,
            )
    return one


def _commit_threads(options: Options, *, is_remote: bool) -> int:
    threads = options.number("commitThreads", least=1)
    if threads is not None and threads > COMMIT_THREADS_MAX:
        raise OptionError.invalid(
            "commitThreads", threads, f"a whole number from 1 to {COMMIT_THREADS_MAX}"
        )
    if threads is None:
        return COMMIT_THREADS if is_remote else 1
    return threads
