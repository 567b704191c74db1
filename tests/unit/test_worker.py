"""A process that Spark uses again does not look at its modules behind each task."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from spark_upsert_sink.worker import settle_in


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    settle_in.cache_clear()
    yield
    settle_in.cache_clear()
    gc.unfreeze()


def test_what_is_there_is_put_aside_where_spark_uses_a_process_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle_in()
    assert gc.get_freeze_count() > 1_000


def test_it_is_put_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle_in()
    gc.unfreeze()
    settle_in()
    assert gc.get_freeze_count() == 0


def test_any_other_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    settle_in()
    assert gc.get_freeze_count() == 0
