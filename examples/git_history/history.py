"""A git repository as upserts and deletes: key is the path, order is the commit's position.

Along the first parents from the root to HEAD, each commit says exactly which paths it sets
and which it removes::

    tree(commit n) = tree(commit n - 1) + changes(commit n)

so that a table fed with all changes must end as ``git ls-tree HEAD``, and git itself is the
judge of the proof. A merge is one commit here: what it did to its first parent. Renames are
a delete and an upsert, for a key has no identity beyond its name.

Three git processes read everything, whatever the number of commits, and only plumbing
commands: they obey no setting of the user, run no hook and write nothing.

Rejected: ``git log --raw``, which shows the same but listens to ``diff.*`` and ``log.*``.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from examples.git_history.errors import DemoError

_TREE: Mapping[str, pa.DataType] = {
    "path": pa.string(),  # see `path_text`
    "blob": pa.string(),  # object id, in hex
    "mode": pa.string(),  # as git shows it, for example 100644
    "bytes": pa.int64(),  # null for a submodule, and for a blob that a partial clone lacks
}
TREE = pa.schema(_TREE)
"""What git knows of a path at one commit."""

CHANGES = pa.schema({**_TREE, "seq": pa.int64(), "deleted": pa.bool_()})
"""What one commit did to a path; without blob, mode and bytes if it removed the path."""

EPOCHS_MAX = 100
"""A micro-batch costs Spark a few tenths of a second whatever is in it: a minute in all."""

_READ_BYTES = 1 << 20
_ROWS_PER_BATCH = 1 << 17  # Bounds the Python objects alive while git's output is parsed.
_SUBMODULE = "160000"
_ESCAPED = re.compile("[%\udc80-\udcff]")
_FIRST_FILE_TIME = 1_000_000_000  # Any time in the past, in seconds.

# A hook or an alias may have set these, and they would win over the folder that was asked for.
_LOCATING = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
# Trees as they were committed, and no download of what a partial clone has left out.
_LITERALLY = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Consecutive commits that one epoch replays, and their rows among all changes."""

    commit_lower: int
    commit_upper: int
    row_lower: int
    row_upper: int

    @property
    def row_count(self) -> int:
        """Changes in the chapter."""
        return self.row_upper - self.row_lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository with at least one commit, read without a change to it.

    Parameters
    ----------
    path : Path
        The folder as it was asked for: a checkout, a folder in one, or a bare repository.
    commits : tuple of str
        Object ids along the first parents, root first. Commit ``seq`` is at ``seq - 1``.
    is_shallow : bool
        Whether the root is only where the clone was cut off; its commit then sets every path.
    """

    path: Path
    commits: tuple[str, ...]
    is_shallow: bool

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Return the repository at a path, as of its HEAD.

        Raises
        ------
        DemoError
            No git, no repository, or no commit.
        """
        if not path.is_dir():
            raise DemoError(
                f"'{path}' is not a folder.", hint="give --repo the path of a git repository."
            )
        shallow = _git(
            path,
            *("rev-parse", "--is-shallow-repository"),
            problem="is not a repository that git can read",
            hint="give --repo a checkout or a bare repository, or make one with `git clone`.",
        )
        head = _git(
            path,
            *("rev-parse", "--verify", "--quiet", "HEAD^{commit}"),
            problem="has no commit yet",
            hint="commit something, or give another repository with --repo.",
        )
        commits = _git(path, "rev-list", "--first-parent", "--reverse", head.decode().strip())
        return cls(
            path=path,
            commits=tuple(commits.decode().split()),
            is_shallow=shallow.strip() == b"true",
        )

    def changes(self) -> pa.Table:
        """Return what each commit did.

        Returns
        -------
        pyarrow.Table, shape (n,)
            Columns as `CHANGES`, in the order of ``seq``, from 1; at most one row per path
            and commit. A commit without changes has no row.
        """
        changes = pa.concat_tables(
            [CHANGES.empty_table(), *_parse_changes(self._diff(), self.commits)]
        )
        return self._with_bytes(changes)

    def told(self) -> list[tuple[str, str]]:
        """Return author and subject of each commit, root first."""
        shown = _git(
            self.path,
            *("rev-list", "--first-parent", "--reverse", "--format=%an%x00%s%x00"),
            self.commits[-1],
        )
        fields = shown.decode(errors="replace").split("\0")
        # Before each author stands a line of its own, "commit <id>".
        authors = [field.rpartition("\n")[2] for field in fields[:-1:2]]
        return list(zip(authors, fields[1::2], strict=True))

    def tree(self, commit: str) -> pa.Table:
        """Return all paths of a commit, with columns as `TREE`, in git's order."""
        listing = _git(self.path, "ls-tree", "-r", "-z", "--full-tree", commit)
        return self._with_bytes(_parse_tree(listing.split(b"\0")[:-1]))

    def _diff(self) -> Iterator[bytes]:
        """Yield the fields of one ``git diff-tree`` over all commits."""
        # The parent is named, so that a merge is compared with its first parent only.
        parents = ("", *(f" {commit}" for commit in self.commits))
        pairs = zip(self.commits, parents, strict=False)
        lines = "".join(f"{commit}{parent}\n" for commit, parent in pairs)
        # --always: an empty commit shows its name too, so that names and positions agree.
        options = ("--stdin", "--always", "--root", "-r", "-z", "--raw", "--no-renames")
        yield from _stream(self.path, lines.encode(), "diff-tree", *options)

    def _with_bytes(self, table: pa.Table) -> pa.Table:
        """Fill the column ``bytes``, asking git once per blob."""
        is_blob = pc.and_(
            pc.is_valid(table["blob"]), pc.not_equal(table["mode"], pa.scalar(_SUBMODULE))
        )
        blobs = pc.unique(table["blob"].filter(is_blob))
        names = "".join(f"{blob}\n" for blob in blobs.to_pylist())
        command = ("cat-file", "--buffer", "--batch-check=%(objectsize)")
        answers = _git(self.path, *command, stdin=names.encode()).splitlines()
        # A partial clone lacks blobs; for those the answer is "... missing".
        sizes = pa.array([int(a) if a.isdigit() else None for a in answers], pa.int64())
        column = pc.take(sizes, pc.index_in(table["blob"], blobs))
        at = table.schema.get_field_index("bytes")
        return table.set_column(at, table.schema.field(at), column)


def cut_chapters(
    changes: pa.Table, commit_count: int, commits_per_epoch: int | None = None
) -> tuple[Chapter, ...]:
    """Cut a history into chapters of equally many commits.

    Parameters
    ----------
    changes : pyarrow.Table
        In the order of ``seq``.
    commit_count : int
    commits_per_epoch : int, optional
        By default as few as keep the chapters at `EPOCHS_MAX` or below.

    Returns
    -------
    tuple of Chapter
        Together all commits. None is without rows: commits that changed nothing belong to
        the chapter before, or to the first.
    """
    step = commits_per_epoch or -(-commit_count // EPOCHS_MAX)
    uppers = [*range(step, commit_count, step), commit_count]
    seq = changes["seq"].combine_chunks()
    chapters: list[Chapter] = []
    for commit_upper in uppers:
        row_lower = chapters[-1].row_upper if chapters else 0
        row_upper = bisect_right(range(len(seq)), commit_upper, key=lambda row: seq[row].as_py())
        if row_upper > row_lower:
            chapters.append(
                Chapter(
                    commit_lower=chapters[-1].commit_upper if chapters else 0,
                    commit_upper=commit_upper,
                    row_lower=row_lower,
                    row_upper=row_upper,
                )
            )
        elif chapters:
            chapters[-1] = replace(chapters[-1], commit_upper=commit_upper)
    return tuple(chapters)


def write_chapters(folder: Path, changes: pa.Table, chapters: Sequence[Chapter]) -> None:
    """Write each chapter as a Parquet file that Spark will read as one micro-batch.

    Within a file the newest commit comes first: who trusts arrival instead of ``seq`` ends
    with the wrong table.
    """
    folder.mkdir(parents=True)
    for index, chapter in enumerate(chapters):
        newest_first = pa.array(range(chapter.row_upper - 1, chapter.row_lower - 1, -1))
        file = folder / f"{index:06d}.parquet"
        pq.write_table(changes.take(newest_first), file)
        # Spark takes the oldest file first, and files written in one millisecond in any order.
        os.utime(file, (_FIRST_FILE_TIME + index, _FIRST_FILE_TIME + index))


def path_text(path: bytes) -> str:
    r"""Return a path as text, one to one: no two paths have the same.

    Git's paths are bytes. What is not UTF-8 becomes ``%XX``, and so does ``%`` itself.

    >>> path_text(b"caf\xc3\xa9/100%"), path_text(b"caf\xe9")
    ('café/100%25', 'caf%E9')
    """
    text = path.decode("utf-8", "surrogateescape")
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", text)


def _parse_changes(fields: Iterable[bytes], commits: Sequence[str]) -> Iterator[pa.Table]:
    """Turn the fields of ``git diff-tree`` into tables as `CHANGES`, without sizes."""
    rows: list[tuple[str, str | None, str | None, None, int, bool]] = []
    seq = 0
    stream = iter(fields)
    for field in stream:
        if not field.startswith(b":"):
            assert field.decode() == commits[seq], "git diff-tree skipped a commit"
            seq += 1
            continue
        _, mode, _, blob, status = field.split(b" ")
        path = path_text(next(stream))
        if status == b"D":
            rows.append((path, None, None, None, seq, True))
        else:
            rows.append((path, blob.decode(), mode.decode(), None, seq, False))
        if len(rows) >= _ROWS_PER_BATCH:
            yield _table(rows, CHANGES)
            rows = []
    assert seq == len(commits), "git diff-tree skipped a commit"
    yield _table(rows, CHANGES)


def _parse_tree(fields: Iterable[bytes]) -> pa.Table:
    """Turn the fields of ``git ls-tree`` into a table as `TREE`, without sizes."""
    rows = []
    for field in fields:
        entry, path = field.split(b"\t", 1)
        mode, _, blob = entry.split(b" ")
        rows.append((path_text(path), blob.decode(), mode.decode(), None))
    return _table(rows, TREE)


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _git(
    path: Path,
    *arguments: str,
    stdin: bytes = b"",
    problem: str = "cannot be read by git",
    hint: str = "run `git fsck` there.",
) -> bytes:
    """Return what one git command prints; the problem and the hint are for its failure."""
    command = ["git", "-C", os.fspath(path), *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=_environment())
    except FileNotFoundError as error:
        raise DemoError("git is not on PATH.", hint="install git 2.20 or newer.") from error
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").removeprefix("fatal: ").split())
        reason = f"{problem}: {words}" if words else f"{problem}."
        raise DemoError(f"'{path}' {reason}", hint=hint)
    return done.stdout


def _stream(path: Path, stdin: bytes, *arguments: str) -> Iterator[bytes]:
    """Yield the NUL-terminated fields that one git command prints, while it runs."""
    with tempfile.TemporaryFile() as questions:
        # A file and not a pipe: nobody has to write while we read.
        questions.write(stdin)
        questions.seek(0)
        command = ["git", "-C", os.fspath(path), *arguments]
        with subprocess.Popen(
            command, stdin=questions, stdout=subprocess.PIPE, env=_environment()
        ) as process:
            assert process.stdout is not None
            yield from _fields(process.stdout)
    if process.returncode:
        raise DemoError(
            f"'{path}' is damaged: `git {arguments[0]}` ended with status {process.returncode}.",
            hint="run `git fsck` there.",
        )


def _fields(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_READ_BYTES):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LOCATING}
    return {**kept, **_LITERALLY}
