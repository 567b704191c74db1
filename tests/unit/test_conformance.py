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


def test_a_history_is_what_its_json_says() -> None:
    for history in [*NAMED, *DRAWN]:
        text = json.loads(json.dumps(histories.to_json(history)))
        assert histories.to_json(histories.parse(text, history.name)) == text


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([{"rows": [{"id": 1, "other": 2, "seq": 1}]}], "step 0: expected columns of"),
        ([{"again": 0}], "step 0: expected rows, again"),
        ([{"columns": {"c": "date"}}], "expected types of"),
    ],
)
def test_a_history_that_cannot_be_meant_is_refused(steps: list[object], words: str) -> None:
    with pytest.raises(HistoryError, match=words):
        histories.parse(histories.to_json(NAMED[0]) | {"steps": steps}, "wrong")


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


LAST_WINS = Naive(lambda old, new: True)
FORGETS_DELETES = Naive(lambda old, new: newer(old, new) or bool(old and old.get(GONE)))
IGNORES_DELETES = Naive(lambda old, new: newer(old, new) and not new.get(GONE))
LEAVES_OUT_A_CHANGE = Naive(newer, slice(1, None))


@pytest.mark.parametrize(
    ("system", "shows"),
    [
        (LAST_WINS, {"late", "deleted", "batch", "replay", "schema", "drawn"}),
        (FORGETS_DELETES, {"deleted", "replay", "drawn"}),
        (IGNORES_DELETES, {"latest", "again"}),
    ],
    ids=["the last to arrive wins", "deletes are forgotten", "deletes are ignored"],
)
def test_a_wrong_system_is_found_where_it_is_wrong(system: Naive, shows: set[str]) -> None:
    wrong = {each.shows for each in [*NAMED, *DRAWN] if system.verdict(each).rows}
    assert shows <= wrong
    assert not any(system.verdict(each).changes for each in NAMED)  # Its feed tells what it did.


@pytest.mark.parametrize(
    ("system", "rows"),
    [(LAST_WINS, 2), (FORGETS_DELETES, 2), (LEAVES_OUT_A_CHANGE, 1)],
    ids=["the last to arrive wins", "deletes are forgotten", "a feed that leaves out a change"],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_history_that_goes_wrong_is_found(system: Naive, rows: int, seed: int) -> None:
    def are_wrong(asked: Sequence[History]) -> list[bool]:
        verdicts = [system.verdict(each) for each in asked]
        return [bool(each.rows or each.changes) for each in verdicts]

    small = shrunk(generator.draw(seed, batches=12), are_wrong)
    assert are_wrong([small]) == [True]
    assert (small.row_count, len(small.steps)) <= (rows, rows)
    assert histories.parse(histories.to_json(small), small.name) == small, "it can be written down"


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
@pytest.mark.parametrize("name", WITHOUT_JAVA)
def test_the_results_of_the_page_come_out_again(tmp_path: Path, name: str) -> None:
    kept = page.load(HOME / "results" / f"{name}.json")
    drawn = [
        generator.draw(int(each.split("_")[1])) for each in kept["histories"] if each not in BY_NAME
    ]
    found = observed(name, tmp_path, [*NAMED, *drawn])
    assert found["histories"].keys() == kept["histories"].keys()
    # Another release of theirs may be right where this one is wrong, or the other way round.
    if name == "upsertflow":
        right: page.EntryMatches = {"rows": "", "changes": "", "has_feed": True, "refused": ""}
        assert found["histories"] == dict.fromkeys(found["histories"], right)
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


def test_unknown_systems_and_histories_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["oracle"], "expected systems of"),
        (["upsertflow", "--only", "late"], "expected a history of"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert words in capsys.readouterr().err


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


def test_a_system_that_cannot_be_had_is_told_with_its_reason() -> None:
    reason = "Maven is not on the PATH"
    result: page.Result = {"not_tried": reason, "versions": {}, "histories": {}}
    text = page.text({"hudi_cow": result})
    assert f"**Hudi, copy on write** was not tried: {reason}" in text
    assert page.RIGHT not in text.split("## Why")[0].split("|---|")[1]
    assert (
        runner.cause_of("Job.\n\tat A\nCaused by: X: y\n\tat D\nCaused by: Y: so  it\n")
        == "Y: so it"
    )
