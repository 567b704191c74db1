"""The position of a stream in a growing set of files: the files that it has delivered.

Files have no versions, and nothing of ours lies beside them. So the position itself must tell the
delivered files from the others, in a process that has seen nothing, and stay small however many
there are:

==========  =======================================================================
``batch``   the files of the last batch, in order, as ``[name, bytes, modified_us]``.
            A replay reads exactly these; one that is gone by then can be named
``count``   how many files were delivered, ever. Two positions of one batch differ by
            files at the end of the batch, as many as their counts differ by
``recent``  the *window*: the `WINDOW` newest delivered files, each as time, hash of
            the name and bytes. A file that is not in it and newer than ``upto`` was
            never delivered, however late it came
``upto``    the newest file behind the window, as ``[modified_us, hash]``
``days``    the files behind the window that were there when the position was made:
            for each day of modification how many, and the sum of their hashes.
            The first day stands for all before it, too
==========  =======================================================================

Behind the window a file is known by its day alone. The process that delivered it knows its name as
well (`Delivered.behind`), so that no file is missed while a query runs, whatever the file's time. A
new process takes all files behind the window for delivered, and the days prove it: each day has
exactly those files, except that the oldest files may have been removed. Any other difference is an
error: a file came late, or took the place of another.

Files are told apart by name; the same name with another size or time is a *replaced* file, which no
position can deliver in part.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from spark_upsert.errors import DataLossError, OptionError, setting
from spark_upsert.store.folder import FileStatus
from spark_upsert.store.records import MALFORMED, counted, text, whole
from spark_upsert.streams.offsets.position import Position

WINDOW = 256
"""Files that are told apart over a restart, however late others came: 8 kB of a position."""

DAYS = 32
"""Days that are counted one by one behind the window: at most 1.5 kB of a position."""

_DAY_US = 86_400_000_000
_HASHES = 1 << 64
_ENTRY = np.dtype([("modified_us", "<i8"), ("hash", "<u8"), ("bytes", "<i8")])
_KEYS = frozenset({"batch", "count", "days", "recent", "upto"})
_SHOWN = 5
"""Names that an error lists."""

FileMark = tuple[int, int]
"""Where a file stands in time: when it was modified, then the hash of its name."""


@dataclass(frozen=True, slots=True)
class Day:
    """How many files of a day are behind the window, and the sum of their hashes."""

    day: int
    """Days since 1970."""
    count: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A position in a set of files; the fields are those of the record."""

    batch: tuple[FileStatus, ...] = ()
    count: int = 0
    days: tuple[Day, ...] = ()
    recent: tuple[tuple[int, int, int], ...] = ()
    """Time, hash of the name and bytes, sorted."""
    upto: FileMark | None = None

    def packed(self) -> Position:
        """Return the position as others see it."""
        recent = np.array(list(self.recent), dtype=_ENTRY).tobytes()
        return Position.of(
            {
                "batch": [[file.name, file.bytes, file.modified_us] for file in self.batch],
                "count": self.count,
                "days": [[each.day, each.count, f"{each.digest:016x}"] for each in self.days],
                "recent": base64.b64encode(recent).decode("ascii"),
                "upto": None if self.upto is None else [self.upto[0], f"{self.upto[1]:016x}"],
            }
        )

    @classmethod
    def unpacked(cls, position: Position) -> FilePosition:
        """Rebuild a position.

        Raises
        ------
        OptionError
            It is that of another kind of input.
        """
        record = position.record
        try:
            if record.keys() != _KEYS:
                raise ValueError("its fields are others")
            upto = record["upto"]
            return cls(
                batch=tuple(_file(*each) for each in record["batch"]),
                count=whole(record["count"]),
                days=tuple(
                    Day(counted(day), whole(count), int(digest, 16))
                    for day, count, digest in record["days"]
                ),
                recent=_entries(record["recent"]),
                upto=None if upto is None else _mark(*upto),
            )
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint of this query stands at {position.text:.200}, which is no "
                "position in a set of files.",
                hint="the input was of another format when the checkpoint was made: give it a new "
                "name, or give the query a new checkpointLocation.",
            ) from error

    def delivered_since(self, start: FilePosition) -> tuple[FileStatus, ...]:
        """Return the files of the batch from a position to this one, in order.

        Raises
        ------
        OptionError
            The positions are not of one batch; Spark asks for no other.
        """
        fresh = self.count - start.count
        if not 0 <= fresh <= len(self.batch):
            raise OptionError(
                f"the checkpoint has a batch from {start.count} to {self.count} delivered files, "
                f"and names {len(self.batch)} files of it.",
                hint="it was altered; give the query a new checkpointLocation.",
            )
        return self.batch[len(self.batch) - fresh :]


def _file(name: Any, size: Any, modified_us: Any) -> FileStatus:
    return FileStatus(text(name), whole(size), counted(modified_us))


def _mark(modified_us: Any, digest: Any) -> FileMark:
    return counted(modified_us), int(digest, 16)


def _entries(packed: Any) -> tuple[tuple[int, int, int], ...]:
    data = base64.b64decode(packed, validate=True)
    entries: list[tuple[int, int, int]] = np.frombuffer(data, dtype=_ENTRY).tolist()
    return tuple(entries)


@dataclass(frozen=True)
class Delivered:
    """Which files of a listing were delivered, at a position.

    Parameters
    ----------
    position : FilePosition
    behind : mapping of str to FileStatus
        The files behind the window, by name.
    """

    position: FilePosition
    behind: Mapping[str, FileStatus]
    _recent: Mapping[int, tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        recent = {hash_: (modified, size) for modified, hash_, size in self.position.recent}
        object.__setattr__(self, "_recent", recent)

    @classmethod
    def at(cls, position: FilePosition, listed: Mapping[str, FileStatus]) -> Delivered:
        """Return what was delivered as far as a position tells: all that is behind its window."""
        upto = position.upto
        if upto is None:
            return cls(position, {})
        recent = {hash_ for _, hash_, _ in position.recent}
        behind = {
            name: file
            for name, file in listed.items()
            if file.modified_us <= upto[0] and mark_of(file) <= upto and hash_of(name) not in recent
        }
        return cls(position, behind)

    def require_proven(self, folder: str) -> None:
        """Check that the files behind the window are those that were delivered.

        Raises
        ------
        DataLossError
            There is another one, or one is gone that is not among the oldest.
        """
        known = {each.day: each for each in self.position.days}
        first = min(known, default=None)
        found: dict[int, list[FileStatus]] = {day: [] for day in known}
        for file in self.behind.values():
            day = _day_of(file)
            found.setdefault(day if first is None else max(day, first), []).append(file)
        are_older_whole = False
        for day in sorted(found):
            expected = known.get(day, Day(day, 0, 0))
            files = found[day]
            is_whole = len(files) == expected.count and _digest(files) == expected.digest
            if len(files) > expected.count or (len(files) == expected.count and not is_whole):
                raise _came_late(folder, expected, files)
            if not is_whole and are_older_whole:
                raise _went_away(folder, expected, files)
            are_older_whole = are_older_whole or bool(files)

    def pending(
        self, listed: Mapping[str, FileStatus]
    ) -> tuple[list[FileStatus], list[FileStatus]]:
        """Return which files of a listing are to be delivered, and which were replaced.

        Returns
        -------
        tuple of (list of FileStatus, list of FileStatus)
            Each by time, then by name.
        """
        fresh, replaced = [], []
        for name, file in listed.items():
            held = self._recent.get(hash_of(name))
            if held is None:
                older = self.behind.get(name)
                held = None if older is None else (older.modified_us, older.bytes)
            if held is None:
                fresh.append(file)
            elif held != (file.modified_us, file.bytes):
                replaced.append(file)
        return sorted(fresh, key=in_time), sorted(replaced, key=in_time)

    def plus(self, files: Sequence[FileStatus], listed: Mapping[str, FileStatus]) -> Delivered:
        """Return what is delivered behind a batch of files, as a listing has them.

        Parameters
        ----------
        files : sequence of FileStatus
            Those of `pending`, from its beginning on.
        """
        position = self.position
        fresh = ((file.modified_us, hash_of(file.name), file.bytes) for file in files)
        entries = sorted([*position.recent, *fresh])
        aged, recent = entries[:-WINDOW], entries[-WINDOW:]
        upto = position.upto
        behind = {name: file for name, file in self.behind.items() if listed.get(name) == file}
        if aged:
            by_hash = {hash_of(name): file for name, file in listed.items()}
            for modified, hash_, size in aged:
                file = by_hash.get(hash_)
                # What is removed, or replaced since, is not there to be counted.
                if file is not None and (file.modified_us, file.bytes) == (modified, size):
                    behind[file.name] = file
            last = aged[-1][:2]
            upto = last if upto is None else max(upto, last)
        return Delivered(
            FilePosition(
                batch=tuple(files),
                count=position.count + len(files),
                days=_days(behind.values()),
                recent=tuple(recent),
                upto=upto,
            ),
            behind,
        )


@lru_cache(maxsize=1 << 18)
def hash_of(name: str) -> int:
    """Return the hash of a file's name, 64 bits."""
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def mark_of(file: FileStatus) -> FileMark:
    """Return where a file stands in time, among those of a position."""
    return file.modified_us, hash_of(file.name)


def in_time(file: FileStatus) -> tuple[int, str]:
    """Return where a file stands among those that are delivered together."""
    return file.modified_us, file.name


def digest_of(files: Iterable[FileStatus]) -> str:
    """Return a text that stands for a set of files."""
    return f"{_digest(files):016x}"


def named(name: str) -> str:
    """Return a file's name as a text that can be written anywhere; not all names are texts."""
    return name.encode("utf-8", "backslashreplace").decode()


def replaced_error(folder: str, files: Sequence[FileStatus]) -> DataLossError:
    """Return the error of files that were delivered and are others by now."""
    return DataLossError(
        f"in '{folder}', {_some(files)} was delivered, and has another size or time since: what it "
        "holds by now cannot be told from what was delivered.",
        hint="write each file under a name of its own, and once: under a name that begins with '_' "
        "or '.' first, then rename it. Put back the file that was there, or go on without the rows "
        f"that came since, by {setting('failOnDataLoss', 'false')}.",
        path=folder,
    )


def _came_late(folder: str, expected: Day, files: list[FileStatus]) -> DataLossError:
    surplus = (_digest(files) - expected.digest) % _HASHES
    single = [file for file in files if _digest([file]) == surplus]
    if len(files) == expected.count + 1 and single:
        which = f"It is {_some(single)}."
    else:
        which = f"It is among {_some(sorted(files, key=in_time))}."
    return DataLossError(
        f"in '{folder}', {expected.count} files of {_date(expected.day)} or before were delivered, "
        f"and {len(files)} are there: a file came late or was replaced while the query did not "
        f"run, behind the {WINDOW} newest that a checkpoint tells apart. {which}",
        hint="renew its time (touch, or copy it in place): it is read as a new file then. Or go on "
        f"without it by {setting('failOnDataLoss', 'false')}.",
        path=folder,
    )


def _went_away(folder: str, expected: Day, files: list[FileStatus]) -> DataLossError:
    return DataLossError(
        f"in '{folder}', {expected.count} files of {_date(expected.day)} were delivered, and "
        f"{len(files)} are left, although older ones are still there: whether one was replaced by "
        "a newer file of its name cannot be told.",
        hint="remove delivered files from the oldest on. If none was replaced, go on by "
        f"{setting('failOnDataLoss', 'false')}, until the next file is delivered.",
        path=folder,
    )


def _some(files: Sequence[FileStatus]) -> str:
    texts = ", ".join(f"'{named(file.name)}'" for file in files[:_SHOWN])
    return texts if len(files) <= _SHOWN else f"{texts} and {len(files) - _SHOWN} others"


def _days(files: Iterable[FileStatus]) -> tuple[Day, ...]:
    """Count files by days; the oldest days are one."""
    by_day: dict[int, list[FileStatus]] = {}
    for file in files:
        by_day.setdefault(_day_of(file), []).append(file)
    days = sorted(by_day)
    merged, single = days[: 1 - DAYS], days[1 - DAYS :]
    rows = [(merged[-1], merged)] if merged else []
    rows += [(day, [day]) for day in single]
    return tuple(_day(last, [file for day in of for file in by_day[day]]) for last, of in rows)


def _day(day: int, files: list[FileStatus]) -> Day:
    return Day(day, len(files), _digest(files))


def _day_of(file: FileStatus) -> int:
    return file.modified_us // _DAY_US


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))


def _digest(files: Iterable[FileStatus]) -> int:
    """Return the sum of the hashes of files, which does not depend on their order."""
    return sum(map(_hash_of_state, files)) % _HASHES


@lru_cache(maxsize=1 << 18)
def _hash_of_state(file: FileStatus) -> int:
    return hash_of(f"{file.bytes}/{file.modified_us}/{file.name}")


def record_of_head(listed: Mapping[str, FileStatus]) -> dict[str, Any]:
    """Return what is there by a listing, as the record of a position behind it all."""
    newest = max(listed.values(), key=in_time, default=None)
    return {
        "digest": digest_of(listed.values()),
        "files": len(listed),
        "upto": None if newest is None else [newest.modified_us, newest.name],
    }
