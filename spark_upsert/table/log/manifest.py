"""The log's values: a proposal (`Draft`), a version (`Commit`), the table at it (`Manifest`).

``manifest(v) = apply(manifest(v - 1), commit(v))``. A manifest lists *slices*: a run, its live hash
range and its epochs, in epoch and task order; where nothing else decides, the later slice wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from spark_upsert.core.durations import render_time
from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.python_values import whole_argument
from spark_upsert.core.schema import TableSchema
from spark_upsert.core.source_positions import BINLOG_NAMES, parse_binlog_names
from spark_upsert.errors import CorruptionError, DataError, OptionError
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.store.records import text as text_in
from spark_upsert.table.log.slices import RemovedRange as RemovedRange
from spark_upsert.table.log.slices import Slice as Slice
from spark_upsert.table.log.slices import SliceColumns, SliceList
from spark_upsert.table.run.file import RunFile


class Kind(Enum):
    """A version's effect on the table."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    COMPACT = "compact"
    ALTER = "alter"
    EXPIRE = "expire"
    CLOCK = "clock"


QUERY = "query:"
"""Prefix for writer names of streaming queries; the query's id follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A writer and its sequence number: the idempotence key for its commit."""

    writer: str
    number: int
    """From 0 to 2**63 - 1, and growing."""
    is_consecutive: bool = field(default=False, compare=False)
    """Whether the writer counts 0, 1, 2, ...: then the table must contain all its previous numbers.
    A condition for one commit, not stored."""

    def __post_init__(self) -> None:
        is_text = type(self.writer) is str
        if not is_text or self.writer.encode(errors="ignore").decode() != self.writer:
            raise OptionError.invalid("writer of a transaction", self.writer, "a text")
        number = whole_argument("number of a transaction", self.number)
        object.__setattr__(self, "number", number)

    @staticmethod
    def writer_of_query(query_id: str) -> str:
        """Return a streaming query's writer name."""
        return f"{QUERY}{query_id}"

    @staticmethod
    def writer_of_app(app_id: str) -> str:
        """Return the writer name for an application id (``txnAppId``)."""
        return f"app:{app_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposed version, without the values assigned only by the log.

    It has no number, time or token, so the same draft may be proposed after any fitting version.
    """

    kind: Kind
    schema: TableSchema | None = None
    transactions: tuple[Transaction, ...] = ()
    """Transactions made idempotent by the version: several if writers share it."""
    added: tuple[RunFile, ...] = ()
    """Runs from an append or overwrite, in task order."""
    compacted: tuple[Slice, ...] = ()
    """Slices added by a compaction or taken over by a restore."""
    restored: int | None = None
    """The version restored by an overwrite (`table.write.write_set`)."""
    taken: tuple[RemovedRange, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    live_rows: int = 0
    """Snapshot row count after this version."""
    unknown_rows: int | None = None
    """Rows with an unknown value after this version; None: as before."""
    properties: Mapping[str, str] | None = None
    """The complete table properties, if the version sets them."""
    low_water: str | None = None
    """The low-water mark after a compaction with forgotten deletes, or in a restored version
    (`properties.encode_mark`)."""
    since: int = 0
    """The frontier advanced by an expiry (`Manifest.since`)."""
    fence: int = 0
    """The frontier advanced by a vacuum (`Manifest.fence`)."""
    writers_before_ms: int = 0
    """An expiry forgets writers whose last commit is older than this time."""
    wrong_from: int | None = None
    """The first version with a time replaced by a clock repair."""

    def __post_init__(self) -> None:
        moves = self.since or self.fence or self.writers_before_ms
        if moves and self.kind is not Kind.EXPIRE:
            raise ValueError(f"a version of kind '{self.kind.value}' moves no frontier")
        if (self.wrong_from is None) is (self.kind is Kind.CLOCK):
            raise ValueError("exactly a repair of the clock says which times are wrong")
        if len({transaction.writer for transaction in self.transactions}) < len(self.transactions):
            raise ValueError("a writer has one transaction in a version, its last")

    @property
    def is_epoch(self) -> bool:
        """Whether the version may change rows; a table's first version may, too."""
        if self.kind is Kind.CREATE:
            return bool(self.counters)
        return self.kind in (Kind.APPEND, Kind.OVERWRITE)

    def committed(
        self,
        *,
        version: int,
        timestamp_ms: int,
        token: str,
        previous: str,
        committer: str = "",
        unknown_before: int = 0,
    ) -> Commit:
        """Return the version for this draft with the values assigned by the log.

        ``unknown_before``: the rows with an unknown value before it.
        """
        proposed = {
            draft_field.name: getattr(self, draft_field.name) for draft_field in fields(Draft)
        }
        if self.unknown_rows == unknown_before:
            proposed["unknown_rows"] = None  # Tables without marks never have it.
        return Commit(
            **proposed,
            version=version,
            timestamp_ms=timestamp_ms,
            token=token,
            previous=previous,
            committer=committer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Draft):
    """One version in the log: a draft and the values assigned by the log."""

    version: int
    timestamp_ms: int
    token: str
    """A unique token, which identifies our commit after a put raised an error; version 0's token is
    the table's id."""
    previous: str = ""
    """The previous version's token, which identifies the extended log."""
    committer: str = ""
    """Random digits of the committing `Log`, if it competes with others; for their turns only."""

    @property
    def paths(self) -> frozenset[str]:
        """The files added or taken over by this version."""
        return frozenset(slice_.file.path for slice_ in self.slices())

    def slices(self) -> tuple[Slice, ...]:
        """Return the slices added by this version."""
        epochs = Interval.at(self.version)
        runs = (Slice(file=f, epochs=epochs, index=i) for i, f in enumerate(self.added))
        return (*runs, *self.compacted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Wrong times: the versions ``[lower, upper)`` count as committed at ``time_ms``."""

    lower: int
    upper: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A reference to one version of one table, independent of the table's path."""

    table_id: str
    version: int
    token: str

    def __str__(self) -> str:
        return f"version {self.version} of the table '{self.table_id}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The table at one version."""

    version: int
    timestamp_ms: int
    schema: TableSchema
    slices: Sequence[Slice] = ()
    """In epoch and task order; stored as `SliceList`."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Each writer's last committed number, unless the writer is forgotten."""
    written_ms: Mapping[str, int] = field(default_factory=dict)
    """Each writer's last commit time. Kept here because its commit may be cut off the log."""
    forgotten: frozenset[str] = frozenset()
    """Fingerprints of forgotten writers; their committed numbers are not known."""
    repairs: tuple[Repair, ...] = ()
    """Repairs to times in the log, the oldest first."""
    live_rows: int = 0
    unknown_rows: int = 0
    """Rows with a value that no command has set, shown or hidden (`core.schema.OnUnknown`)."""
    properties: Mapping[str, str] = field(default_factory=dict)
    low_water: str | None = None
    """Order key up to which deletes are forgotten (`properties.encode_mark`)."""
    forgot: int = 0
    """The last version with forgotten deletes, whether or not it raised the mark."""
    changed: int = 0
    """The last version with possible row changes: all later ones have the same rows."""
    token: str = ""
    """The commit's token, which shows whether the log still holds this very version."""
    table_id: str = ""
    """Version 0's token: two tables never share it, wherever they are moved."""
    since: int = 0
    """The first exactly readable version; files only for older ones may be gone."""
    fence: int = 0
    """The oldest base version for staging; files only for older ones may be gone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slices", SliceList.of(self.slices))
        if (names := self.properties.get(BINLOG_NAMES)) is not None:
            schema = replace(self.schema, binlogs=parse_binlog_names(names))
            object.__setattr__(self, "schema", schema)

    def __repr__(self) -> str:
        return (
            f"Manifest(version={self.version}, rows={self.live_rows:_}, "
            f"slices={len(self.slices)}, bytes={self.bytes:_})"
        )

    @classmethod
    def unborn(
        cls, schema: TableSchema, properties: Mapping[str, str] | None = None, *, table_id: str
    ) -> Manifest:
        """Return a table's state before its version 0: empty, and only in memory."""
        return cls(
            version=-1,
            timestamp_ms=0,
            schema=schema,
            properties=properties or {},
            forgot=-1,
            token=table_id,
            table_id=table_id,
        )

    @property
    def slice_list(self) -> SliceList:
        """The slices, with their set operations."""
        return SliceList.of(self.slices)

    def within(self, hash_range: HashRange) -> Manifest:
        """Return the manifest with only the slices that overlap a hash range."""
        return replace(self, slices=self.slice_list.within(hash_range))

    @property
    def is_unborn(self) -> bool:
        """Whether the table does not exist yet."""
        return self.version < 0

    @property
    def version_ref(self) -> TableVersion:
        """The manifest's table and version."""
        return TableVersion(table_id=self.table_id, version=self.version, token=self.token)

    @property
    def upper(self) -> Epoch:
        """The first unsealed epoch."""
        return Epoch(self.version + 1)

    @property
    def first_changes(self) -> Epoch:
        """The first version with readable changes: the next one after ``since``.

        Changes are computed against the previous state, which is gone for ``since`` itself. Before
        version 0 there is nothing to lose. A consumer needing sums and starting after ``since``
        starts with the snapshot at ``since``.
        """
        return Epoch(self.since + 1 if self.since else 0)

    @property
    def bytes(self) -> int:
        """Total bytes in at least partly live files."""
        return self.slice_list.file_bytes

    def has(self, transaction: Transaction) -> bool:
        """Return whether the table contains a writer's transaction."""
        return self.transactions.get(transaction.writer, -1) >= transaction.number

    def without_writers(self) -> Manifest:
        """Return the manifest without its writers, which tasks do not need."""
        return replace(self, transactions={}, written_ms={}, forgotten=frozenset())

    def has_forgotten(self, writer: str) -> bool:
        """Return whether an expiry has forgotten a writer's committed numbers."""
        return writer not in self.transactions and fingerprint(writer) in self.forgotten

    def time_ms(self, version: int, recorded_ms: int) -> int:
        """Return a version's commit time, from its recorded time and the repairs."""
        repaired = (r.time_ms for r in self.repairs if r.lower <= version < r.upper)
        return min((recorded_ms, *repaired))

    def lacks(self, transaction: Transaction) -> bool:
        """Return whether earlier numbers, which the writer must have committed, are missing."""
        last = self.transactions.get(transaction.writer, -1)
        return transaction.is_consecutive and transaction.number > last + 1

    @property
    def columns(self) -> SliceColumns:
        """The slices as arrays for compaction plans."""
        return self.slice_list.columns

    @property
    def run_count(self) -> int:
        """Maximum number of runs searched by a look-up (`SliceColumns.run_count`)."""
        return self.columns.run_count

    def accepts(self, base_version: int) -> bool:
        """Return whether files staged on a version may still be committed."""
        return base_version >= max(self.since, self.fence)


_FINGERPRINT_DIGITS = 16


def fingerprint(writer: str) -> str:
    """Return the fingerprint replacing a forgotten writer's name: 64 bits, as hex digits."""
    return hashlib.blake2b(writer.encode(), digest_size=_FINGERPRINT_DIGITS // 2).hexdigest()


def fingerprints(value: Any) -> frozenset[str]:
    """Split concatenated fingerprints."""
    if type(value) is not str or len(value) % _FINGERPRINT_DIGITS:
        raise ValueError("these are no fingerprints of writers")
    starts = range(0, len(value), _FINGERPRINT_DIGITS)
    return frozenset(value[at : at + _FINGERPRINT_DIGITS] for at in starts)


def apply(manifest: Manifest | None, commit: Commit) -> Manifest:
    """Return the manifest after one more commit; pure, and the only copy of the rule."""
    if manifest is not None and manifest.is_unborn:
        manifest = None
    expected = 0 if manifest is None else manifest.version + 1
    if commit.version != expected or (manifest is None) != (commit.kind is Kind.CREATE):
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            f"version {expected}",
            f"a '{commit.kind.value}' of version {commit.version}",
        )
    previous = "" if manifest is None else manifest.token
    if commit.previous != previous:
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            f"a version made upon '{previous}'",
            f"one made upon '{commit.previous}': it belongs to another table, or to another copy",
        )
    if manifest is None:
        if commit.schema is None:
            raise CorruptionError.in_file(f"_log/{0:020d}.json", "a schema", "none")
        manifest = Manifest.unborn(commit.schema, table_id=commit.token)
    frontiers = (commit.since, commit.fence, commit.wrong_from or 0)
    is_behind = commit.writers_before_ms <= commit.timestamp_ms
    if commit.version and (max(frontiers) >= commit.version or not is_behind):
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            "frontiers behind the version itself",
            f"{frontiers}, and writers before {render_time(commit.writers_before_ms)}",
        )
    kept = SliceList.of(()) if commit.kind is Kind.OVERWRITE else manifest.slice_list
    slices = kept.without(commit.taken).with_added(commit.slices()).stamped(commit.version)
    since = max(manifest.since, commit.since)
    return replace(
        _with_writers(manifest, commit),
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        schema=commit.schema or manifest.schema,
        slices=slices,
        live_rows=commit.live_rows,
        unknown_rows=manifest.unknown_rows if commit.unknown_rows is None else commit.unknown_rows,
        properties=manifest.properties if commit.properties is None else commit.properties,
        low_water=commit.low_water
        if commit.kind is Kind.OVERWRITE
        else commit.low_water or manifest.low_water,
        forgot=max(0, manifest.forgot) if commit.low_water is None else commit.version,
        changed=commit.version if commit.is_epoch else manifest.changed,
        token=commit.token,
        since=since,
        repairs=_repairs(manifest, commit, since),
        fence=max(manifest.fence, commit.fence),
    )


def _with_writers(manifest: Manifest, commit: Commit) -> Manifest:
    """Add a version's writers, and forget those dropped by an expiry."""
    if commit.transactions:
        transactions = {
            transaction.writer: transaction.number for transaction in commit.transactions
        }
        return replace(
            manifest,
            transactions={**manifest.transactions, **transactions},
            written_ms={**manifest.written_ms, **dict.fromkeys(transactions, commit.timestamp_ms)},
        )
    if commit.wrong_from is not None:  # Times after the repair's become the repair's.
        repaired = {w: min(t, commit.timestamp_ms) for w, t in manifest.written_ms.items()}
        return replace(manifest, written_ms=repaired)
    gone = {w for w, time in manifest.written_ms.items() if time < commit.writers_before_ms}
    if not gone:
        return manifest
    return replace(
        manifest,
        transactions={w: n for w, n in manifest.transactions.items() if w not in gone},
        written_ms={w: t for w, t in manifest.written_ms.items() if w not in gone},
        forgotten=manifest.forgotten | {fingerprint(writer) for writer in gone},
    )


def _repairs(manifest: Manifest, commit: Commit, since: int) -> tuple[Repair, ...]:
    """Return the repairs needed by versions from ``since`` on."""
    repairs = tuple(repair for repair in manifest.repairs if repair.upper > since)
    if commit.wrong_from is None:
        return repairs
    own_repair = Repair(lower=commit.wrong_from, upper=commit.version, time_ms=commit.timestamp_ms)
    return (*repairs, own_repair)


def is_applicable(manifest: Manifest, taken: Iterable[RemovedRange]) -> bool:
    """Return whether all ranges removed by a compaction are still live."""
    taken = tuple(taken)
    live: dict[str, list[HashRange]] = {}
    for slice_ in manifest.slice_list.of_paths(t.path for t in taken):
        live.setdefault(slice_.file.path, []).append(slice_.live)
    return all(
        any(live_range.covers(t.hash_range) for live_range in live.get(t.path, ())) for t in taken
    )


VersionsByInput = Mapping[str, TableVersion]

VIEW_PROPERTIES = VIEW_PLAN, VIEW_RESULT = ("viewPlan", "viewResult")
"""Properties of a materialized view's table: its plan and its result (`views`)."""


HISTORY_OF = "historyOf"
"""Property of a history table: the source table's id and the history's options, as JSON."""

KEPT_PROPERTIES = (*VIEW_PROPERTIES, HISTORY_OF)
"""Properties of tables derived from others; users cannot set them."""

HISTORY = "history:"
"""Prefix for writer names of history tables; the source table's id follows."""


def stores_rows(properties: Mapping[str, str]) -> bool:
    """Return whether a table stores a view's rows rather than contributions to groups."""
    return VIEW_PLAN in properties and VIEW_RESULT not in properties


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPosition:
    """A materialized view's position; equal positions have equal texts."""

    at: VersionsByInput
    pinned: VersionsByInput = field(default_factory=dict)
    snapshot: int | None = None

    @property
    def text(self) -> str:
        """The marker text: a JSON object.

        ``at`` has ``[table id, version, token]`` per input, ``pinned`` the same per
        ``path@version``. ``snapshot``: the table contains only rows with smaller driving hashes so
        far.
        """
        record: dict[str, Any] = {"at": version_refs_to_json(self.at)}
        if self.pinned:
            record["pinned"] = version_refs_to_json(self.pinned)
        if self.snapshot is not None:
            record["snapshot"] = self.snapshot
        return json.dumps(record, separators=(",", ":"), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> KeptPosition:
        """Parse a position; raises `DataError`."""
        try:
            record = json.loads(text)
            snapshot = record.get("snapshot")
            return cls(
                at=version_refs_from_json(record["at"]),
                pinned=version_refs_from_json(record.get("pinned", {})),
                snapshot=None if snapshot is None else whole(snapshot, most=HASH_END),
            )
        except MALFORMED as error:
            raise DataError(
                "expected a position of a view, such as "
                f'{{"at":{{"input":["id",3,"token"]}}}}, found {text!r:.100}.',
                hint="let the query of the view write the marker ('keep').",
            ) from error

    def covers(self, other: KeptPosition) -> bool:
        """Return whether a table at this position contains everything up to another position.

        False if the positions refer to different tables, or to different histories of the same
        table.
        """
        if other.pinned != self.pinned or other.at.keys() != self.at.keys():
            return False
        if not all(
            _may_precede(other.at[path], version_ref) for path, version_ref in self.at.items()
        ):
            return False
        # At one position the snapshot grows until it is complete, and then becomes None.
        if other.at != self.at or self.snapshot is None:
            return True
        return other.snapshot is not None and other.snapshot <= self.snapshot


def _may_precede(version_ref: TableVersion, newer: TableVersion) -> bool:
    """Return whether a table version equals or may precede another one."""
    is_before = version_ref.table_id == newer.table_id and version_ref.version < newer.version
    return is_before or version_ref == newer


def version_refs_to_json(version_refs: VersionsByInput) -> dict[str, list[Any]]:
    """Return table versions in their JSON form (`version_refs_from_json`)."""
    return {
        name: [version_ref.table_id, version_ref.version, version_ref.token]
        for name, version_ref in version_refs.items()
    }


def version_refs_from_json(record: Any) -> dict[str, TableVersion]:
    """Parse table versions from their JSON form."""
    return {
        text_in(name): TableVersion(
            table_id=text_in(id_), version=whole(version), token=text_in(token)
        )
        for name, (id_, version, token) in record.items()
    }
