"""The main job's view of git: what it reads is what git has, for histories of every shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.git_history import demo
from examples.git_history.errors import DemoError
from examples.git_history.history import CHANGES, TREE, Repository, cut_chapters
from tests.support.repositories import FILE, Builder, Put, git, long_history, odd_history

Tree = dict[str, tuple[Any, ...]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The temporary folder may lie in a repository, of whoever runs the tests.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return tmp_path / "repository"


def tree(repository: Repository, index: int) -> Tree:
    entries = repository.tree(repository.commits[index])
    assert entries.schema == TREE
    rows = entries.to_pylist()
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


def repository_of(folder: Path, *commits: dict[bytes, Put | None]) -> Repository:
    builder = Builder()
    for entries in commits:
        builder.commit(entries)
    return Repository.open(builder.write(folder))


def test_changes_add_up_to_every_tree_of_an_odd_history_and_of_a_shallow_clone(
    folder: Path,
) -> None:
    source = odd_history().write(folder)
    assert_changes_add_up(Repository.open(source))
    # Whatever the user has set.
    settings = {"diff.renames": "copies", "diff.relative": "true", "log.showSignature": "true"}
    for name, value in {**settings, "core.quotePath": "true", "core.abbrev": "4"}.items():
        git(folder, "config", name, value)
    assert_changes_add_up(Repository.open(source))
    assert_changes_add_up(
        Repository.open(long_history(20).write(folder.parent / "bare", bare=True))
    )
    clone = folder.parent / "clone"
    git(folder, "clone", "--quiet", "--depth=3", source.as_uri(), str(clone))
    shallow = Repository.open(clone)
    assert (shallow.is_shallow, len(shallow.commits)) == (True, 3)
    assert_changes_add_up(shallow)


def remove_object(folder: Path, name: str) -> None:
    (folder / ".git" / "objects" / name[:2] / name[2:]).unlink()


def test_a_folder_that_has_no_history_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DemoError, match="is not a folder"):
        Repository.open(folder)
    folder.mkdir()
    with pytest.raises(DemoError, match=r"not a git repository(.|\n)*Hint: give --repo"):
        Repository.open(folder)
    with pytest.raises(DemoError, match=r"has no commit yet\.\n\nHint: commit something"):
        Repository.open(Builder().write(folder))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DemoError, match="git is not on PATH"):
        Repository.open(folder)


def test_a_damaged_history_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    repository = repository_of(folder, {b"a": Put(b"1")})
    top = git(folder, "rev-parse", "HEAD^{tree}").decode().strip()
    remove_object(folder, top)
    with pytest.raises(DemoError, match="damaged"):
        repository.changes()
    assert top in capfd.readouterr().err


def test_the_command_says_an_error_in_a_sentence_and_ends_with_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for has_commit in (False, True):
        builder = Builder()
        if has_commit:
            builder.commit({})
        repository = builder.write(folder.with_name(str(has_commit)))
        assert demo.main(["--repo", str(repository)]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("error: ")
        assert "\n\nHint: " in err


def test_the_command_never_writes_over_a_table_and_refuses_empty_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    for option, value, error in (
        ("--table", str(tmp_path), "is not empty"),
        ("--commits-per-epoch", "0", "--commits-per-epoch"),
    ):
        with pytest.raises(SystemExit, match="2"):
            demo.main([option, value])
        assert error in capsys.readouterr().err


def history(*seqs: int) -> pa.Table:
    """Changes with these positions, each of a path of its own."""
    rows = [
        {"path": f"p{row}", "blob": "0", "mode": FILE, "bytes": row, "seq": seq, "deleted": False}
        for row, seq in enumerate(seqs)
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES)


@pytest.mark.parametrize(
    ("seqs", "commits", "step", "expected"),
    [
        pytest.param((1, 1, 2, 3), 3, 1, [(0, 1, 0, 2), (1, 2, 2, 3), (2, 3, 3, 4)], id="each"),
        pytest.param((1, 2, 3), 3, 2, [(0, 2, 0, 2), (2, 3, 2, 3)], id="a rest"),
        pytest.param((1, 2, 3), 3, 9, [(0, 3, 0, 3)], id="all in one"),
        pytest.param((3,), 4, 1, [(0, 4, 0, 1)], id="empty ones before and after"),
        pytest.param((1, 4), 5, 1, [(0, 3, 0, 1), (3, 5, 1, 2)], id="empty ones between"),
        pytest.param((), 3, 1, [], id="nothing"),
    ],
)
def test_chapters_are_all_commits_and_each_has_rows(
    seqs: tuple[int, ...], commits: int, step: int, expected: list[tuple[int, int, int, int]]
) -> None:
    chapters = cut_chapters(history(*seqs), commits, step)
    assert [(c.commit_lower, c.commit_upper, c.row_lower, c.row_upper) for c in chapters] == (
        expected
    )
