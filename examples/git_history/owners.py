"""Who owns how much of a repository, kept by one query while its history is replayed.

    python examples/git_history/owners.py --repo /path/to/any/repository

Files are what orders are to a shop, folders its customers, and the owner of a folder is where a
customer lives: files joined with folders, bytes per owner. A folder belongs to whom changed
something in it last: what stands before the colon of the commit's message, or its author. So both
tables change all the time, and when a folder changes hands, all of its files move along.

1. The history becomes changes of two tables, `files` and `folders`, chapter by chapter.
2. One query keeps files, count and bytes per owner in a third. It is stopped on its way, and loses
   its checkpoint.
3. The proof: at each version the kept table is what plain Python makes of the two tables at the
   position that it has recorded; its changes, read as a stream of rows, add up to it; Spark's own
   join and sum of the tables say the same in the end, and so does ``git ls-tree HEAD``.

Ends with status 0 if all is proven, 1 if a check failed, 2 if there was nothing to replay.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    # Run as a script: import from the checkout, not from this folder.
    sys.path[0] = str(ROOT)

import pyarrow as pa  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from examples.git_history import replay  # noqa: E402
from examples.git_history.errors import DemoError  # noqa: E402
from examples.git_history.history import Chapter, Repository, cut_chapters  # noqa: E402
from examples.git_history.proof import Check  # noqa: E402
from pyspark_upsertflow.views import SparkView  # noqa: E402
from spark_upsert.table.log.manifest import KeptPosition  # noqa: E402
from spark_upsert.table.table import Table  # noqa: E402
from spark_upsert.table.write.outcomes import recorded_position  # noqa: E402
from upsertflow import agg, view  # noqa: E402

CHAPTERS = 24
"""Epochs of either table; the query loses its checkpoint behind a third of them."""

EPOCHS_PER_STEP = 4
"""Of both tables together."""

FILES = pa.schema({"path": pa.string(), "folder": pa.string(), "bytes": pa.int64()})
FOLDERS = pa.schema({"folder": pa.string(), "owner": pa.string()})
_AREA = re.compile(r"([\w./ -]{1,30}): ")
_SHOWN = 8

Groups = dict[Any, tuple[int, int | None, int | None]]
"""By owner: how many files, their bytes, and those of the largest."""


class Lake:
    """Both tables, and the third that keeps the view of them."""

    def __init__(self, root: Path) -> None:
        self.files_path, self.folders_path = str(root / "files"), str(root / "folders")
        self.kept_path = str(root / "owners")
        self.files = Table.create(
            self.files_path, FILES, keys=["path"], properties={"indexBy": "folder"}
        )
        self.folders = Table.create(self.folders_path, FOLDERS, keys=["folder"])

    def view(self) -> SparkView:
        """Return what is kept."""
        files, folders = view(self.files_path), view(self.folders_path)
        joined = files.join(folders, on="folder", how="left")
        return joined.group_by("owner").agg(
            files=agg.count(), bytes=agg.sum("bytes"), largest=agg.max("bytes")
        )

    def replay(self, changes: pa.Table, chapter: Chapter, owners: Sequence[str]) -> None:
        """Apply the commits of a chapter: an epoch of each table."""
        rows = changes.slice(chapter.row_lower, chapter.row_count).to_pylist()
        last = {row["path"]: row for row in rows}
        named = [
            {**row, "folder": folder_of(path), "gone": row["deleted"]} for path, row in last.items()
        ]
        schema = FILES.append(pa.field("gone", pa.bool_()))
        self.files.upsert(pa.Table.from_pylist(named, schema=schema), deletes="gone")
        held = {folder_of(row["path"]): owners[row["seq"] - 1] for row in rows}
        touched = [{"folder": folder, "owner": owner} for folder, owner in held.items()]
        self.folders.upsert(pa.Table.from_pylist(touched, schema=FOLDERS))

    def expected(self, at: dict[str, int]) -> Groups:
        """Return what plain Python makes of both tables at a position."""
        owner = dict(_pairs(self.folders.snapshot(at[self.folders_path]), "folder", "owner"))
        found: dict[Any, list[int | None]] = {}
        for folder, size in _pairs(self.files.snapshot(at[self.files_path]), "folder", "bytes"):
            found.setdefault(owner.get(folder), []).append(size)
        return {name: _summed(sizes) for name, sizes in found.items()}


def folder_of(path: str) -> str:
    """Return the first folder of a path; files beside it are at the root."""
    return path.partition("/")[0] if "/" in path else "."


def owner_of(author: str, subject: str) -> str:
    """Return who a commit is of."""
    area = _AREA.match(subject)
    return area[1] if area else author


def _pairs(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def _summed(sizes: Sequence[int | None]) -> tuple[int, int | None, int | None]:
    known = [size for size in sizes if size is not None]
    return len(sizes), sum(known) if known else None, max(known, default=None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="owners.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repo", type=Path, default=ROOT, help="any repository; default: this one")
    parser.add_argument("--master", default="local[*]", help="where Spark runs; default: local[*]")
    options = parser.parse_args(arguments)
    try:
        checks = run(options.repo, options.master)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for check in checks:
        verdict = "ok    " if check.is_true else "FAILED"
        print(f"  {verdict}  {check.claim}: {check.problem or check.evidence}")
    failed = sum(not check.is_true for check in checks)
    print(f"\n{failed} of {len(checks)} checks FAILED" if failed else "\nall checks ok")
    return 1 if failed else 0


def run(path: Path, master: str) -> list[Check]:
    """Replay a history and keep the view of it; return what is proven."""
    repository = Repository.open(path)
    with work_folder() as root:
        spark = replay.start_session(master, root, ROOT / "conf")
        try:
            return replay_and_prove(spark, repository, root)
        finally:
            spark.stop()


def replay_and_prove(
    spark: SparkSession, repository: Repository, root: Path, chapter_count: int = CHAPTERS
) -> list[Check]:
    """Make the tables below a folder, keep the view of them, and return what is proven."""
    changes, commits = repository.changes(), len(repository.commits)
    if not changes.num_rows:
        raise DemoError(
            f"no commit of '{repository.path}' has a file.", hint="give another with --repo."
        )
    owners = [owner_of(*told) for told in repository.told()]
    chapters = cut_chapters(changes, commits, -(-commits // chapter_count))
    lake = Lake(root)
    began = time.monotonic()
    keep_live(spark, lake, changes, chapters, owners, root)
    report(spark, lake, commits, changes.num_rows, time.monotonic() - began)
    return list(prove(spark, lake, repository))


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder, and take it away in the end."""
    root = Path(tempfile.mkdtemp(prefix="upsertflow-owners-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def keep_live(
    spark: SparkSession,
    lake: Lake,
    changes: pa.Table,
    chapters: Sequence[Chapter],
    owners: Sequence[str],
    root: Path,
) -> None:
    """Replay the history while a query keeps the view; take its checkpoint away on its way."""
    third = -(-len(chapters) // 3)
    for number, begin in enumerate(range(0, len(chapters), third)):
        # The second run goes on; the third has a new checkpoint and begins where the table is.
        checkpoint = str(root / f"checkpoint{number // 2}")
        query = lake.view().keep(
            spark, lake.kept_path, checkpoint, maxEpochsPerTrigger=str(EPOCHS_PER_STEP)
        )
        try:
            for chapter in chapters[begin : begin + third]:
                lake.replay(changes, chapter, owners)
            query.processAllAvailable()
        finally:
            query.stop()


def report(spark: SparkSession, lake: Lake, commits: int, changes: int, seconds: float) -> None:
    """Print what was done, and who owns most."""
    log = Table.open(lake.kept_path).log
    epochs = sum(commit.is_epoch for commit in log.commits(0, log.head().upper))
    print(
        f"{commits:,} commits, {changes:,} changes of paths, kept in {epochs:,} steps by three runs "
        f"of one query, in {seconds:.0f} s\n"
    )
    rows = spark.read.format("upsertflow").load(lake.kept_path).collect()
    for row in sorted(rows, key=lambda row: -(row.bytes or 0))[:_SHOWN]:
        print(f"  {row.owner!s:<30.30}{row.files:>8,} files{row.bytes or 0:>14,} bytes")
    print()


def prove(spark: SparkSession, lake: Lake, repository: Repository) -> Iterator[Check]:
    """Yield the checks."""
    kept = Table.open(lake.kept_path)
    versions = [c.version for c in kept.log.commits(0, kept.log.head().upper) if c.added]
    wrong = [v for v in versions if shown(spark, lake, v) != recomputed(lake, kept, v)]
    yield verdict(
        "each version is the view of the tables at the position that it names",
        f"{len(versions)} versions",
        wrong,
    )
    newest = {
        lake.files_path: lake.files.log.head().version,
        lake.folders_path: lake.folders.log.head().version,
    }
    last = shown(spark, lake, versions[-1])
    yield verdict(
        "the last is the view of all", f"{len(last)} owners", last != lake.expected(newest)
    )
    wrong = [v for v, groups in folded(spark, lake, versions) if groups != shown(spark, lake, v)]
    yield verdict("its changes add up to each version", f"{len(versions)} versions", wrong)
    own = by_spark(spark, lake)
    yield verdict("Spark's own join and sum say the same", f"{len(own)} owners", last != own)
    tree = repository.tree(repository.commits[-1])
    sizes = [size for size in tree.column("bytes").to_pylist() if size is not None]
    total = sum(each[0] for each in last.values()), sum(each[1] or 0 for each in last.values())
    yield verdict(
        "git counts as many files and bytes",
        f"{total[0]:,} files, {total[1]:,} bytes",
        total != (tree.num_rows, sum(sizes)),
    )


def verdict(claim: str, evidence: str, wrong: object) -> Check:
    """Return how a claim stands: it is true if nothing is wrong."""
    return Check(claim=claim, evidence=evidence, problem=f"wrong: {wrong}" if wrong else None)


def shown(spark: SparkSession, lake: Lake, version: int) -> Groups:
    """Return what a load of the kept table shows at a version."""
    rows = spark.read.format("upsertflow").option("versionAsOf", version).load(lake.kept_path)
    return {row.owner: (row.files, row.bytes, row.largest) for row in rows.collect()}


def recomputed(lake: Lake, kept: Table, version: int) -> Groups:
    """Return what plain Python makes of the tables where a version of the kept table is."""
    position = KeptPosition.read(recorded_position(kept.at(version)))
    assert position.snapshot is None, "no limit cuts the first snapshot"
    return lake.expected({path: place.version for path, place in position.at.items()})


def folded(
    spark: SparkSession, lake: Lake, versions: Sequence[int]
) -> Iterator[tuple[int, Groups]]:
    """Yield what the changes up to each version add up to."""
    feed = spark.read.format("upsertflow").option("readChangeFeed", "true").load(lake.kept_path)
    rows = sorted(feed.collect(), key=lambda row: (row["_commit_version"], row["_diff"]))
    groups: Groups = {}
    place = 0
    for version in versions:
        while place < len(rows) and rows[place]["_commit_version"] <= version:
            row = rows[place]
            value = row.files, row.bytes, row.largest
            if row["_diff"] > 0:
                groups[row.owner] = value
            elif groups.get(row.owner) == value:
                del groups[row.owner]
            place += 1
        yield version, dict(groups)


def by_spark(spark: SparkSession, lake: Lake) -> Groups:
    """Return what Spark makes of both tables."""
    for name, path in (("files", lake.files_path), ("folders", lake.folders_path)):
        spark.read.format("upsertflow").load(path).createOrReplaceTempView(name)
    rows = spark.sql(
        "SELECT owner, count(*) AS files, sum(bytes) AS bytes, max(bytes) AS largest "
        "FROM files LEFT JOIN folders USING (folder) GROUP BY owner"
    )
    return {row.owner: (row.files, row.bytes, row.largest) for row in rows.collect()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
