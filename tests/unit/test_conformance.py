"""Public histories: what they say, the oracle that judges them, and systems without Java."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from changelog_conformance import generator, histories, oracle, page, peers, runner
from changelog_conformance.__main__ import HOME, main
from changelog_conformance.histories import GONE, Batch, History, HistoryError, Row
from changelog_conformance.oracle import Observed, Verdict, judge
from changelog_conformance.runners.upsertflow_engine import UpsertflowEngine
from changelog_conformance.shrinking import shrunk
from spark_upsert.core.schema import Scope
from tests.support.model import Command, Model

NAMED = histories.load()
BY_NAME = {each.name: each for each in NAMED}
DRAWN = tuple(generator.draw(seed) for seed in range(20))
WITHOUT_JAVA = ("upsertflow", "delta_rs", "delta_rs_flagged")


def test_each_property_of_the_page_has_histories() -> None:
    assert {each.shows for each in NAMED} | {"drawn"} == page.COLUMNS.keys()


@pytest.mark.parametrize("history", [*NAMED, *DRAWN], ids=lambda each: each.name)
def test_a_history_is_what_its_json_says(history: History) -> None:
    text = json.loads(json.dumps(histories.to_json(history)))
    again = histories.parse(text, history.name)
    assert histories.to_json(again) == histories.to_json(history)


def test_a_seed_draws_the_same_history_always() -> None:
    assert generator.draw(7) == generator.draw(7)
    assert generator.draw(7) != generator.draw(8)
    assert any(step.again is not None for each in DRAWN for step in batches(each))


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"rows": [{"id": 1, "other": 2, "seq": 1}]}], "step 0: expected columns of"),
        ([{"again": 0}], "step 0: expected rows, again"),
        ([{"columns": {"c": "date"}}], "expected types of"),
    ],
)
def test_a_history_that_cannot_be_meant_is_refused(steps: list[object], told: str) -> None:
    text = histories.to_json(NAMED[0]) | {"steps": steps}
    with pytest.raises(HistoryError, match=told):
        histories.parse(text, "wrong")


@pytest.mark.parametrize("history", DRAWN, ids=lambda each: each.name)
def test_the_oracle_says_what_the_model_of_our_tests_says(history: History) -> None:
    ours, theirs = Model(Scope.TABLE), oracle.Oracle(history.keys, history.order)
    for batch in batches(history):
        ours.append([command(row) for row in batch.rows])
        theirs.apply(batch.rows)
        shown = {key[0]: rows for key, rows in theirs.expected().items() if rows != {None}}
        assert shown == {key: {value[1]} for key, value in ours.rows().items()}


def command(row: Row) -> Command:
    """Return a command whose value is the row as it is compared; a null value sorts, too."""
    value = None if row.get(GONE) else (row.get("value") or "", oracle.cells(row))
    return Command(row["id"], value, row["seq"])


def batches(history: History) -> list[Batch]:
    return [step for step in history.steps if isinstance(step, Batch)]


class Naive:
    """A dictionary of rows, and one mistake: what a batch does to it, and what it tells."""

    def __init__(self, wins: Callable[[Row | None, Row], bool], told: slice = slice(None)) -> None:
        self._wins, self._told = wins, told

    def verdict(self, history: History) -> Verdict:
        rows: dict[object, Row] = {}
        seen: list[Observed] = []
        for batch in batches(history):
            before = dict(rows)
            for row in batch.rows:
                key = histories.key_of(row, history.keys)
                if self._wins(rows.get(key), row):
                    rows[key] = row
            lost = [(row, -1) for key, row in before.items() if rows[key] is not row]
            won = [(row, 1) for key, row in rows.items() if before.get(key) is not row]
            changes = [(row, diff) for row, diff in lost + won if not row.get(GONE)]
            shown = [row for row in rows.values() if not row.get(GONE)]
            seen.append(Observed(rows=shown, changes=changes[self._told]))
        return judge(history, seen)


def newer(old: Row | None, new: Row) -> bool:
    return old is None or new["seq"] > old["seq"]


def test_a_system_that_does_right_is_right() -> None:
    for history in [*NAMED, *DRAWN]:
        verdict = Naive(newer).verdict(history)
        assert (verdict.rows, verdict.changes) == (None, None), history.name


@pytest.mark.parametrize(
    ("system", "shows"),
    [
        (Naive(lambda old, new: True), {"late", "deleted", "batch", "replay", "schema", "drawn"}),
        (
            Naive(lambda old, new: newer(old, new) or bool(old and old.get(GONE))),
            {"deleted", "replay", "drawn"},
        ),
        (Naive(lambda old, new: newer(old, new) and not new.get(GONE)), {"latest", "again"}),
    ],
    ids=["the last to arrive wins", "deletes are forgotten", "deletes are ignored"],
)
def test_a_wrong_system_is_found_where_it_is_wrong(system: Naive, shows: set[str]) -> None:
    wrong = {each.shows for each in [*NAMED, *DRAWN] if system.verdict(each).rows}
    assert shows <= wrong
    assert not any(system.verdict(each).changes for each in NAMED)  # Its feed tells what it did.


def test_a_feed_that_leaves_out_a_change_is_found_apart_from_the_rows() -> None:
    verdict = Naive(newer, slice(1, None)).verdict(BY_NAME["insert_update_delete"])
    assert verdict.rows is None
    assert verdict.changes is not None
    assert verdict.changes.text == "expected +1 of (id=1, seq=1, value='a'), found +0"


def test_a_row_that_stands_twice_is_wrong() -> None:
    row = {"id": 1, "value": "a", "seq": 1}
    seen = [Observed(rows=[row, row], changes=None)]
    verdict = judge(BY_NAME["batch_delivered_twice"], seen)
    assert verdict.rows is not None
    assert not verdict.has_feed
    assert "found (id=1, seq=1, value='a') and (id=1, seq=1, value='a')" in verdict.rows.text


@pytest.mark.parametrize(
    ("system", "rows"),
    [
        (Naive(lambda old, new: True), 2),
        (Naive(lambda old, new: newer(old, new) or bool(old and old.get(GONE))), 2),
        (Naive(newer, slice(1, None)), 1),
    ],
    ids=["the last to arrive wins", "deletes are forgotten", "a feed that leaves out a change"],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_history_that_goes_wrong_is_found(system: Naive, rows: int, seed: int) -> None:
    def are_wrong(asked: Sequence[History]) -> list[bool]:
        found = [system.verdict(each) for each in asked]
        return [bool(each.rows or each.changes) for each in found]

    drawn = generator.draw(seed, batches=12)
    assert are_wrong([drawn]) == [True]
    small = shrunk(drawn, are_wrong)
    assert are_wrong([small]) == [True]
    assert (small.row_count, len(small.steps)) <= (rows, rows)
    again = histories.parse(histories.to_json(small), small.name)
    assert again == small, "it can be written down"


def test_a_batch_that_comes_again_is_told_for_the_first_time_where_its_first_is_left_out() -> None:
    told = BY_NAME["batch_delivered_twice"]

    def has_two_rows(asked: Sequence[History]) -> list[bool]:
        return [each.row_count >= 2 for each in asked]

    small = shrunk(told, has_two_rows)
    assert small.row_count == 2
    assert histories.parse(histories.to_json(small), small.name) == small


def observed(name: str, folder: Path, asked: Sequence[History]) -> page.Result:
    """Run histories through a system of this interpreter."""
    (peer,) = (each for each in peers.PEERS if each.name == name)
    made = runner.make(peer.runner, folder)
    found = {}
    for history in asked:
        text = json.dumps(runner.observed_to_json(*runner.observe(made, history)))
        seen, refused = runner.observed_of_json(json.loads(text))
        found[history.name] = page.found(judge(history, seen), refused)
    made.close()
    return {"not_tried": "", "versions": made.versions(), "histories": found}


@pytest.mark.slow
def test_our_tables_are_right_in_all_histories(tmp_path: Path) -> None:
    found = observed("upsertflow", tmp_path, [*NAMED, *DRAWN])["histories"]
    right: page.EntryMatches = {"rows": "", "changes": "", "has_feed": True, "refused": ""}
    assert found == dict.fromkeys(found, right)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_JAVA)
def test_the_results_of_the_page_come_out_again(tmp_path: Path, name: str) -> None:
    kept = page.load(HOME / "results" / f"{name}.json")
    drawn = [
        generator.draw(int(each.split("_")[1])) for each in kept["histories"] if each not in BY_NAME
    ]
    found = observed(name, tmp_path, [*NAMED, *drawn])
    assert found["histories"].keys() == kept["histories"].keys()
    # Another release of theirs may be right where this one is wrong, or the other way round.
    if found["versions"] == kept["versions"] or name == "upsertflow":
        for each in kept["histories"].values():
            each.pop("smallest", None)
        assert found["histories"] == kept["histories"]


def test_the_page_is_made_of_the_results_that_are_kept() -> None:
    results = {path.stem: page.load(path) for path in (HOME / "results").glob("*.json")}
    assert results.keys() <= {each.name for each in peers.PEERS}
    assert (HOME.parent / "docs" / "conformance.md").read_text("utf-8") == page.text(results)
    for name, each in results.items():
        assert each["not_tried"] or each["histories"].keys() >= BY_NAME.keys(), f"run {name} again"


@pytest.mark.slow
def test_the_command_runs_one_history_and_keeps_the_results_of_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = page.load(HOME / "results" / "upsertflow.json")
    results = tmp_path / "results"
    results.mkdir()
    wrong: page.EntryMatches = {"rows": "wrong", "changes": "", "has_feed": True, "refused": ""}
    kept["histories"] |= {"late_row": wrong, "late_delete": wrong}
    (results / "upsertflow.json").write_text(json.dumps(kept), encoding="utf-8")
    told = ["--only", "late_row", "--results", str(results), "--out", str(tmp_path / "page.md")]
    main(["upsertflow", *told, "--cache", str(tmp_path)])
    found = page.load(results / "upsertflow.json")["histories"]
    assert (found["late_row"]["rows"], found["late_delete"]["rows"]) == ("", "wrong")
    assert "wrong ['late_delete'], refused []" in capfd.readouterr().out
    assert "late_delete.json): wrong" in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["oracle"], "expected systems of"),
        (["upsertflow", "--only", "late"], "expected a history of"),
    ],
)
def test_what_the_command_does_not_know_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in capsys.readouterr().err


def test_a_system_that_ends_before_it_says_anything_is_not_tried(tmp_path: Path) -> None:
    runner.ask(tmp_path, NAMED[:1])
    peer = replace(peers.PEERS[0], runner="there_is_none:Such")
    with pytest.raises(peers.SetupError, match="No module named"):
        peers.run(peer, tmp_path, cache=tmp_path)


def test_an_error_of_a_system_counts_as_refused_behind_what_it_showed(tmp_path: Path) -> None:
    class Tired(UpsertflowEngine):
        def restart(self) -> None:
            raise RuntimeError("no more")

    seen, refused = runner.observe(Tired(tmp_path), BY_NAME["restart_and_delivered_twice"])
    assert (len(seen), refused) == (2, "RuntimeError: no more")


def test_of_an_error_of_java_the_deepest_cause_is_told() -> None:
    text = "Job aborted.\n\tat A.b(C.java:1)\nCaused by: X: why\n\tat D\nCaused by: Y: truly  so\n"
    assert runner.cause_of(text) == "Y: truly so"
    assert runner.cause_of("a\n  b") == "a b"


def test_a_system_that_cannot_be_had_is_told_with_its_reason() -> None:
    results: dict[str, page.Result] = {
        "hudi_cow": {"not_tried": "Maven is not on the PATH", "versions": {}, "histories": {}}
    }
    text = page.text(results)
    assert "**Hudi, copy on write** was not tried: Maven is not on the PATH" in text
    assert page.RIGHT not in text.split("## Why")[0].split("|---|")[1]
