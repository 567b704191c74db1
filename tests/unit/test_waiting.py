"""Waiting until the tables below a root have reached a position of their database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import OptionError, VersionNotFoundError
from spark_upsert.replication.state import FollowerState
from spark_upsert.replication.waiting import wait_for_lsn
from spark_upsert.routed.group import SourcePosition
from spark_upsert.store import LocalStore
from tests.support.clocked import Now
from tests.support.group_worlds import RoutedBatch


@pytest.fixture
def world(tmp_path: Path) -> RoutedBatch:
    """A batch at 0/100."""
    made = RoutedBatch(tmp_path / "lake", source=SourcePosition(lsn="0/100"))
    made.batch(a={1: 1})
    return made


def wait(world: RoutedBatch, lsn: str, *events: Callable[[], object], **options: Any) -> int:
    """Wait with a clock by hand; each pause lets the next event happen."""
    now, waiting = Now(), iter(events)

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 0.5
        now.advance(seconds)
        next(waiting, lambda: None)()

    return wait_for_lsn(world.root, lsn, clock=now, sleep=sleep, **options)


def follow(world: RoutedBatch, lsn: str, *, is_whole: bool = True) -> None:
    world.source = SourcePosition(lsn=lsn, is_whole=is_whole)
    world.batch(a={1: world.number})


def test_a_wait_ends_with_the_first_whole_batch_at_the_position(world: RoutedBatch) -> None:
    assert wait(world, "0/100") == wait(world, "0/FF") == 0
    batches = [
        partial(follow, world, "0/200"),
        partial(follow, world, "0/300", is_whole=False),
        partial(follow, world, "0/301"),
        partial(follow, world, "0/400"),
    ]
    assert wait(world, "0/201", *batches) == 3


def test_what_was_confirmed_without_a_batch_counts(world: RoutedBatch) -> None:
    state = FollowerState(system="1", database="d", slot="s", publication="p", start=1)
    store = LocalStore(str(world.root))
    assert wait(world, "0/200", lambda: replace(state, released=0x200).put(store)) == 0
    follow(world, "0/180", is_whole=False)
    with pytest.raises(VersionNotFoundError, match="newest batch is 1 at 0/180, and tables are"):
        wait(world, "0/200", timeout_s=0)


def test_the_start_of_a_page_is_where_the_record_before_it_ends(world: RoutedBatch) -> None:
    follow(world, "0/4000")
    assert wait(world, "0/4018", timeout_s=0) == 1


def test_a_wait_ends_after_its_time(world: RoutedBatch, tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match=r"not reached 0/101 after 3 seconds: .* 0 at"):
        wait(world, "0/101", *[lambda: None] * 7, timeout_s=3)
    empty = RoutedBatch(tmp_path / "other")
    with pytest.raises(VersionNotFoundError, match="there is no batch yet"):
        wait(empty, "0/101")


def test_what_cannot_be_waited_for_is_an_error_at_once(world: RoutedBatch) -> None:
    with pytest.raises(OptionError, match="position of PostgreSQL's log"):
        wait(world, "101")
    world.source = None
    world.batch(a={1: 1})
    with pytest.raises(OptionError, match="do not follow a database"):
        wait(world, "0/101")


def test_the_command_ends_with_the_number_of_the_batch_or_an_error(world: RoutedBatch) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(upsertflow, ["wait", str(world.root), *arguments])
        return result.exit_code, result.output

    assert run("--lsn", "0/100", "--json") == (0, '{"batch": 0}\n')
    code, output = run("--lsn", "0/101", "--timeout", "1ms")
    assert (code, "have not reached 0/101" in output) == (1, True)
