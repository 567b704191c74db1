"""The log's values: a proposal (`Draft`), a version (`Commit`), the table at it (`Manifest`).

``manifest(v) = apply(manifest(v - 1), commit(v))``. A manifest lists *slices*: a run, its live hash
range and its epochs, in epoch and task order; where nothing else decides, the later slice wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from spark_upsert.core.durations import render_time
from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.python_values import whole_argument
from spark_upsert.core.schema import TableSchema
from spark_upsert.core.source_positions import BINLOG_NAMES, parse_binlog_names
from spark_upsert.errors import CorruptionError, DataError, OptionError
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.store.records import text as text_in
from spark_upsert.table.run.file import RunFile


class Kind(Enum):
    """The effect of a version on the table."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    COMPACT = "compact"
    ALTER = "alter"
    EXPIRE = "expire"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The live part of a run file."""

    file: RunFile
    live: HashRange = ALL_HASHES
    epochs: Interval
    index: int = 0
    """Position among the files of the same epochs."""
    is_held: bool = False
    """Whether newer runs hold the keys of all deletes left in it, so that no delete can be
    forgotten before it is merged with those runs."""

    @property
    def occupied(self) -> HashRange:
        """The live hashes that may have an entry."""
        return self.live.intersect(self.file.hash_range)

    def overlaps(self, hash_range: HashRange) -> bool:
        """Return whether some entry may have its hash in a range."""
        # Computed from bounds, without a range in between: planning asks each slice per split.
        live, stored = self.live, self.file.hash_range
        first = max(live.first, stored.first, hash_range.first)
        return first < min(live.end, stored.end, hash_range.end)

    def rows_within(self, hash_range: HashRange) -> int:
        """Estimate the live entries in a range of hashes."""
        return self._share(self.file.rows, hash_range)

    def bytes_within(self, hash_range: HashRange) -> int:
        """Estimate the bytes of the live entries in a range of hashes."""
        return self._share(self.file.bytes, hash_range)

    def _share(self, amount: int, hash_range: HashRange) -> int:
        """Return the live part of an amount in a range; all entries of a file weigh the same."""
        read = self.occupied.intersect(hash_range)
        return sum(
            amount * rows * part.intersect(read).width // (part.width * self.file.rows)
            for part, rows in self.file.spread()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRange:
    """A range of hashes that a compaction takes away from a file."""

    path: str
    hash_range: HashRange


QUERY = "query:"
"""The prefix of the name of a writer that is a streaming query; the query's id follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A writer and its sequence number: the idempotence key of what it writes."""

    writer: str
    number: int
    """From 0 to 2**63 - 1, and growing."""
    is_consecutive: bool = field(default=False, compare=False)
    """Whether the writer counts 0, 1, 2, ...: then the table must hold all epochs before. It is a
    condition of one commit, and not stored."""

    def __post_init__(self) -> None:
        is_text = type(self.writer) is str
        if not is_text or self.writer.encode(errors="ignore").decode() != self.writer:
            raise OptionError.invalid("writer of a transaction", self.writer, "a text")
        number = whole_argument("number of a transaction", self.number)
        object.__setattr__(self, "number", number)

    @staticmethod
    def writer_of_query(query_id: str) -> str:
        """Return the name of a writer that is a streaming query."""
        return f"{QUERY}{query_id}"

    @staticmethod
    def writer_of_app(app_id: str) -> str:
        """Return the name of a writer that names itself (``txnAppId``)."""
        return f"app:{app_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A version as a writer proposes it, without what only the log can give.

    It has no number, no time and no token, so that the same draft may be proposed behind any
    version that it fits.
    """

    kind: Kind
    schema: TableSchema | None = None
    transactions: tuple[Transaction, ...] = ()
    """Transactions that the version makes idempotent: several where several writers share it."""
    added: tuple[RunFile, ...] = ()
    """Runs of an append or overwrite, in the order of their tasks."""
    compacted: tuple[Slice, ...] = ()
    """Slices that a compaction adds, or that a restore takes over."""
    restored: int | None = None
    """The version that an overwrite brings back (`table.write.write_set`)."""
    taken: tuple[RemovedRange, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    live_rows: int = 0
    """Rows of the snapshot after this version."""
    properties: Mapping[str, str] | None = None
    """The table's properties, where a version sets them."""
    low_water: str | None = None
    """The low-water mark after a compaction that forgot deletes, or of a restored version
    (`tombstones`)."""
    since: int = 0
    """The frontier that an expiry advances (`Manifest.since`)."""
    fence: int = 0
    """The frontier that a vacuum advances (`Manifest.fence`)."""
    writers_before_ms: int = 0
    """Writers whose last epoch is older than this time are forgotten by an expiry."""
    wrong_from: int | None = None
    """The first version to which a repair of the clock gives its own time."""

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
        """Whether the version carries changes of rows; the one that makes the table may."""
        if self.kind is Kind.CREATE:
            return bool(self.counters)
        return self.kind in (Kind.APPEND, Kind.OVERWRITE)

    def committed(self, *, version: int, timestamp_ms: int, token: str, previous: str) -> Commit:
        """Return the version that the draft becomes with what the log gives it."""
        proposed = {
            draft_field.name: getattr(self, draft_field.name) for draft_field in fields(Draft)
        }
        return Commit(
            **proposed, version=version, timestamp_ms=timestamp_ms, token=token, previous=previous
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Draft):
    """One version of the log: a draft, and what the log gave it."""

    version: int
    timestamp_ms: int
    token: str
    """A unique token, which tells whether a put that raised was ours; that of version 0 is the
    table's id."""
    previous: str = ""
    """The token of the version before, which tells on which log this version was made."""

    @property
    def paths(self) -> frozenset[str]:
        """The files that this version adds, or takes over."""
        return frozenset(slice_.file.path for slice_ in self.slices())

    def slices(self) -> tuple[Slice, ...]:
        """Return the slices that this version adds."""
        epochs = Interval.at(self.version)
        runs = (Slice(file=f, epochs=epochs, index=i) for i, f in enumerate(self.added))
        return (*runs, *self.compacted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The times of the versions ``[lower, upper)`` were wrong, and count as ``time_ms``."""

    lower: int
    upper: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of one table, wherever the table lies, as others remember it."""

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
    slices: tuple[Slice, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    """The last number that each writer committed, unless it is forgotten."""
    written_ms: Mapping[str, int] = field(default_factory=dict)
    """The time of each writer's last epoch. Kept here, because the log may be cut behind it."""
    forgotten: frozenset[str] = frozenset()
    """Fingerprints of forgotten writers: what they committed is no longer known."""
    repairs: tuple[Repair, ...] = ()
    """Repairs of times in the log, the oldest first."""
    live_rows: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    low_water: str | None = None
    """Order key up to which deletes are forgotten (`tombstones`)."""
    forgot: int = 0
    """The last version that forgot deletes, whether or not that raised the mark."""
    changed: int = 0
    """The last version that may have changed rows: all later ones have the same rows."""
    token: str = ""
    """The token of the version's commit: tells whether the log still holds this very version."""
    table_id: str = ""
    """The token of version 0: two tables never have the same, wherever they are moved."""
    since: int = 0
    """The first version that can be read exactly; files that only older ones need may be gone."""
    fence: int = 0
    """The oldest version on which an epoch may be staged: files of older ones may be gone."""

    def __post_init__(self) -> None:
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
        """Return the state of a table before its version 0: empty, and only in memory."""
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
    def is_unborn(self) -> bool:
        """Whether the table is still to be made."""
        return self.version < 0

    @property
    def place(self) -> TableVersion:
        """The table and version that this manifest describes."""
        return TableVersion(table_id=self.table_id, version=self.version, token=self.token)

    @property
    def upper(self) -> Epoch:
        """The first epoch that is not sealed."""
        return Epoch(self.version + 1)

    @property
    def first_changes(self) -> Epoch:
        """The first version whose changes can be read: the one behind ``since``.

        Changes are computed against the state before them, so that those of ``since`` itself
        are gone with the state before it. Before version 0 there was nothing to lose. A consumer
        that begins behind ``since`` and needs sums begins with the snapshot of ``since``.
        """
        return Epoch(self.since + 1 if self.since else 0)

    @property
    def bytes(self) -> int:
        """Bytes of the files that are at least partly live."""
        return sum({slice_.file.path: slice_.file.bytes for slice_ in self.slices}.values())

    def has(self, transaction: Transaction) -> bool:
        """Return whether a writer's epoch is part of the table."""
        return self.transactions.get(transaction.writer, -1) >= transaction.number

    def without_writers(self) -> Manifest:
        """Return the manifest without its writers, which tasks do not need."""
        return replace(self, transactions={}, written_ms={}, forgotten=frozenset())

    def has_forgotten(self, writer: str) -> bool:
        """Return whether the table knows no more what a writer has committed."""
        return writer not in self.transactions and fingerprint(writer) in self.forgotten

    def time_ms(self, version: int, recorded_ms: int) -> int:
        """Return when a version was committed, by its own time and the repairs."""
        repaired = (r.time_ms for r in self.repairs if r.lower <= version < r.upper)
        return min((recorded_ms, *repaired))

    def lacks(self, transaction: Transaction) -> bool:
        """Return whether epochs are missing that the writer must have committed before."""
        last = self.transactions.get(transaction.writer, -1)
        return transaction.is_consecutive and transaction.number > last + 1

    @property
    def run_count(self) -> int:
        """Runs that a look-up searches at most: each is of other epochs."""
        return len({slice_.epochs for slice_ in self.slices})

    def accepts(self, base_version: int) -> bool:
        """Return whether what was staged on a version may still be committed."""
        return base_version >= max(self.since, self.fence)


_FINGERPRINT_DIGITS = 16


def fingerprint(writer: str) -> str:
    """Return what is left of the name of a writer that is forgotten: 64 bits, as digits."""
    return hashlib.blake2b(writer.encode(), digest_size=_FINGERPRINT_DIGITS // 2).hexdigest()


def fingerprints(value: Any) -> frozenset[str]:
    """Return fingerprints from the text that holds them one behind the other."""
    if type(value) is not str or len(value) % _FINGERPRINT_DIGITS:
        raise ValueError("these are no fingerprints of writers")
    starts = range(0, len(value), _FINGERPRINT_DIGITS)
    return frozenset(value[at : at + _FINGERPRINT_DIGITS] for at in starts)


def apply(manifest: Manifest | None, commit: Commit) -> Manifest:
    """Return the manifest behind one more commit; pure, and the only copy of the rule."""
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
    remaining_slices = (
        () if commit.kind is Kind.OVERWRITE else _without(manifest.slices, commit.taken)
    )
    slices = _in_order(remaining_slices, commit.slices())
    since = max(manifest.since, commit.since)
    return replace(
        _with_writers(manifest, commit),
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        schema=commit.schema or manifest.schema,
        slices=slices,
        live_rows=commit.live_rows,
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
    """Note the writers of a version, and forget those that an expiry is done with."""
    if commit.transactions:
        transactions = {
            transaction.writer: transaction.number for transaction in commit.transactions
        }
        return replace(
            manifest,
            transactions={**manifest.transactions, **transactions},
            written_ms={**manifest.written_ms, **dict.fromkeys(transactions, commit.timestamp_ms)},
        )
    if commit.wrong_from is not None:  # Times that were ahead count as the repair's.
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
    """Return the repairs that versions from ``since`` on need."""
    repairs = tuple(repair for repair in manifest.repairs if repair.upper > since)
    if commit.wrong_from is None:
        return repairs
    own_repair = Repair(lower=commit.wrong_from, upper=commit.version, time_ms=commit.timestamp_ms)
    return (*repairs, own_repair)


def _slice_order(slice_: Slice) -> tuple[int, int, int]:
    return slice_.epochs.lower, slice_.index, slice_.live.first


def _in_order(kept: tuple[Slice, ...], new: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Return slices in their order, of which ``kept`` have it: those of an epoch come last."""
    new = tuple(sorted(new, key=_slice_order))
    if not (kept and new) or _slice_order(kept[-1]) <= _slice_order(new[0]):
        return kept + new
    return tuple(sorted(kept + new, key=_slice_order))


def is_applicable(manifest: Manifest, taken: Iterable[RemovedRange]) -> bool:
    """Return whether all ranges that a compaction takes away are still live."""
    live: dict[str, list[HashRange]] = {}
    for slice_ in manifest.slices:
        live.setdefault(slice_.file.path, []).append(slice_.live)
    return all(
        any(live_range.covers(t.hash_range) for live_range in live.get(t.path, ())) for t in taken
    )


def _without(slices: tuple[Slice, ...], taken: tuple[RemovedRange, ...]) -> tuple[Slice, ...]:
    """Take ranges of hashes away from slices; what is left of a slice may be two, in its place."""
    if not taken:  # As of every epoch: a table without compactions has a slice of each.
        return slices
    by_path: dict[str, list[HashRange]] = {}
    for removal in taken:
        by_path.setdefault(removal.path, []).append(removal.hash_range)
    left: list[Slice] = []
    for slice_ in slices:
        pieces = [slice_]
        for gone in by_path.get(slice_.file.path, ()):
            pieces = [piece_left for piece in pieces for piece_left in _cut(piece, gone)]
        left += pieces
    return tuple(left)


def _cut(slice_: Slice, gone: HashRange) -> list[Slice]:
    if not slice_.live.overlaps(gone):
        return [slice_]
    pieces = (replace(slice_, live=range_left) for range_left in slice_.live.without(gone))
    return [piece for piece in pieces if not piece.occupied.is_empty]


VersionsByInput = Mapping[str, TableVersion]

VIEW_PROPERTIES = VIEW_PLAN, VIEW_RESULT = ("viewPlan", "viewResult")
"""Properties of a table that keeps a view: its plan, and its result (`views`)."""


HISTORY_OF = "historyOf"
"""The property of a table that keeps the history of another one: which history it is."""

KEPT_PROPERTIES = (*VIEW_PROPERTIES, HISTORY_OF)
"""Properties of tables that are made of others, and that no user sets."""

HISTORY = "history:"
"""The prefix of the name of a writer that keeps a history; the id of the source follows."""


def keeps_rows(properties: Mapping[str, str]) -> bool:
    """Return whether a table keeps the rows of a view, and not what groups are made of."""
    return VIEW_PLAN in properties and VIEW_RESULT not in properties


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPosition:
    """A position of a materialized view; equal positions have equal texts."""

    at: VersionsByInput
    pinned: VersionsByInput = field(default_factory=dict)
    snapshot: int | None = None

    @property
    def text(self) -> str:
        """The text of the marker: a JSON object.

        ``at`` has ``[table id, version, token]`` per input, ``pinned`` the same per
        ``path@version``. ``snapshot``: only rows with smaller driving hashes are in the table yet.
        """
        record: dict[str, Any] = {"at": places_record(self.at)}
        if self.pinned:
            record["pinned"] = places_record(self.pinned)
        if self.snapshot is not None:
            record["snapshot"] = self.snapshot
        return json.dumps(record, separators=(",", ":"), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> KeptPosition:
        """Return the position of a text."""
        try:
            record = json.loads(text)
            snapshot = record.get("snapshot")
            return cls(
                at=places_of(record["at"]),
                pinned=places_of(record.get("pinned", {})),
                snapshot=None if snapshot is None else whole(snapshot, most=HASH_END),
            )
        except MALFORMED as error:
            raise DataError(
                "expected a position of a view, such as "
                f'{{"at":{{"input":["id",3,"token"]}}}}, found {text!r:.100}.',
                hint="let the query of the view write the marker ('keep').",
            ) from error

    def has(self, other: KeptPosition) -> bool:
        """Return whether a table that is here has all that is up to another position.

        It has not if one of both is of other tables, or of another past of the same.
        """
        if other.pinned != self.pinned or other.at.keys() != self.at.keys():
            return False
        if not all(
            _is_behind(other.at[path], version_ref) for path, version_ref in self.at.items()
        ):
            return False
        # Of one position the snapshot grows until it is whole, and is told no more.
        if other.at != self.at or self.snapshot is None:
            return True
        return other.snapshot is not None and other.snapshot <= self.snapshot


def _is_behind(place: TableVersion, newer: TableVersion) -> bool:
    """Return whether a place is another, or may lie before it."""
    is_before = place.table_id == newer.table_id and place.version < newer.version
    return is_before or place == newer


def places_record(places: VersionsByInput) -> dict[str, list[Any]]:
    """Return places as JSON holds them (`places_of`)."""
    return {
        name: [version_ref.table_id, version_ref.version, version_ref.token]
        for name, version_ref in places.items()
    }


def places_of(record: Any) -> dict[str, TableVersion]:
    """Return the places that JSON holds."""
    return {
        text_in(name): TableVersion(
            table_id=text_in(id_), version=whole(version), token=text_in(token)
        )
        for name, (id_, version, token) in record.items()
    }
