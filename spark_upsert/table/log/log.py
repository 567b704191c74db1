"""The log (`Log`): one immutable object per version, created only if it is absent.

That put is the commit point: a version is visible once its object exists. A put may raise although
it took effect; the version's token decides. Proofs and gaps: docs/adr/0015.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import islice

from spark_upsert.core.durations import Fields
from spark_upsert.errors import ContentionError, CorruptionError, OtherTableError, UpsertFlowError
from spark_upsert.store import Store
from spark_upsert.store.protocol import new_token
from spark_upsert.store.records import checked_record, encode, read_record
from spark_upsert.table.log.codec import (
    FOLDER,
    LEAVES,
    checkpoint_path,
    commit_from_json,
    commit_path,
    commit_to_json,
    commits_from_json,
    commits_to_json,
    entries,
    is_leaf_path,
    require_no_rest,
)
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest, Slice, apply
from spark_upsert.table.log.reader import LogReader
from spark_upsert.table.log.slices import LeafFile
from spark_upsert.table.log.storage import (
    AHEAD_MS,
    Clock,
    CommitMark,
    last_checkpoint_due,
    newest_checkpoint_up_to,
    read_checkpoint,
    read_hint,
    require_clock,
    storage_ms,
    stored_leaves,
    write_checkpoint,
    write_hint,
)
from spark_upsert.table.run.file import RunFile

_LOGGER = logging.getLogger(__name__)


def log_commit(commit: Commit, path: str) -> None:
    """Log a committed version with its non-zero counters."""
    _LOGGER.info("version committed: %s", _fields(commit, path))


def _compaction_counts(commit: Commit) -> dict[str, int | None]:
    """Return the remaining row and tombstone counts after a compaction; empty for other kinds."""
    if commit.kind is not Kind.COMPACT:
        return {}
    files = [slice_.file for slice_ in commit.slices()]
    tombstones = sum(file.tombstones for file in files)
    return {"rows": sum(file.rows for file in files), "tombstones": tombstones or None}


def _fields(commit: Commit, path: str) -> Fields:
    # A restore takes over files from older versions.
    files = [] if commit.restored is not None else [slice_.file for slice_ in commit.slices()]
    count = len(commit.transactions)
    one = commit.transactions[0] if count == 1 else None
    return Fields(
        path=path,
        version=commit.version,
        kind=commit.kind.value,
        writer=one and one.writer,
        number=one and one.number,
        writers=count if count > 1 else None,
        files=len(files) or None,
        bytes=sum(file.bytes for file in files) or None,
        ranges_taken=len(commit.taken) or None,
        **_compaction_counts(commit),
        from_version=commit.restored,
        **{name: rows for name, rows in commit.counters.items() if rows},
        live_rows=commit.live_rows,
        since=commit.since or None,
        fence=commit.fence or None,
    )


COMMIT_TRIES_MAX = 1000
"""After each lost race, another writer has succeeded; a thousand in a row is a fault."""


_COMMITTER_BYTES = 4

WRITERS_MAX = 64
"""Maximum concurrent writers in an estimate."""

RECENT_BYTES_MAX, BLOCK_BYTES_MAX = 1 << 16, 1 << 20
"""Maximum bytes of repeated commits: in any version, for reads as fast as of a small object; in the
last version of a block (`Log._recent`)."""

_SLOT_S_MAX, _DELAY_S_MAX = 1.0, 10.0
"""Maximum duration of one attempt in an estimate, and maximum delay before one attempt."""

_BUSY_SLOTS = 2
"""Attempts per version below which a log counts as contended: half of the time is in use."""


class CommitTurns:
    """Round robin among a log's concurrent writers: a policy without requests.

    Without contention there is no delay. After a lost race, a writer waits until each writer that
    committed in the previous round has committed in this one, for the duration of an attempt each.
    All writers take the rounds from the log, so their turns differ. A wrong estimate costs a lost
    race or an unused slot.

    Parameters
    ----------
    clock : callable, optional
        Returns seconds from any beginning.
    draw : callable, optional
        Returns a random number from 0 to 1.
    """

    def __init__(
        self, clock: Clock = time.monotonic, draw: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._draw = draw
        self._begun_s: float | None = None
        self._won_s = clock()
        self._slot_s = 0.0
        self._losses = 0
        self._load = 1.0
        self.last_version: int | None = None
        """This writer's newest version."""
        self.rivals: frozenset[str] = frozenset()
        """The other writers in the previous round, while the log is contended."""
        self.is_contended = False

    def delay_s(self, committed: Set[str]) -> float:
        """Return how long to wait for this writer's turn in a contended log.

        ``committed``: the other writers since `last_version`.
        """
        # A new writer has no place yet: the longer it loses, the wider it spreads its attempts.
        spread = len(committed) if self.last_version is None else 2
        slots = self._load * len(self.rivals - committed)
        slots += self._draw() * min(self._losses, spread)
        return min(slots * self._slot_s, _DELAY_S_MAX)

    def begin(self) -> None:
        """Start an attempt, with the read of the newest version."""
        self._begun_s = self._clock()

    def lose(self) -> None:
        """Record a lost race."""
        self._measure()
        self._losses += 1
        self.is_contended = True

    def win(self, version: int, committed: Set[str]) -> None:
        """Record a commit; ``committed`` as for `delay_s`."""
        now_s = self._measure()
        count = 1 if self.last_version is None else version - self.last_version
        used_s = _BUSY_SLOTS * count * self._slot_s
        self._load = min(1.0, used_s / max(now_s - self._won_s, used_s, 1e-9))
        self.is_contended = bool(committed) and (self._losses > 0 or self._load == 1.0)
        self.rivals = frozenset(committed if self.is_contended else ())
        self.last_version, self._won_s, self._losses = version, now_s, 0

    def _measure(self) -> float:
        """Include an attempt in the estimated duration; return the time."""
        now_s, begun_s = self._clock(), self._begun_s
        self._begun_s = None
        if begun_s is not None:
            duration_s = min(now_s - begun_s, _SLOT_S_MAX)
            self._slot_s += (duration_s - self._slot_s) * (0.25 if self._slot_s else 1.0)
        return now_s


class Log(LogReader):
    """The versions of one table, with commits. Safe for threads.

    Parameters
    ----------
    store : Store
    clock : callable, optional
        Returns seconds since 1970.
    sleep : callable, optional
        Sleeps for the given seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store, clock=clock)
        self._sleep = sleep
        self._turns = CommitTurns()
        self._committer = secrets.token_hex(_COMMITTER_BYTES)
        self._listeners: tuple[Callable[[Commit], None], ...] = ()
        self._checkpointed: Sequence[Slice] = ()

    def listen(self, on_commit: Callable[[Commit], None]) -> None:
        """Register a listener for each version committed here, once it is durable.

        The committing thread calls the listener, which must not wait or fail.
        """
        self._listeners += (on_commit,)

    def append(self, propose: Callable[[Manifest], Draft | None]) -> Commit | None:
        """Commit the next version, whatever its number; None if ``propose`` returns None.

        ``propose`` is called again after each lost race, so it must only read. Errors, always
        without a commit: a lost version before the next one (CorruptionError), another table at the
        path (OtherTableError), `COMMIT_TRIES_MAX` lost races (ContentionError).
        """
        for head in self.commit_attempts():
            draft = propose(head)
            if draft is None:
                return None
            commit = self.try_append(head, draft)
            if commit is not None:
                return commit
        raise AssertionError("the attempts end with an error")

    def commit_attempts(self) -> Iterator[Manifest]:
        """Yield the newest manifest, read again for each attempt to commit after it.

        While other writers commit often, this waits for the writer's turn before each attempt.
        """
        for _ in range(COMMIT_TRIES_MAX):
            if self._turns.is_contended:
                delay_s = self._turns.delay_s(self._writers_since_own(self.cached_head))
                if delay_s > 0:
                    self._sleep(delay_s)
            self._turns.begin()
            yield self.head()
        raise ContentionError(
            f"{COMMIT_TRIES_MAX} attempts to commit to '{self._store.url}' lost against others.",
            hint="retry later, or write with fewer writers at once.",
        )

    def try_append(self, head: Manifest, draft: Draft) -> Commit | None:
        """Commit a draft right after a version; None if another writer was faster.

        The put of ``v + 1`` counts if ``v`` is found by its token after it; otherwise the object is
        removed. Before the put, ``v + 2`` must be absent: if ``v + 1`` was lost, a put would fill
        the gap with another version.
        """
        return self._try_append(head, draft, self._next_ms(head))

    def _try_append(self, head: Manifest, draft: Draft, timestamp_ms: int) -> Commit | None:
        commit = draft.committed(
            version=head.version + 1,
            timestamp_ms=timestamp_ms,
            token=new_token(),
            previous=head.token,
            committer=self._committer if self.is_contended else "",
            unknown_before=head.unknown_rows,
        )
        if self._has_later(head) or not self._try_put(commit, self._recent(head)):
            self._turns.lose()
            return None
        self._turns.win(commit.version, self._writers_since_own(head))
        if self._stored.contains(head):
            self._remember(apply(head, commit), head)
            self._stored.keep([commit])
        elif not self._is_effective(commit, head):
            return None
        for listener in self._listeners:
            listener(commit)
        self._checkpoint(commit.version)
        log_commit(commit, self._store.url)
        return commit

    def _has_later(self, head: Manifest) -> bool:
        """Return whether other writers were faster by two versions or more."""
        if self._is_listed_newest(head):
            return False
        if self._stored.mark(head.version + 2) is None:
            return False
        self.require_no_gap(head)
        return True

    def create(self, draft: Draft, *, table_id: str | None = None) -> Commit | None:
        """Commit version 0, which creates the table; None if another writer was faster."""
        if self._stored.mark(0) is None:
            require_no_rest(self._store)
        self._store.prepare(FOLDER)
        now_ms = self.now_ms()
        require_clock(self._store, now_ms)
        commit = draft.committed(
            version=0, timestamp_ms=now_ms, token=table_id or new_token(), previous=""
        )
        if not self._try_put(commit):
            return None
        first_commit = self.commit(0)  # Of attempts with one identity, the first one wins.
        log_commit(first_commit, self._store.url)
        return first_commit

    def _next_ms(self, head: Manifest) -> int:
        """Return the time for the next version: times only grow."""
        now_ms = self.now_ms()
        if now_ms > head.timestamp_ms + AHEAD_MS:
            require_clock(self._store, now_ms)
        return max(now_ms, head.timestamp_ms + 1)

    def repair_clock(self) -> Commit | None:
        """Commit a repair if versions have times far in the future.

        Their times then count as the storage's current time. Returns None if no repair is needed.
        """
        for head in self.commit_attempts():
            now_ms = storage_ms(self._store)
            if now_ms is None or head.timestamp_ms <= now_ms + AHEAD_MS:
                return None
            last_right = self.version_at(now_ms + AHEAD_MS)
            before = self.commit(last_right).timestamp_ms + 1 if last_right >= head.since else 0
            draft = Draft(kind=Kind.CLOCK, live_rows=head.live_rows, wrong_from=last_right + 1)
            commit = self._try_append(head, draft, max(now_ms, before))
            if commit is not None:
                return commit
        raise AssertionError("the attempts end with an error")

    def _try_put(self, commit: Commit, recent: Sequence[Commit] = ()) -> bool:
        path = commit_path(commit.version)
        commits = [*recent, commit]
        record = checked_record(path, commits, commits_to_json(commits), commits_from_json)
        # A put may take effect before it fails, and a client repeating it automatically meets its
        # own object: only the token identifies its writer.
        try:
            if record.put_if_absent(self._store):
                self._durable_version = commit.version
                return True
            mark = self._stored.mark(commit.version)
        except Exception as error:
            mark = self._stored.mark(commit.version)
            if mark is None:
                if isinstance(error, OSError):
                    self.try_head()  # Raises a clearer error if the table was removed.
                raise
        if mark is None or mark.token != commit.token:
            return False
        self._make_durable(commit.version)
        return True

    def _is_effective(self, commit: Commit, before: Manifest) -> bool:
        """Return whether a commit counts although the version before it is gone.

        Either this process was suspended before its put, which then used the path of a removed
        version and is in no reader's log; or it was suspended after its put, and the version has
        expired since. The next cut removes a stray object.
        """
        if self._is_other_log(before):
            self._remove_own_put(commit)
        try:
            head = self.head()
        except OtherTableError:
            self._remove_own_put(commit)
            raise
        if not commit.transactions:
            raise ContentionError(
                f"the commit of version {commit.version} to '{self._store.url}' slept for longer "
                "than the retention; whether it is part of the table cannot be told.",
                hint="look at the table before you write these rows again; give writes a "
                "transaction ('txnAppId' and 'txnVersion'), which settles this by itself.",
            )
        return all(head.has(transaction) for transaction in commit.transactions)

    def _is_other_log(self, manifest: Manifest) -> bool:
        """Return whether a missing version was not cut off, so the log is another one."""
        first = self._stored.mark(0)
        if first is None or first.token != manifest.table_id:
            return True
        return not first.is_cut and not self._stored.contains(manifest)

    def _remove_own_put(self, commit: Commit) -> None:
        mark = self._stored.mark(commit.version)
        if mark is not None and mark.token == commit.token:
            self._store.delete(commit_path(commit.version))

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint if one is due. A failure costs only speed, so it is not raised."""
        if version != last_checkpoint_due(version):
            return
        try:
            with self.cached_snapshot() as snapshot:  # It was committed just now.
                manifest = snapshot.at(version)
            reusable: frozenset[LeafFile] = frozenset()
            if manifest.slice_list.leaves:
                # In the log just now; a vacuum removes leaves at the earliest an hour later.
                reusable = stored_leaves(self._store, read_hint(self._store))
            write_checkpoint(self._store, manifest, self._checkpointed, reusable=reusable)
            self._checkpointed = manifest.slices
            write_hint(self._store, version)
        except (OSError, UpsertFlowError):
            return

    # -- contention ------------------------------------------------------------------

    @property
    def is_contended(self) -> bool:
        """Whether this writer has lost a race to writers that still commit often.

        Then a request for the newest version lists the log, and versions repeat recent commits.
        """
        return self._turns.is_contended and self._store.needs_fetch(commit_path(0))

    def _iter_cached_back(self, head: Manifest | None) -> Iterator[Commit]:
        """Yield the cached commits from a version back, without version 0."""
        token = "" if head is None else head.token
        for version in range(0 if head is None else head.version, 0, -1):
            commit = self._stored.cached(version)
            if commit is None or commit.token != token:
                return
            yield commit
            token = commit.previous

    def _writers_since_own(self, head: Manifest | None) -> set[str]:
        """Return the other committers since this writer's newest version."""
        last = self._turns.last_version
        writers: set[str] = set()
        for commit in islice(self._iter_cached_back(head), 2 * WRITERS_MAX):
            if last is not None and commit.version <= last:
                break
            writers.add(commit.committer)
        return writers - {self._committer}

    def _recent(self, head: Manifest) -> list[Commit]:
        """Return the commits to repeat in the next version, so that processes read few objects.

        A version with a checkpoint repeats the versions since the last one, its *block*. A
        contended writer repeats about two rounds.
        """
        count = 2 * (len(self._turns.rivals) + 1) if self.is_contended else 0
        bytes_left = RECENT_BYTES_MAX
        if last_checkpoint_due(head.version + 1) == head.version + 1:
            count = max(count, head.version - last_checkpoint_due(head.version))
            bytes_left = BLOCK_BYTES_MAX
        recent: list[Commit] = []
        for commit in islice(self._iter_cached_back(head), count):
            bytes_left -= len(encode(commit_to_json(commit)))
            if bytes_left < 0:
                break
            recent.append(commit)
        return recent[::-1]


LOG_SECONDS_MIN = 3600.0
"""Minimum age for cutting versions off the log, so cuts rarely meet running readers."""


def cut(
    store: Store,
    log: LogReader,
    *,
    now_s: float,
    seconds_min: float = LOG_SECONDS_MIN,
    dry_run: bool = False,
) -> list[str]:
    """Remove the oldest log entries, which no readable version needs; return their paths.

    Version 0, the newest checkpoint at or below ``since`` and all later versions remain. Order:
    write that checkpoint again and update the hint, mark version 0 as cut, remove old versions one
    by one, the oldest first. So while ``v`` is in the log, no version after ``v`` was removed, and
    a suspended process cannot take a freed name for the end. A crash between steps is harmless.
    """
    lower = last_checkpoint_due(log.head().since)
    limit_s = now_s - max(seconds_min, LOG_SECONDS_MIN)
    gone = []
    for entry in entries(store):
        if entry.version == 0 or entry.is_link:
            continue  # Version 0 is never removed, and young since it was marked.
        if entry.version >= lower or entry.modified_s > limit_s:
            break
        gone.append(entry.path)
    leaves = _unused_leaves(store, limit_s)
    if gone and not dry_run:
        _start_log_at(store, log, lower)
    if not dry_run:
        for path in (*gone, *leaves):
            store.delete(path)
    return [*gone, *leaves]


def _unused_leaves(store: Store, limit_s: float) -> list[str]:
    """Return the leaves older than a time and in no checkpoint.

    Checkpoints to be cut now still retain their leaves until the next vacuum, since another process
    may be reusing those leaves for its checkpoint.
    """
    leaves = [
        info.path
        for info in store.list(LEAVES)
        if is_leaf_path(info.path) and info.modified_s <= limit_s and not info.is_link
    ]
    if not leaves:
        return []
    used: set[str] = set()
    # Read after the listing.
    for entry in entries(store):
        if entry.is_checkpoint:
            used |= {file.path for file in stored_leaves(store, entry.version)}
    return [path for path in leaves if path not in used]


def _start_log_at(store: Store, log: LogReader, version: int) -> None:
    """Make a checkpoint the log's first entry: steps 1 and 2 of a cut."""
    # From older checkpoints and later commits; None if the log begins here already.
    manifest = log.stored.apply_commits(newest_checkpoint_up_to(store, version - 1), version)
    has_leaves = False
    if manifest is not None and manifest.version == version:
        files = frozenset(leaf.file for leaf in manifest.slice_list.leaves if leaf.file)
        write_checkpoint(store, manifest, reusable=files, is_replacing=True)
        has_leaves = bool(manifest.slice_list.leaves)
    if (has_leaves or manifest is None or manifest.version != version) and (
        read_checkpoint(store, version) is None
    ):
        raise CorruptionError.in_file(
            f"{store.url}/{checkpoint_path(version)}", "a checkpoint with its leaves", "none"
        )
    # Else the log begins here already; older objects come from a crash or a suspended process.
    last = read_hint(store)
    if last is None or last < version:
        write_hint(store, version)
    first = read_record(store, commit_path(0), dict)
    if first is not None and not first.get("cut", False):
        commit = commit_from_json(first)
        value = commit, CommitMark(token=commit.token, is_cut=True)
        checked_record(
            commit_path(0),
            value,
            {**first, "cut": True},
            lambda record: (commit_from_json(record), CommitMark.from_json(record)),
        ).put(store)


def remove_unused(store: Store, log: Log, files: Sequence[RunFile], *, base_version: int) -> None:
    """Remove files unless a version after ``base_version`` uses them.

    Only if no commit can add the files any more: a put in progress may still win.
    """
    if not files:
        return
    head = log.try_head()
    used: set[str] = set()
    if head is not None:  # Else the table was not made, or is no more.
        if base_version + 1 < head.since:
            return  # The versions that may name them are expired; a vacuum decides.
        for version in log.commits(base_version + 1, head.upper):
            used |= version.paths
    for file in files:
        if file.path not in used:
            store.delete(file.path)
