"""The main job as a user runs it: a history goes through two streaming queries and is proven."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.git_history import demo, owners, replay
from examples.git_history.history import Chapter, Repository, cut_chapters, write_chapters
from examples.git_history.progress import Line
from examples.git_history.proof import Check
from integration.environ import ROOT, from_checkout
from spark_upsert.table.table import Table
from tests.support.repositories import Builder, Put, long_history

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS_MAX = 300
"""A demo that has not ended by then hangs. A bound for the failing case, not an expectation."""


def run_demo(
    environ: dict[str, str], repository: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "git_history" / "demo.py")),
            *("--repo", str(repository), "--master", "local[2]", *arguments),
        ],
        env={
            **from_checkout(environ),
            "TMPDIR": str(repository.parent),
        },
        # Spark leaves folders where it is started.
        cwd=repository.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def test_an_odd_history_of_hundreds_of_commits_is_proven(
    tmp_path: Path, spark_environ: dict[str, str]
) -> None:
    repository = long_history(285).write(tmp_path / "repository")
    table = tmp_path / "table"
    done = run_demo(spark_environ, repository, "--table", str(table), "--commits-per-epoch", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 commits" in done.stdout
    assert re.search(
        r"^  written +[\d,]+ rows +8 epochs +[\d.]+ s +[\d,]+ rows/s ", done.stdout, re.M
    )
    assert re.search(r"^  read +[\d,]+ rows +8 epochs +[\d.]+ s +[\d,]+ rows/s ", done.stdout, re.M)
    checks = re.findall(r"^  (ok|FAILED) +(.*?):", done.stdout, re.M)
    assert {verdict for verdict, _ in checks} == {"ok"}
    assert sum(" is the tree of commit " in claim for _, claim in checks) == 4
    assert sum(claim.endswith("is the sum of all changes until then") for _, claim in checks) == 4
    assert "all 10 checks ok" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "a log is no terminal"
    # The table stays; everything else is gone.
    assert Table.open(str(table)).snapshot().num_rows > 0
    assert not list(tmp_path.glob("upsertflow-demo-*"))


@dataclass(frozen=True)
class Replayed:
    """A history that went through both queries, ready to be proven or tampered with."""

    repository: Repository
    chapters: tuple[Chapter, ...]
    where: demo.Places

    def problems(self, spark: SparkSession) -> list[str]:
        """Return the claims that do not hold."""
        log = Table.open(str(self.where.table)).log
        epochs = [commit for commit in log.commits(0, log.head().upper) if commit.is_epoch]
        changes = self.repository.changes()
        checks = demo.prove(spark, self.repository, changes, self.chapters, self.where, epochs)
        return [check.claim for check in checks if not check.is_true]


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("replayed")
    builder = Builder()
    builder.commit({b"a": Put(b"1"), b"b": Put(b"22")})
    builder.commit({b"a": None, b"c": Put(b"333")})
    repository = Repository.open(builder.write(folder / "repository"))
    changes = repository.changes()
    chapters = cut_chapters(changes, 2)
    where = demo.Places(work=folder, table=folder / "table")
    write_chapters(where.chapters, changes, chapters)
    demo.move(spark, chapters, where, Line(io.StringIO()))
    return Replayed(repository, chapters, where)


def test_an_honest_replay_has_no_problem(spark: SparkSession, replayed: Replayed) -> None:
    assert replayed.problems(spark) == []


def test_another_tree_in_git_is_a_problem(spark: SparkSession, replayed: Replayed) -> None:
    class Tampered(Repository):
        def tree(self, commit: str) -> pa.Table:
            return super().tree(commit).slice(1)

    honest = replayed.repository
    tampered = Tampered(path=honest.path, commits=honest.commits, is_shallow=False)
    assert replace(replayed, repository=tampered).problems(spark) == [
        f"version {version} is the tree of commit {commit[:10]}"
        for version, commit in enumerate(honest.commits)
    ]


def test_a_row_from_elsewhere_is_a_problem(
    spark: SparkSession, replayed: Replayed, tmp_path: Path
) -> None:
    where = replace(replayed.where, table=tmp_path / "table")
    shutil.copytree(replayed.where.table, where.table)
    smuggled = {"path": "x", "blob": "0", "mode": "100644", "bytes": 1, "seq": 3}
    Table.open(str(where.table)).upsert(pa.Table.from_pylist([smuggled]))
    assert replace(replayed, where=where).problems(spark) == [
        "each epoch is its commits",
        "every row is accounted for",
    ]


def test_a_lost_file_of_the_changelog_is_a_problem(
    spark: SparkSession, replayed: Replayed, tmp_path: Path
) -> None:
    where = replace(replayed.where, work=tmp_path)
    # Without Spark's list of its files, which would miss the one that is lost.
    where.changes.mkdir()
    files = [f for f in replayed.where.changes.glob("*.parquet") if pq.read_table(f).num_rows]
    for file in files[1:]:
        shutil.copy(file, where.changes)
    problems = replace(replayed, where=where).problems(spark)
    assert "every row is accounted for" in problems
    assert any("is the sum of all changes" in claim for claim in problems)


@pytest.mark.parametrize(("problem", "status"), [(None, 0), ("one is missing", 1)])
def test_the_exit_status_tells_whether_all_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str | None, status: int
) -> None:
    builder = Builder()
    builder.commit({b"a": Put(b"1")})
    checks = [Check(claim="one"), Check(claim="other", problem=problem)]
    monkeypatch.setattr(replay, "start_session", lambda *_: Mock(spec=SparkSession))
    monkeypatch.setattr(demo, "run", lambda *_: checks)
    assert demo.main(["--repo", str(builder.write(tmp_path / "repository"))]) == status


def test_the_owners_of_an_odd_history_are_kept_and_proven(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository.open(long_history(20).write(tmp_path / "repository"))
    checks = owners.replay_and_prove(spark, repository, tmp_path / "lake", chapter_count=6)
    assert [check.claim for check in checks if not check.is_true] == []
    assert len(checks) == 5
    assert "by three runs of one query" in capsys.readouterr().out


def test_a_wrong_owner_is_found(tmp_path: Path) -> None:
    assert owners.owner_of("Ada", "views: keep them") == "views"
    assert owners.owner_of("Ada", "Keep: them") == "Keep"
    assert owners.owner_of("Ada", "keep them") == "Ada"
    assert owners.folder_of("a/b/c") == "a"
    assert owners.folder_of("c") == "."
    assert not owners.verdict("something", "", [3]).is_true
