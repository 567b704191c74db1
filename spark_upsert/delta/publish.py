"""Publication (`Mirror.publish`): one Delta commit brings a mirror to the newest version.

Order: data files, one file of vectors, the commit. A crash before the commit leaves unnamed files
only, so a mirror lags its table or equals it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.core.durations import Fields
from spark_upsert.core.keys import identical_rows
from spark_upsert.core.names import has_column
from spark_upsert.delta.actions import (
    DeltaAction,
    DeltaState,
    add_action,
    build_metadata,
    build_protocol,
    commit_info,
    remove_action,
    token_number,
    transaction_actions,
)
from spark_upsert.delta.change_feed import RowsOfFile, write_feed, write_feed_of_difference
from spark_upsert.delta.checkpoints import checksum_fields, checksum_path
from spark_upsert.delta.deletion_vectors import (
    PendingRows,
    Vector,
    Vectors,
    decode_z85,
    encode_file,
    encode_z85,
    read_from_file,
    run_files,
    vector_file_name,
    vectors_after_changes,
    vectors_after_superseding,
    vectors_of_manifest,
)
from spark_upsert.delta.log import (
    FOLDER,
    NO_CHANGES,
    DeltaLog,
    MirrorSettings,
    PublicationSettings,
    mirror_settings,
)
from spark_upsert.delta.parquet_files import (
    row_reader,
    run_id,
    run_id_of_copy,
    stats_text,
    write_data_file,
)
from spark_upsert.delta.prepared_files import PreparationCache
from spark_upsert.delta.types import (
    MirrorChangedError,
    changes_types,
    occupied_error,
    other_table_error,
    require_mirrored,
    within_table_error,
)
from spark_upsert.delta.upkeep import CleanupResult, Upkeep
from spark_upsert.errors import ContentionError, CorruptionError, DataLossError, OtherTableError
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore, is_remote
from spark_upsert.store.protocol import PROBE
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Kind, Manifest
from spark_upsert.table.observers import PublicationResult
from spark_upsert.table.retention.expiry import LEASE_MS
from spark_upsert.table.retention.leases import Lease, keep_held
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.schema_changes import format_above
from spark_upsert.table.state.check import Finding, newer_than_the_log
from spark_upsert.table.state.prepared import Deaths, Twin
from spark_upsert.table.state.snapshot import CHUNK_ROWS

_LOGGER = logging.getLogger(__name__)


_SETTLED_FROM = 8
"""If new runs contain more than one in so many entries, all keys are resolved, as in a read: single
look-ups cost more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A mirror's shown version, with its reusable files."""

    manifest: Manifest | None
    """The table at that version, or at a later one with the same rows and files; None if it cannot
    be read, or is not needed."""
    twins: Mapping[str, DeltaAction]
    """Reusable live Parquet copies, by run id."""
    vectors: Mapping[str, Vector]
    """Their deletion vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """A mirror's file changes in one publication."""

    removed: tuple[DeltaAction, ...]
    """Live files to be removed permanently."""
    revectored: tuple[tuple[DeltaAction, Vector], ...]
    """Reused Parquet copies, with their changed deletion vectors."""
    new: tuple[tuple[RunFile, Vector], ...]
    """Runs needing a Parquet copy, with their deletion vectors."""
    vectors: Mapping[str, Vector]
    """All deletion vectors after the publication, by run id."""

    @property
    def is_empty(self) -> bool:
        """Whether no file changes."""
        return not (self.removed or self.revectored or self.new)


def plan(
    store: Store,
    head: Manifest,
    commits: Collection[Commit],
    base: Base,
    live: Mapping[str, DeltaAction],
    deaths: Sequence[Deaths] = (),
) -> FileChanges:
    """Plan the file changes that bring a mirror to a version.

    Parquet copies for runs in both versions are reused. If rows are combined from several entries,
    none is reused after an overwrite, without a base manifest, or from before that.
    """
    files = run_files(head)
    has_overwrite = any(commit.kind is Kind.OVERWRITE for commit in commits)
    is_anew = base.manifest is None or has_overwrite
    twins = base.twins
    if head.schema.shows_combined_rows:
        is_anew |= base.manifest is not None and not base.manifest.schema.shows_combined_rows
        twins = {} if is_anew else twins
    known_vectors = {path: base.vectors[run_id(path)] for path in files if run_id(path) in twins}
    if base.manifest is None or is_anew:
        new = [path for path in files if path not in known_vectors]
        vectors = vectors_of_manifest(store, head)
    else:
        # Base files without a Parquet copy have no live row; only an overwrite can add one.
        old = run_files(base.manifest)
        new = [path for path in files if path not in known_vectors and path not in old]
        vectors = _updated_vectors(store, head, known_vectors, new, deaths)
    return _plan(files, vectors, twins, known_vectors, live, new)


def _updated_vectors(
    store: Store,
    head: Manifest,
    known: Mapping[str, Vector],
    new: list[str],
    deaths: Sequence[Deaths],
) -> Vectors:
    superseded = vectors_after_superseding(store, head, known, new, deaths)
    if superseded is not None:
        return superseded
    files = run_files(head)
    total_rows = sum(file.rows for file in files.values())
    if sum(files[path].rows for path in new) * _SETTLED_FROM > total_rows:
        by_version = vectors_of_manifest(store, head)
        return {path: by_version[path] for path in (*known, *new)}
    return vectors_after_changes(store, head, known, new)


def _plan(
    files: Mapping[str, RunFile],
    vectors: Vectors,
    twins: Mapping[str, DeltaAction],
    known: Mapping[str, Vector],
    live: Mapping[str, DeltaAction],
    new: Collection[str],
) -> FileChanges:
    carrying = {path: vector for path, vector in vectors.items() if not vector.is_all}
    staying = {twins[run_id(path)]["path"] for path in carrying if path in known}
    unchanged = [
        (twins[run_id(path)], vector)
        for path, vector in carrying.items()
        if path in known and vector != known[path]
    ]
    return FileChanges(
        removed=tuple(add for path, add in live.items() if path not in staying),
        revectored=tuple(unchanged),
        new=tuple((files[path], carrying[path]) for path in new if path in carrying),
        vectors={run_id(path): vector for path, vector in carrying.items()},
    )


def data_files_by_run(live: Mapping[str, DeltaAction]) -> dict[str, DeltaAction]:
    """Return the Parquet copies among live files, by run id."""
    add_by_run = {run_id_of_copy(path): add for path, add in live.items()}
    return {run: add for run, add in add_by_run.items() if run is not None}


INLINE_BYTES_MAX = 200
"""Maximum size for deletion vectors stored inline in the log."""

_HELD_EVERY_MS = 30_000
"""Interval between renewals for a mirror's lease. The lease also counts as a backlog, so it must
not lag much; and each renewal costs as much as a commit."""

_RACES_MAX = 100
"""Maximum lost races. After each one, another publisher has advanced the mirror."""


class _Header(NamedTuple):
    """A commit's protocol and metadata changes."""

    actions: tuple[DeltaAction, ...]
    changes_types: bool
    """Whether a column's type changes."""
    has_feed: bool
    """Whether the commit has a change feed."""
    retention_ms: int


def shown_version(state: DeltaState, table_id: str) -> int | None:
    """Return the table version shown by a Delta log; None if it is no mirror for this table."""
    shown = state.shown
    return None if shown is None or shown.table_id != table_id else shown.version


def mirror_consumer(place: str) -> str:
    """Return the consumer name for a mirror's lease on its table."""
    return f"mirror-{hashlib.blake2b(place.encode(), digest_size=8).hexdigest()}"


class Mirror:
    """One table's mirror at one location.

    Parameters
    ----------
    log : Log
        The table's log.
    table : Store
    target : Store
        The mirror's location (`delta.log`).
    """

    def __init__(self, log: Log, table: Store, target: Store) -> None:
        self.log = log
        self.table = table
        self.target = target
        self._delta = DeltaLog(target)
        self._vectors: dict[str, Vector] = {}
        self._covered: Manifest | None = None
        """Version of the cached vectors, which are valid for the Delta commit below only."""
        self._covered_at = ""
        """That commit's ``txnId``: another commit may have the same number."""
        self.prepared = PreparationCache()
        """Writers' preparations for the next publications."""
        self.upkeep = Upkeep(target, self._delta)
        self.published_ms: int | None = None
        """Time of this object's last commit."""
        self._held_ms: int | None = None
        self._pending: PendingRows | None = None
        self._is_in_doubt = False
        """Whether a commit attempt's outcome is unknown."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Mirror({self.target.url!r})"

    @property
    def place(self) -> str:
        """The mirror's URL."""
        return self.target.url

    def use_store(self, log: Log, table: Store, target: Store) -> None:
        """Use other objects for the same locations: those from an earlier batch may be unusable."""
        self.log, self.table, self.target = log, table, target
        self._delta.use_store(target)
        self.upkeep.use_store(target)

    @property
    def seen(self) -> DeltaState | None:
        """The last seen state in the mirror's log."""
        return self._delta.seen

    def state(self) -> DeltaState | None:
        """Return the newest state in the mirror's log; None if there is no mirror."""
        return self._delta.follow()

    def prepared_data_files(self, head: Manifest) -> dict[str, Twin]:
        """Return the Parquet copies prepared by writers for a version, by run id."""
        if head.schema.shows_combined_rows:
            return {}  # A writer without marks may have prepared some.
        return self.prepared.twins(self.place, head.schema.columns)

    def discard_prepared(self) -> None:
        """Discard the prepared Parquet copies, unless a commit in doubt may name them."""
        with self._lock:
            if not self._is_in_doubt:
                self._drop_prepared(None)

    def _drop_prepared(self, upto: int | None) -> None:
        """Drop preparations up to a version, and delete Parquet copies named by no commit."""
        discarded = self.prepared.drop(upto, self.place)
        state = self._delta.seen
        named = set[str]() if state is None else {*state.live, *(r["path"] for r in state.removed)}
        for path in discarded:
            if path not in named:
                with suppress(Exception):  # Else it goes a day later.
                    self.target.delete(path)

    def shown(self) -> int | None:
        """Return the mirror's shown version; None if there is no mirror for this table."""
        state = self.state()
        return None if state is None else shown_version(state, self.log.head().table_id)

    def pending(self, shown: int, head: Manifest) -> PendingRows:
        """Return the rows to publish after the shown version; raises `DataLossError`."""
        pending = self._pending
        if pending is None or pending.shown != shown or pending.upper > head.upper:
            pending = PendingRows(shown, shown + 1)
        for commit in self.log.commits(pending.upper, head.upper):
            pending = pending.including(commit)
        self._pending = pending
        return pending

    def publish(
        self, settings: PublicationSettings = NO_CHANGES, *, rebuild: bool = False
    ) -> PublicationResult:
        """Bring the mirror to the newest version and settings; unchanged, it gets no commit."""
        with self._lock:
            return self._publish(settings, rebuild=rebuild)

    def _publish(self, settings: PublicationSettings, *, rebuild: bool) -> PublicationResult:
        head = self.log.head()
        require_mirrored(head.schema, head.properties)
        written = self.prepared_data_files(head)
        for _ in range(_RACES_MAX):
            state = self._state_or_empty()
            before = self._shown_before(state, head, rebuild=rebuild)
            is_shown = before is not None and before >= head.version
            current = mirror_settings(state)
            requested = settings.applied_to(current)
            if before is not None and is_shown and not rebuild and requested == current:
                self._is_in_doubt = False
                self._drop_prepared(before)
                return self._publication_result(before, before, head, state)
            header = self._header(state, head, requested, rebuild=rebuild)
            if self._step(state, before, head, written, header, rebuild=rebuild):
                now = self._delta.seen
                is_new = now is not None and (state is None or now.version != state.version)
                # Versions without a visible change make no commit: the number stays, the rows are
                # equal.
                shown = head.version if before is None or is_new else before
                self._drop_prepared(head.version)
                self._hold(shown)
                return self._publication_result(before, shown, head, now)
            rebuild = False  # The faster publisher made a mirror.
        raise ContentionError(
            f"{_RACES_MAX} publications to '{self.place}' lost against others.",
            hint="publish to one place with fewer processes at once.",
        )

    def _publication_result(
        self, before: int | None, shown: int, head: Manifest, state: DeltaState | None
    ) -> PublicationResult:
        current = mirror_settings(state)
        return PublicationResult(
            place=self.place,
            shown_before=before,
            shown=shown,
            newest=max(head.version, shown),
            delta_version=-1 if state is None else state.version,
            retention_ms=current.retention_ms,
            has_feed=current.change_feed,
        )

    def _hold(self, shown: int) -> None:
        """Keep changes after a version readable, so the next publication is incremental."""
        now_ms = self.log.now_ms()
        if self._held_ms is not None and 0 <= now_ms - self._held_ms < _HELD_EVERY_MS:
            return
        lease = Lease(
            consumer=mirror_consumer(self.place), version=shown, renewed_ms=now_ms, ttl_ms=LEASE_MS
        )
        with suppress(DataLossError):  # Expired meanwhile: then the next step does without.
            keep_held(self.table, self.log, lease)
            self._held_ms = now_ms

    def vacuum(self, *, dry_run: bool) -> CleanupResult:
        """Remove files needed by no reader within the retention, and leftovers from crashes.

        Live files stay, even in an abandoned mirror; other Delta tables are not touched.
        """
        state = self.state()
        is_ours = state is not None and shown_version(state, self.log.head().table_id) is not None
        if not (is_ours or (state is None and self._is_interrupted())):
            return CleanupResult(log=(), files=())
        retention_ms = mirror_settings(state).retention_ms
        return self.upkeep.vacuum(
            now_ms=self.log.now_ms(), retention_ms=retention_ms, dry_run=dry_run
        )

    def _is_interrupted(self) -> bool:
        """Return whether a publication started here without reaching its first commit."""
        try:
            self._require_empty()
        except OtherTableError:
            return False
        return any(True for _ in self.target.list(""))

    # -- the location --------------------------------------------------------------------

    def _shown_before(
        self, state: DeltaState | None, head: Manifest, *, rebuild: bool
    ) -> int | None:
        """Return the shown version; raise unless the mirror is this table's and unchanged."""
        if state is None:
            self.target.prepare(FOLDER)  # Also refuses a storage without conditional puts.
            return None
        shown = shown_version(state, head.table_id)
        if rebuild:
            return shown
        if shown is None or state.shown is None:
            raise self._belongs_to_other_table(state, head.table_id)
        if state.foreign is not None:
            raise MirrorChangedError.by(self.place, state.foreign.version, state.foreign.operation)
        if shown > head.version:
            newest = self.log.without_cache().head()
            if shown > newest.version:
                raise other_table_error(
                    self.place,
                    str(newest.version_ref),
                    f"that of a copy of the table that has a version {shown}",
                )
        elif shown >= head.since:
            token = self.log.version_ref(shown).token
            if token_number(token) != state.shown.token:
                raise other_table_error(
                    self.place,
                    str(head.version_ref),
                    f"that of a copy of the table with another version {shown}",
                )
        return shown

    def require_place(self, table_id: str | None) -> None:
        """Raise unless the location is empty, or contains the table's mirror."""
        state = self._state_or_empty()
        if state is None:
            if is_remote(self.place):  # A folder is made by the first publication.
                self.target.prepare(FOLDER)
        elif table_id is None or shown_version(state, table_id) is None:
            raise self._belongs_to_other_table(state, "a new one" if table_id is None else table_id)

    def _belongs_to_other_table(self, state: DeltaState, table_id: str) -> OtherTableError:
        description = "the mirror of another one" if state.shown else "another Delta table"
        return other_table_error(self.place, f"the table '{table_id}'", description)

    def _state_or_empty(self) -> DeltaState | None:
        """Return the mirror's state; None if its location is proven empty."""
        state = self._delta.follow()
        if state is None:
            try:
                self._require_empty()
            except OtherTableError:
                state = self._delta.follow()  # Another publisher may have created the mirror since.
                if state is None:
                    raise
        return state

    def _require_empty(self) -> None:
        """Raise unless the location is empty, apart from an interrupted publication's files."""
        for info in self.target.list(""):
            name = info.path
            if (
                run_id_of_copy(name) is None
                and not name.startswith("deletion_vector_")
                and name != PROBE
            ):
                raise occupied_error(self.place, name)
        for info in self.target.list(FOLDER):
            if not info.path.endswith(".now"):
                raise occupied_error(self.place, info.path)
        strange = [name for name in self.target.folders("") if name != FOLDER]
        if strange:
            raise occupied_error(self.place, f"{strange[0]}/")
        above = None if isinstance(self.target, PrefixStore) else format_above(self.target)
        if above is not None:
            raise within_table_error(self.place, above)

    # -- a step --------------------------------------------------------------------------

    def _header(
        self,
        state: DeltaState | None,
        head: Manifest,
        settings: MirrorSettings,
        *,
        rebuild: bool,
    ) -> _Header:
        """Return the protocol and metadata changes for a commit."""
        current = state or DeltaState(version=-1)
        columns = head.schema.columns
        metadata = build_metadata(
            columns,
            current.metadata,
            id_=str(uuid.uuid4()),
            now_ms=self.log.now_ms(),
            retention_ms=settings.retention_ms,
            change_feed=settings.change_feed,
        )
        protocol = build_protocol(columns, guard=settings.guard)
        actions: list[DeltaAction] = []
        if rebuild or current.protocol != protocol:
            actions.append({"protocol": protocol})
        if rebuild or current.metadata != metadata:
            actions.append({"metaData": metadata})
        is_known = bool(current.metadata) and not rebuild
        return _Header(
            actions=tuple(actions),
            changes_types=is_known
            and changes_types(current.columns_text, str(metadata["schemaString"])),
            # Behind a commit of others the table's changes are not those of the mirror.
            has_feed=settings.change_feed and not rebuild,
            retention_ms=settings.retention_ms,
        )

    def _step(
        self,
        state: DeltaState | None,
        before: int | None,
        head: Manifest,
        written: dict[str, Twin],
        header: _Header,
        *,
        rebuild: bool,
    ) -> bool:
        """Publish the newest version; return False if another publisher was faster."""
        current = state or DeltaState(version=-1)
        keeps = not (rebuild or header.changes_types)
        base, commits = self._base(current, before, head, keeps=keeps)
        planned = plan(
            self.table, head, commits, base, current.live, self._deaths(base.manifest, head)
        )
        if planned.is_empty and not header.actions:
            self._remember(head, current, planned)
            return True
        shown_ms = head.time_ms(head.version, head.timestamp_ms)
        # A removal is not older than its commit: a slow clock would let files go early.
        now_ms = max(self.log.now_ms(), shown_ms)
        for file, vector in planned.new:
            if run_id(file.path) not in written:
                written[run_id(file.path)] = self._write(head, file, vector, now_ms)
        feed = None
        if header.has_feed and before is not None:
            feed = write_feed(self.log, self.table, self.target, before, head)
            if feed is None:
                removed_rows, added_rows = self._changed_rows(planned, base, written)
                feed = write_feed_of_difference(self.target, before, head, removed_rows, added_rows)
        # Without a change feed, the last version with possible row changes decides.
        changed = before is None or head.changed > before
        data_change = rebuild or (changed if feed is None else feed.has_changes)
        id_ = str(uuid.uuid4())
        time_ms = max(shown_ms, current.time_ms + 1)
        actions = [
            commit_info(
                before, head.version_ref, time_ms=time_ms, operation="UPSERTFLOW PUBLISH", id_=id_
            ),
            *transaction_actions(head.version_ref, now_ms),
            *header.actions,
            *self._file_actions(planned, written, now_ms=now_ms, data_change=data_change),
            *([] if feed is None or feed.action is None else [feed.action]),
        ]
        self._is_in_doubt = True
        is_ours = self._delta.put(actions, id_=id_)
        self._is_in_doubt = False
        if not is_ours:
            return False
        self._remember(head, self._delta.seen or current, planned)
        self.published_ms = self.log.now_ms()
        self._log_publication(before, head, planned)
        self.upkeep.follow(now_ms=self.log.now_ms(), retention_ms=header.retention_ms)
        return True

    def _base(
        self, state: DeltaState, before: int | None, head: Manifest, *, keeps: bool
    ) -> tuple[Base, list[Commit]]:
        """Return the mirror's base and the commits after it; none if unneeded or expired."""
        if not keeps or before is None:
            return Base(manifest=None, twins={}, vectors={}), []
        twins = data_files_by_run(state.live)
        if self._covered is not None and self._covered_at and self._covered_at == state.last_id:
            manifest, vectors = self._covered, self._vectors
        else:
            manifest, vectors = None, {run: self.vector_of(add) for run, add in twins.items()}
        try:
            if manifest is None:
                manifest = self.log.at(before)
            commits = list(self.log.commits(manifest.version + 1, head.upper))
        except DataLossError:
            # Versions between are expired: the step is computed from the newest version alone.
            return Base(manifest=None, twins=twins, vectors=vectors), []
        return Base(manifest=manifest, twins=twins, vectors=vectors), commits

    def _deaths(self, base: Manifest | None, head: Manifest) -> Sequence[Deaths]:
        """Return the superseded rows recorded by writers since the base."""
        if base is None or head.schema.shows_combined_rows:
            return ()
        return self.prepared.deaths(base.version, head.version)

    def _remember(self, head: Manifest, state: DeltaState, planned: FileChanges) -> None:
        self._covered, self._covered_at = head, state.last_id
        self._vectors = dict(planned.vectors)

    def _changed_rows(
        self, planned: FileChanges, base: Base, written: Mapping[str, Twin]
    ) -> tuple[list[RowsOfFile], list[RowsOfFile]]:
        """Return the rows live only before a publication, and those live only after it."""

        def old(add: DeltaAction) -> Vector:
            old_vector = base.vectors.get(run_id_of_copy(add["path"]) or "")
            return self.vector_of(add) if old_vector is None else old_vector

        unchanged = [(add["path"], old(add), vector) for add, vector in planned.revectored]
        removed_rows = [RowsOfFile.live(add["path"], old(add)) for add in planned.removed]
        added_rows = [
            RowsOfFile.live(written[run_id(f.path)].path, vector) for f, vector in planned.new
        ]
        removed_rows += [
            RowsOfFile.newly_deleted(path, after, before) for path, before, after in unchanged
        ]
        added_rows += [
            RowsOfFile.newly_deleted(path, before, after) for path, before, after in unchanged
        ]
        return removed_rows, added_rows

    def _write(self, head: Manifest, file: RunFile, vector: Vector, now_ms: int) -> Twin:
        rows = row_reader(self.table, head, file, vector)
        return write_data_file(self.target, file, head.schema.columns, rows, now_ms=now_ms)

    def _file_actions(
        self, planned: FileChanges, written: Mapping[str, Twin], *, now_ms: int, data_change: bool
    ) -> list[DeltaAction]:
        """Return a publication's file actions, removals first."""
        vectors = [vector for _, vector in (*planned.revectored, *planned.new)]
        described = self._put_vectors(vectors)
        removes = [
            remove_action(add, now_ms=now_ms, data_change=data_change)
            for add in (*planned.removed, *(add for add, _ in planned.revectored))
        ]
        adds: list[DeltaAction] = []
        for (add, _), vector in zip(planned.revectored, described, strict=False):
            stats = json.loads(add["stats"])
            adds.append(
                add_action(
                    add["path"],
                    bytes=add["size"],
                    written_ms=add["modificationTime"],
                    stats=stats_text(stats, has_vector=vector is not None),
                    vector=vector,
                    data_change=data_change,
                )
            )
        for (file, _), vector in zip(
            planned.new, described[len(planned.revectored) :], strict=True
        ):
            twin = written[run_id(file.path)]
            adds.append(
                add_action(
                    twin.path,
                    bytes=twin.bytes,
                    written_ms=twin.written_ms,
                    stats=stats_text(twin.stats, has_vector=vector is not None),
                    vector=vector,
                    data_change=data_change,
                )
            )
        return [*removes, *adds]

    # -- vectors -------------------------------------------------------------------------

    def _put_vectors(self, vectors: Sequence[Vector]) -> list[DeltaAction | None]:
        """Write deletion vectors, and return their log entries; None without deleted rows.

        Small vectors are stored inline, the others in one file.
        """
        encoded = [vector.encode() if vector.count else b"" for vector in vectors]
        long = [data for data in encoded if len(data) > INLINE_BYTES_MAX]
        id_ = uuid.uuid4()
        content, references = encode_file(long)
        offsets = iter(references)
        if long:
            with self.target.create(vector_file_name(id_)) as sink:
                sink.write(content)
        described: list[DeltaAction | None] = []
        for vector, data in zip(vectors, encoded, strict=True):
            if not data:
                described.append(None)
                continue
            if len(data) > INLINE_BYTES_MAX:
                descriptor = {
                    "storageType": "u",
                    "pathOrInlineDv": encode_z85(id_.bytes),
                    "offset": next(offsets),
                }
            else:
                descriptor = {"storageType": "i", "pathOrInlineDv": encode_z85(data)}
            described.append({**descriptor, "sizeInBytes": len(data), "cardinality": vector.count})
        return described

    def vector_of(self, add: DeltaAction) -> Vector:
        """Return a live file's deletion vector; raises `CorruptionError`."""
        try:
            rows = int(json.loads(add["stats"])["numRecords"])
            described = add.get("deletionVector")
            if described is None:
                return Vector(rows)
            vector = Vector.decode(self._read_encoded(described), rows)
            if vector.count != described["cardinality"]:
                raise ValueError(f"{vector.count} dead rows, not {described['cardinality']}")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError.in_file(
                f"{self.place}/{add['path']}", "a deletion vector of ours", str(error)
            ) from error
        return vector

    def _read_encoded(self, described: DeltaAction) -> bytes:
        text, size = described["pathOrInlineDv"], described["sizeInBytes"]
        if described["storageType"] == "i":
            return decode_z85(text, size)
        name = vector_file_name(uuid.UUID(bytes=decode_z85(text[-20:], 16)))
        try:
            data = self.target.read(name)
        except FileNotFoundError as error:
            raise CorruptionError.in_file(
                f"{self.place}/{name}", "a file of deletion vectors", "no such file"
            ) from error
        return read_from_file(data, described["offset"], size)

    def _log_publication(self, before: int | None, head: Manifest, planned: FileChanges) -> None:
        fields = Fields(
            path=self.table.url,
            place=self.place,
            shown_before=before,
            shown=head.version,
            twins=len(planned.new),
            vectors=len(planned.revectored),
            removed=len(planned.removed),
        )
        _LOGGER.info("mirror published: %s", fields)


def check_mirror(mirror: Mirror) -> Iterator[Finding]:
    """Yield a mirror's faults; if its version is expired, rows cannot be compared."""
    try:
        state = mirror.state()
    except CorruptionError as error:
        yield Finding(place=mirror.place, expected="a sound log", found=error.message)
        return
    shown = None if state is None else shown_version(state, mirror.log.head().table_id)
    if state is None or shown is None:
        return
    if state.foreign is not None:
        yield Finding(
            place=f"{mirror.place}, version {state.foreign.version}",
            expected="commits of its publisher alone",
            found=state.foreign.operation,
        )
        return
    yield from _check_checksum(mirror, state)
    newest = mirror.log.head().version
    if shown > newest:
        yield newer_than_the_log(mirror.place, shown, newest)
        return
    try:
        manifest = mirror.log.at(shown)
    except DataLossError:
        return
    yield from _check_files(mirror, manifest, state)


def _check_checksum(mirror: Mirror, state: DeltaState) -> Iterator[Finding]:
    """Yield fields differing between the newest version's checksum and the log."""
    path = checksum_path(state.version)
    try:
        contents = json.loads(mirror.target.read(path))
    except FileNotFoundError:
        return
    except ValueError as error:
        contents = {"": repr(error)}
    for name, value in checksum_fields(state).items():
        recorded = contents.get(name) if isinstance(contents, dict) else contents
        if name != "txnId" and recorded != value:
            yield Finding(
                place=f"{mirror.place}/{path}",
                expected=f"{name} as the log has it: {value!r:.200}",
                found=f"{recorded!r:.200} (remove the file: readers do without)",
            )


def _check_files(mirror: Mirror, manifest: Manifest, state: DeltaState) -> Iterator[Finding]:
    twins = data_files_by_run(state.live)
    vectors = vectors_of_manifest(mirror.table, manifest)
    named = set()
    for path, file in run_files(manifest).items():
        add = twins.get(run_id(path))
        vector = vectors[path]
        if add is None:
            if not vector.is_all:
                live = vector.rows - vector.count
                yield Finding(place=mirror.place, expected=f"a twin of '{path}'", found="none")
                yield Finding(place=path, expected=f"{live} rows in the mirror", found="none")
            continue
        named.add(add["path"])
        yield from _check_data_file(mirror, manifest, file, vector, add)
    for path in sorted(state.live.keys() - named):
        yield Finding(place=f"{mirror.place}/{path}", expected="no such file", found="a live one")


def _check_data_file(
    mirror: Mirror, manifest: Manifest, file: RunFile, vector: Vector, add: DeltaAction
) -> Iterator[Finding]:
    location = f"{mirror.place}/{add['path']}"
    try:
        add_vector = mirror.vector_of(add)
    except CorruptionError as error:
        yield Finding(place=location, expected="its deletion vector", found=error.message)
        return
    if add_vector != vector:
        yield Finding(
            place=location,
            expected=f"{vector.count} dead rows, those of the manifest",
            found=f"{add_vector.count}, or others (publish with --rebuild)",
        )
        return
    try:
        finding = _describe_difference(mirror, manifest, file, vector, add)
    except FileNotFoundError:
        yield Finding(place=location, expected=f"{add['size']} bytes", found="no such file")
    except (pa.ArrowException, OSError) as error:
        yield Finding(place=location, expected="a Parquet file", found=str(error))
    else:
        if finding is not None:
            yield Finding(place=location, expected="the rows of its run", found=finding)


def _describe_difference(
    mirror: Mirror, manifest: Manifest, file: RunFile, vector: Vector, add: DeltaAction
) -> str | None:
    """Describe how a Parquet copy differs from its run; None if it does not."""
    mirror.target.forget(add["path"])
    data = mirror.target.map(add["path"])
    if data.size != add["size"]:
        return f"{data.size} bytes in place of {add['size']}"
    twin = pq.ParquetFile(pa.BufferReader(data))
    if twin.metadata.num_rows != file.rows:
        return f"{twin.metadata.num_rows} rows in place of {file.rows}"
    columns, expected = manifest.schema.columns, row_reader(mirror.table, manifest, file, vector)
    at = 0
    for batch in twin.iter_batches(batch_size=CHUNK_ROWS):
        live = pa.array(np.flatnonzero(~vector.deleted_mask(at, at + batch.num_rows)))
        theirs = [
            batch.column(name).cast(columns.field(name).type)
            if has_column(batch.schema, name)
            else pa.nulls(batch.num_rows, columns.field(name).type)
            for name in columns.names
        ]
        ours = expected(at, at + batch.num_rows).columns
        same = identical_rows([c.take(live) for c in ours], [c.take(live) for c in theirs])
        if not bool(same.all()):
            return f"another row at {at + live[int(np.flatnonzero(~same)[0])].as_py()}"
        at += batch.num_rows
    return None
