"""The main job's view of git: what it reads is what git has, for histories of every shape."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.git_history import demo
from examples.git_history.errors import DemoError
from examples.git_history.history import (
    CHANGES,
    EPOCHS_MAX,
    TREE,
    Repository,
    cut_chapters,
    path_text,
    write_chapters,
)
from tests.support.repositories import (
    FILE,
    LINK,
    ODD_PATHS,
    PROGRAM,
    SUBMODULE,
    Builder,
    Put,
    git,
    long_history,
    odd_history,
)

Tree = dict[str, tuple[Any, ...]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The temporary folder may lie in a repository, of whoever runs the tests.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return tmp_path / "repository"


def changed(repository: Repository) -> list[dict[str, Any]]:
    """What the commits did, with the blobs left out."""
    return repository.changes().drop_columns("blob").to_pylist()


def change(path: str, seq: int, mode: str | None, size: int | None) -> dict[str, Any]:
    return {"path": path, "mode": mode, "bytes": size, "seq": seq, "deleted": mode is None}


def tree(repository: Repository, index: int) -> Tree:
    rows = repository.tree(repository.commits[index]).to_pylist()
    found = {row["path"]: (row["blob"], row["mode"], row["bytes"]) for row in rows}
    assert len(found) == len(rows), "a path stands twice"
    return found


def assert_changes_add_up(repository: Repository) -> None:
    """Check commit by commit that the changes until it are its tree, by the slow obvious way."""
    changes = repository.changes()
    assert changes.schema == CHANGES
    rows = changes.to_pylist()
    folded: Tree = {}
    for index in range(len(repository.commits)):
        for row in (row for row in rows if row["seq"] == index + 1):
            if row["deleted"]:
                del folded[row["path"]]
            else:
                folded[row["path"]] = (row["blob"], row["mode"], row["bytes"])
        assert folded == tree(repository, index), f"after commit {index + 1}"


class TestChanges:
    def test_they_add_up_to_every_tree_of_an_odd_history(self, folder: Path) -> None:
        assert_changes_add_up(Repository.open(odd_history().write(folder)))

    def test_they_add_up_in_a_bare_repository(self, folder: Path) -> None:
        builder = long_history(20)
        assert_changes_add_up(Repository.open(builder.write(folder, bare=True)))

    def test_a_subfolder_stands_for_the_whole_repository(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"inside/a": Put(b"1"), b"b": Put(b"22")})
        inside = builder.write(folder) / "inside"
        inside.mkdir()
        assert set(tree(Repository.open(inside), -1)) == {"inside/a", "b"}
        assert_changes_add_up(Repository.open(inside))

    def test_every_path_that_git_allows_is_read(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({path: Put(b"1") for path in ODD_PATHS})
        repository = Repository.open(builder.write(folder))
        assert set(tree(repository, -1)) == {path_text(path) for path in ODD_PATHS}
        assert {row["path"] for row in changed(repository)} == set(map(path_text, ODD_PATHS))

    def test_a_rename_is_a_delete_and_an_upsert(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"old": Put(b"same")})
        builder.commit({b"old": None, b"new": Put(b"same")})
        assert changed(Repository.open(builder.write(folder)))[1:] == [
            change("new", 2, FILE, 4),
            change("old", 2, None, None),
        ]

    def test_a_rename_stays_so_whatever_the_user_has_set(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"old": Put(b"same")})
        builder.commit({b"old": None, b"new": Put(b"same")})
        builder.write(folder)
        for name, value in (
            ("diff.renames", "copies"),
            ("diff.relative", "true"),
            ("log.showSignature", "true"),
            ("core.quotePath", "true"),
            ("core.abbrev", "4"),
        ):
            git(folder, "config", name, value)
        assert len(changed(Repository.open(folder))) == 3
        assert_changes_add_up(Repository.open(folder))

    def test_a_change_of_mode_or_type_is_one_row(self, folder: Path) -> None:
        builder = Builder()
        for entry in (Put(b"12", FILE), Put(b"12", PROGRAM), Put(b"12", LINK)):
            builder.commit({b"a": entry})
        assert changed(Repository.open(builder.write(folder))) == [
            change("a", 1, FILE, 2),
            change("a", 2, PROGRAM, 2),
            change("a", 3, LINK, 2),
        ]

    def test_a_file_may_make_room_for_a_folder_and_come_back(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"a": Put(b"1")})
        builder.commit({b"a": None, b"a/b": Put(b"22")})
        builder.commit({b"a/b": None, b"a": Put(b"333")})
        repository = Repository.open(builder.write(folder))
        assert [(r["path"], r["deleted"]) for r in changed(repository)[1:]] == [
            ("a", True),
            ("a/b", False),
            ("a", False),
            ("a/b", True),
        ]

    def test_a_submodule_has_a_commit_and_no_size(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"m": Put(b"1" * 40, SUBMODULE)})
        builder.commit({b"m": Put(b"2" * 40, SUBMODULE)})
        repository = Repository.open(builder.write(folder))
        assert changed(repository) == [
            change("m", 1, SUBMODULE, None),
            change("m", 2, SUBMODULE, None),
        ]
        assert repository.changes()["blob"].to_pylist() == ["1" * 40, "2" * 40]

    def test_a_merge_is_what_it_did_to_its_first_parent(self, folder: Path) -> None:
        builder = Builder()
        root = builder.commit({b"a": Put(b"1")})
        side = builder.commit({b"side": Put(b"22")}, parents=[root])
        side = builder.commit({b"side": Put(b"333")}, parents=[side])
        own = builder.commit({b"a": Put(b"4444")}, parents=[root])
        builder.commit({b"side": Put(b"333")}, parents=[own, side])
        repository = Repository.open(builder.write(folder))
        assert len(repository.commits) == 3
        assert changed(repository)[1:] == [change("a", 2, FILE, 4), change("side", 3, FILE, 3)]

    def test_an_empty_commit_has_a_position_and_no_row(self, folder: Path) -> None:
        builder = Builder()
        for entries in ({}, {b"a": Put(b"1")}, {}, {b"a": None}, {}):
            builder.commit(entries)
        repository = Repository.open(builder.write(folder))
        assert len(repository.commits) == 5
        assert [row["seq"] for row in changed(repository)] == [2, 4]

    def test_one_commit_is_a_history(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"a": Put(b"")})
        assert changed(Repository.open(builder.write(folder))) == [change("a", 1, FILE, 0)]

    def test_a_shallow_clone_begins_with_a_whole_tree(self, folder: Path) -> None:
        source = odd_history().write(folder)
        clone = folder.parent / "clone"
        git(folder, "clone", "--quiet", "--depth=3", source.as_uri(), str(clone))
        repository = Repository.open(clone)
        assert repository.is_shallow
        assert len(repository.commits) == 3
        assert_changes_add_up(repository)

    def test_a_blob_that_a_partial_clone_lacks_has_no_size(self, folder: Path) -> None:
        builder = Builder()
        builder.commit({b"a": Put(b"1"), b"b": Put(b"22")})
        builder.write(folder)
        repository = Repository.open(folder)
        blob = tree(repository, -1)["b"][0]
        remove_object(folder, blob)
        assert changed(repository) == [change("a", 1, FILE, 1), change("b", 1, FILE, None)]

    def test_the_folder_that_was_asked_for_wins_over_the_environment(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        odd_history().write(folder)
        other = Builder()
        other.commit({b"other": Put(b"1")})
        other.write(folder.parent / "other")
        monkeypatch.setenv("GIT_DIR", str(folder.parent / "other" / ".git"))
        monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nowhere")
        assert len(Repository.open(folder).commits) == 15


def remove_object(folder: Path, name: str) -> None:
    (folder / ".git" / "objects" / name[:2] / name[2:]).unlink()


class TestRefusals:
    def test_no_folder(self, folder: Path) -> None:
        with pytest.raises(DemoError, match="is not a folder"):
            Repository.open(folder)

    def test_no_repository(self, folder: Path) -> None:
        folder.mkdir()
        with pytest.raises(DemoError, match=r"not a git repository(.|\n)*Hint: give --repo"):
            Repository.open(folder)

    def test_no_commit(self, folder: Path) -> None:
        with pytest.raises(DemoError, match=r"has no commit yet\.\n\nHint: commit something"):
            Repository.open(Builder().write(folder))

    def test_no_git(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        monkeypatch.setenv("PATH", "")
        with pytest.raises(DemoError, match="git is not on PATH"):
            Repository.open(folder)

    def test_a_damaged_history(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        builder = Builder()
        builder.commit({b"a": Put(b"1")})
        repository = Repository.open(builder.write(folder))
        top = git(folder, "rev-parse", "HEAD^{tree}").decode().strip()
        remove_object(folder, top)
        with pytest.raises(DemoError, match="damaged"):
            repository.changes()
        assert top in capfd.readouterr().err

    @pytest.mark.parametrize("has_commit", [False, True])
    def test_the_command_says_so_in_a_sentence_and_ends_with_2(
        self, folder: Path, capsys: pytest.CaptureFixture[str], has_commit: bool
    ) -> None:
        builder = Builder()
        if has_commit:
            builder.commit({})
        assert demo.main(["--repo", str(builder.write(folder))]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("error: ")
        assert "\n\nHint: " in err

    def test_a_table_is_never_written_over(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder.mkdir()
        (folder / "mine").touch()
        with pytest.raises(SystemExit, match="2"):
            demo.main(["--table", str(folder)])
        assert "is not empty" in capsys.readouterr().err

    def test_no_commit_is_too_few_for_an_epoch(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            demo.main(["--commits-per-epoch", "0"])
        assert "--commits-per-epoch" in capsys.readouterr().err


class TestPathText:
    @pytest.mark.parametrize(
        ("path", "text"),
        [
            (b"a b\n\"'\\", "a b\n\"'\\"),
            ("caf\u00e9".encode(), "caf\u00e9"),
            (b"caf\xe9", "caf%E9"),
            (b"caf%E9", "caf%25E9"),
            (b"\xed\xa0\x80", "%ED%A0%80"),
            (b"\xc3", "%C3"),
        ],
    )
    def test_what_is_not_utf8_is_escaped(self, path: bytes, text: str) -> None:
        assert path_text(path) == text

    def test_no_two_paths_share_a_text(self) -> None:
        paths = {bytes([a, b]) for a in range(1, 256) for b in b"%25\xc3\xa9a"}
        assert len({path_text(path) for path in paths}) == len(paths)

    def test_arrow_takes_every_text(self) -> None:
        texts = [path_text(path) for path in ODD_PATHS]
        assert pa.array(texts, pa.string()).to_pylist() == texts


def history(*seqs: int) -> pa.Table:
    """Changes with these positions, each of a path of its own."""
    rows = [
        {"path": f"p{row}", "blob": "0", "mode": FILE, "bytes": row, "seq": seq, "deleted": False}
        for row, seq in enumerate(seqs)
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES)


class TestChapters:
    @pytest.mark.parametrize(
        ("seqs", "commits", "step", "expected"),
        [
            pytest.param((1,), 1, 1, [(0, 1, 0, 1)], id="one"),
            pytest.param((1, 1, 2, 3), 3, 1, [(0, 1, 0, 2), (1, 2, 2, 3), (2, 3, 3, 4)], id="each"),
            pytest.param((1, 2, 3), 3, 2, [(0, 2, 0, 2), (2, 3, 2, 3)], id="a rest"),
            pytest.param((1, 2, 3), 3, 9, [(0, 3, 0, 3)], id="all in one"),
            pytest.param((3,), 4, 1, [(0, 4, 0, 1)], id="empty ones before and after"),
            pytest.param((1, 4), 5, 1, [(0, 3, 0, 1), (3, 5, 1, 2)], id="empty ones between"),
            pytest.param((), 3, 1, [], id="nothing"),
        ],
    )
    def test_together_they_are_all_commits_and_each_has_rows(
        self,
        seqs: tuple[int, ...],
        commits: int,
        step: int,
        expected: list[tuple[int, int, int, int]],
    ) -> None:
        found = cut_chapters(history(*seqs), commits, step)
        assert [(c.commit_lower, c.commit_upper, c.row_lower, c.row_upper) for c in found] == (
            expected
        )

    @pytest.mark.parametrize("commits", [1, 99, 100, 101, 200, 12_345])
    def test_a_long_history_has_no_more_of_them_than_a_short_one(self, commits: int) -> None:
        found = cut_chapters(history(*range(1, commits + 1)), commits)
        assert len(found) <= EPOCHS_MAX
        assert len(found) >= min(commits, EPOCHS_MAX // 2)
        assert found[-1].commit_upper == found[-1].row_upper == commits

    def test_each_is_a_file_with_its_newest_commit_first(self, tmp_path: Path) -> None:
        changes = history(1, 2, 2, 3)
        write_chapters(tmp_path / "h", changes, cut_chapters(changes, 3, 2))
        files = sorted((tmp_path / "h").iterdir(), key=lambda file: file.stat().st_mtime)
        assert files == sorted(files)
        assert [pq.read_table(file)["seq"].to_pylist() for file in files] == [[2, 2, 1], [3]]
        assert pq.read_table(files[0]).schema.equals(CHANGES)

    def test_files_of_one_moment_are_told_apart_by_their_times(self, tmp_path: Path) -> None:
        changes = history(*range(1, 21))
        write_chapters(tmp_path / "h", changes, cut_chapters(changes, 20, 1))
        times = [os.stat(file).st_mtime for file in sorted((tmp_path / "h").iterdir())]
        assert all(earlier + 1 == later for earlier, later in pairwise(times))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, []), (2, [0]), (3, [0, 1]), (4, [0, 1, 2]), (5, [1, 2, 3]), (100, [24, 49, 74])],
)
def test_older_versions_are_spread_and_never_the_last(count: int, expected: list[int]) -> None:
    assert demo.older(count) == expected


def test_a_tree_has_the_columns_of_a_tree(folder: Path) -> None:
    repository = Repository.open(odd_history().write(folder))
    assert repository.tree(repository.commits[0]).schema == TREE
    assert repository.tree(repository.commits[-1]).schema == TREE
