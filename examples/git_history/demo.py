"""Replay a git history through Spark as upserts and deletes, and prove the result against git.

    python examples/git_history/demo.py --repo /path/to/any/repository

1. `history` turns each commit into rows (path, blob, mode, bytes, seq, deleted), in files.
2. A streaming query upserts them into a table, one file per micro-batch, one epoch each.
3. A second one reads the table's changelog and appends it to Parquet files.
4. `proof` compares: the table with ``git ls-tree HEAD``, older versions with older commits,
   the folded changelog with the table, and the counters with the rows.

Ends with status 0 if all is proven, 1 if a check failed, 2 if there was nothing to replay.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    # Run as a script: import from the checkout, not from this folder.
    sys.path[0] = str(ROOT)

import pyarrow as pa  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from examples.git_history import replay  # noqa: E402
from examples.git_history.errors import DemoError  # noqa: E402
from examples.git_history.history import (  # noqa: E402
    Chapter,
    Repository,
    cut_chapters,
    write_chapters,
)
from examples.git_history.progress import Duration, Line, follow  # noqa: E402
from examples.git_history.proof import (  # noqa: E402
    Check,
    check_accounting,
    check_epochs,
    check_fold,
    check_rows,
)
from spark_upsert.table.log.manifest import Commit  # noqa: E402
from spark_upsert.table.state.reduce import Counters  # noqa: E402
from spark_upsert.table.table import Table  # noqa: E402

EPOCHS_PER_READ = 10
"""The changelog is read in tenths at least, so that its stream is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the demo keeps what it makes."""

    work: Path
    table: Path

    @property
    def chapters(self) -> Path:
        """The history as files."""
        return self.work / "history"

    @property
    def changes(self) -> Path:
        """The changelog as files."""
        return self.work / "changes"

    def checkpoint(self, query: str) -> Path:
        """Where Spark keeps the progress of a query."""
        return self.work / "checkpoints" / query


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the two queries did."""

    epochs: tuple[Commit, ...]
    write: Duration
    read: Duration


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = parse(arguments)
    try:
        checks = replay_and_prove(options)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(check.is_true for check in checks) else 1


def replay_and_prove(options: argparse.Namespace) -> list[Check]:
    """Read the history, start Spark, and let it work."""
    if find_spec("pyspark_upsertflow") is None:
        raise DemoError(
            f"upsertflow is not installed for {sys.executable}.",
            hint="run `make demo`, or `pip install -e .` with this interpreter.",
        )
    repository = Repository.open(options.repo)
    changes = repository.changes()
    if not changes.num_rows:
        raise DemoError(
            f"no commit of '{options.repo}' has a file.",
            hint="commit something, or give another repository with --repo.",
        )
    chapters = cut_chapters(changes, len(repository.commits), options.commits_per_epoch)
    print(
        f"{options.repo} at {repository.commits[-1][:10]}: {len(repository.commits):,} commits, "
        f"{changes.num_rows:,} changes of paths, {len(chapters):,} epochs",
        flush=True,  # Before what others write to the standard error.
    )
    if repository.is_shallow:
        print(
            "note: a shallow clone begins with its oldest commit; `git fetch --unshallow` gets all"
        )
    with places(options.table, keep=options.keep) as where:
        spark = replay.start_session(options.master, where.work, ROOT / "conf")
        try:
            return run(spark, repository, changes, chapters, where)
        finally:
            spark.stop()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="demo.py", description="Replay a git history as a keyed stream, and prove the result."
    )
    parser.add_argument(
        "--repo", type=Path, default=ROOT, help="a checkout or a bare repository; default: this one"
    )
    parser.add_argument(
        "--table", type=Path, help="where to make the table, and leave it; default: temporary"
    )
    parser.add_argument(
        "--commits-per-epoch",
        type=positive,
        metavar="N",
        help="default: as few as make at most 100 epochs",
    )
    parser.add_argument("--master", default="local[*]", help="where Spark runs; default: local[*]")
    parser.add_argument("--keep", action="store_true", help="leave all files that were made")
    options = parser.parse_args(arguments)
    if options.table and options.table.exists() and any(options.table.iterdir()):
        parser.error(f"--table: '{options.table}' is not empty; the demo makes a new table")
    return options


def positive(text: str) -> int:
    """Return a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


@contextmanager
def places(table: Path | None, *, keep: bool) -> Iterator[Places]:
    """Make the folders, and take them away in the end unless they were asked for."""
    work = Path(tempfile.mkdtemp(prefix="upsertflow-demo-"))
    where = Places(work=work, table=table.resolve() if table else work / "table")
    try:
        yield where
    finally:
        if keep:
            print(f"kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
        if table:
            print(f"the table is in {where.table}")


def run(
    spark: SparkSession,
    repository: Repository,
    changes: pa.Table,
    chapters: Sequence[Chapter],
    where: Places,
) -> list[Check]:
    """Replay, prove and report."""
    line = Line(sys.stderr)
    try:
        write_chapters(where.chapters, changes, chapters)
        done = move(spark, chapters, where, line)
        checks = []
        for check in prove(spark, repository, changes, chapters, where, done.epochs):
            checks.append(check)
            line.show(f"proving  {check.claim}")
    finally:
        line.clear()
    report(done, checks, where.table)
    return checks


def move(spark: SparkSession, chapters: Sequence[Chapter], where: Places, line: Line) -> Replay:
    """Run the query into the table, then the query out of it."""
    write = replay.write_history(spark, where.chapters, where.table, where.checkpoint("write"))
    writing = follow(write, line, "writing", [chapter.row_count for chapter in chapters])
    log = Table.open(str(where.table)).log
    epochs = tuple(commit for commit in log.commits(0, log.head().upper) if commit.is_epoch)
    step = max(1, len(epochs) // EPOCHS_PER_READ)
    read = replay.read_changes(
        spark, where.table, where.changes, where.checkpoint("read"), epochs_per_batch=step
    )
    output = [Counters.from_json(epoch.counters).output_count for epoch in epochs]
    reading = follow(read, line, "reading", output, step=step)
    return Replay(epochs=epochs, write=writing, read=reading)


def prove(
    spark: SparkSession,
    repository: Repository,
    changes: pa.Table,
    chapters: Sequence[Chapter],
    where: Places,
    epochs: Sequence[Commit],
) -> Iterator[Check]:
    """Yield the checks, one by one."""
    ordered = check_epochs(changes, chapters, epochs)
    yield ordered
    last = epochs[-1].version
    live = replay.snapshot(spark, where.table, last)
    yield check_accounting(
        epochs,
        row_count=changes.num_rows,
        change_count=replay.count_changes(spark, where.changes),
        live_count=live.num_rows,
    )
    if not ordered.is_true:
        return  # Which commit a version stands for is not known.
    for index in (*older(len(chapters)), len(chapters) - 1):
        version = epochs[index].version
        commit = repository.commits[chapters[index].commit_upper - 1]
        name = f"version {version:,}"
        then = live if version == last else replay.snapshot(spark, where.table, version)
        folded = replay.fold(spark, where.changes, version)
        yield check_rows(
            f"{name} is the tree of commit {commit[:10]}", repository.tree(commit), then
        )
        yield check_fold(f"{name} is the sum of all changes until then", then, folded)


def older(count: int) -> list[int]:
    """Return up to three positions before the last, evenly spread."""
    return sorted({(count - 1) * quarter // 4 for quarter in (1, 2, 3)} - {count - 1})


def report(done: Replay, checks: Sequence[Check], table: Path) -> None:
    """Print what was done, how fast, and what was proven."""
    total = sum((Counters.from_json(epoch.counters) for epoch in done.epochs), Counters())
    files = [file for file in table.rglob("*") if file.is_file()]
    stored = sum(file.stat().st_size for file in files)
    print()
    for what, rows, took in (
        ("written", total.rows, done.write),
        ("read", total.output_count, done.read),
    ):
        print(
            f"  {what:8}{rows:>12,} rows{len(done.epochs):>8,} epochs{took.seconds:>9.1f} s"
            f"{rows / took.seconds:>11,.0f} rows/s{took.batch_seconds_p50:>8.2f} s a batch (median)"
        )
    print(
        f"  {'table':8}{total.live_delta:>12,} rows{len(files):>8,} files {stored / 1e6:>9.2f} MB"
    )
    print()
    for check in checks:
        if check.is_true:
            print(f"  ok      {check.claim}: {check.evidence}")
        else:
            print(f"  FAILED  {check.claim}: {check.problem}")
    failed = sum(not check.is_true for check in checks)
    print(
        f"\n{failed} of {len(checks)} checks FAILED" if failed else f"\nall {len(checks)} checks ok"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
