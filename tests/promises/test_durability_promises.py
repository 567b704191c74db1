"""P6 after a loss of power: what was reported, what a retry found, and the folders of a table.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from spark_upsert.store import local
from spark_upsert.store.local import LocalStore
from tests.support.disk import Disk, Loss
from tests.support.stores import Fault, KilledError, Moment, Steps
from tests.support.workload import ABSENT, OPERATIONS, observe


@pytest.mark.parametrize("loss", Loss, ids=lambda loss: f"taking {loss.value}")
def test_p6_what_was_reported_survives_a_power_loss(loss: Loss) -> None:
    for count in range(1, 4):
        with machine() as folder:
            disk = Disk(folder / "disk")
            store = LocalStore(disk.root / "lake" / "table")
            with disk.traced(Steps()):
                for operation in OPERATIONS[:count]:
                    operation.act(store)
            expected = observe(store)
            survivor = LocalStore(disk.lose_power(folder / "new", loss) / "lake" / "table")
            assert observe(survivor) == expected


def test_p6_what_a_retry_or_a_reader_finds_survives_a_power_loss() -> None:
    """The writer is killed between making a version visible and making it durable."""
    with machine() as folder:
        disk = Disk(folder / "disk")
        store = LocalStore(disk.root / "lake" / "table")
        with disk.traced(Steps()):
            OPERATIONS[0].act(store)
        probe = Steps()
        with disk.traced(probe):
            OPERATIONS[1].act(store)
    step = next(i for i, name in enumerate(probe.names) if name.startswith("link"))
    with machine() as folder:
        disk = Disk(folder / "disk")
        store = LocalStore(disk.root / "lake" / "table")
        with disk.traced(Steps()):
            OPERATIONS[0].act(store)
        with disk.traced(Steps(Fault(step, Moment.AFTER))), pytest.raises(KilledError):
            OPERATIONS[1].act(store)
        with disk.traced(Steps()):
            seen = observe(LocalStore(disk.root / "lake" / "table"))
        survivor = LocalStore(disk.lose_power(folder / "new", Loss.ALL) / "lake" / "table")
        assert observe(survivor) == seen


def test_p6_folders_of_a_killed_process_are_made_durable_by_the_next() -> None:
    with machine() as folder:
        probe = Disk(folder / "probe")
        steps = Steps()
        with probe.traced(steps):
            OPERATIONS[0].act(LocalStore(probe.root / "lake" / "table"))
        for step, name in enumerate(steps.names):
            if not name.startswith("mkdir"):
                continue
            disk = Disk(folder / f"disk{step}")
            store = LocalStore(disk.root / "lake" / "table")
            with disk.traced(Steps(Fault(step, Moment.AFTER))), pytest.raises(KilledError):
                OPERATIONS[0].act(store)
            with disk.traced(Steps()):
                OPERATIONS[0].act(LocalStore(disk.root / "lake" / "table"))
            lost = disk.lose_power(folder / f"new{step}", Loss.ALL)
            assert observe(LocalStore(lost / "lake" / "table")) != ABSENT


def test_p6_folders_that_another_process_made_again_are_made_durable() -> None:
    """This process has known the folders to be durable, but not these."""
    with machine() as folder, ExitStack() as kept:
        disk = Disk(folder / "disk")
        root = disk.root / "lake" / "table"
        with disk.traced(Steps()):
            OPERATIONS[0].act(LocalStore(root))
        for each in (root.parent, root, root / "_log"):
            # While they are open, their numbers are not given to others.
            kept.callback(os.close, os.open(each, os.O_RDONLY))
        shutil.rmtree(root.parent)
        killed = Steps(Fault(0, Moment.AFTER))
        with (
            patch.object(local, "_FOLDERS", local._Folders()),
            disk.traced(killed),
            pytest.raises(KilledError),
        ):
            LocalStore(root).prepare("_log")
        assert "fsync" not in killed.names
        with disk.traced(Steps()):
            OPERATIONS[0].act(LocalStore(root))
        lost = disk.lose_power(folder / "lost", Loss.ALL)
        assert observe(LocalStore(lost / "lake" / "table")) != ABSENT


@contextmanager
def machine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="upsertflow-test-") as folder:
        yield Path(folder)
