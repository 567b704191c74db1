"""Our tables through Spark are right in all public histories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from changelog_conformance import generator, histories, oracle, peers, runner

pytestmark = pytest.mark.slow

DRAWN = 5


@pytest.mark.spark
def test_our_tables_through_spark_are_right_in_all_histories(tmp_path: Path) -> None:
    asked = [*histories.load(), *map(generator.draw, range(DRAWN))]
    (peer,) = (each for each in peers.PEERS if each.name == "upsertflow_spark")
    runner.ask(tmp_path, asked)
    peers.run(peer, tmp_path, cache=tmp_path)
    found = json.loads((tmp_path / "observed.json").read_text(encoding="utf-8"))["histories"]
    for history in asked:
        seen, refused = runner.observed_of_json(found[history.name])
        verdict = oracle.judge(history, seen)
        wrong = (refused, verdict.rows, verdict.changes)
        assert wrong == ("", None, None), f"{history.name}: {history.says}"
        assert verdict.has_feed
