"""The page: one table of what each system gets right, and below it why a cell is not green."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from changelog_conformance import histories, peers
from changelog_conformance.known import KNOWN, NOT_TRIED
from changelog_conformance.oracle import Finding, Verdict


class EntryMatches(TypedDict):
    """What came out of one history; an empty text is nothing wrong."""

    rows: str
    changes: str
    has_feed: bool
    refused: str
    smallest: NotRequired[list[dict[str, Any]]]
    """The steps of the smallest history that goes wrong, of a drawn one (`shrinking`)."""


class Result(TypedDict):
    """What came out of one system."""

    not_tried: str
    versions: dict[str, str]
    histories: dict[str, EntryMatches]


COLUMNS = {
    "latest": "latest rows",
    "batch": "several rows of a key in a batch",
    "late": "late rows lose",
    "deleted": "deleted stays deleted",
    "again": "inserted again after a delete",
    "replay": "a batch that comes again changes nothing",
    "ties": "ties: one of both",
    "values": "nulls and NaN",
    "keys": "keys: two columns, null, NaN, texts",
    "schema": "a column is added",
    "drawn": "drawn histories",
}
"""What a history shows, by its word."""

FEED = "changes are exact"
RIGHT, WRONG, REFUSED, UNKNOWN = "✔", "**✘**", "refused", "–"


def found(verdict: Verdict, refused: str) -> EntryMatches:
    """Return a verdict as it is kept."""
    return {
        "rows": _told(verdict.rows),
        "changes": _told(verdict.changes),
        "has_feed": verdict.has_feed,
        "refused": refused,
    }


def _told(finding: Finding | None) -> str:
    return "" if finding is None else f"behind batch {finding.batch_index}: {finding.text}"


def summary(result: Result) -> str:
    """Return one line for a terminal."""
    if result["not_tried"]:
        return f"not tried: {result['not_tried']}"
    wrong = [name for name, each in result["histories"].items() if each["rows"] or each["changes"]]
    refused = [name for name, each in result["histories"].items() if each["refused"]]
    return f"{len(result['histories'])} histories, wrong {wrong}, refused {refused}"


def text(results: Mapping[str, Result]) -> str:
    """Return the page."""
    tried = [peer for peer in peers.PEERS if peer.name in results]
    parts = (_table(tried, results), [""], _reasons(tried, results), [_BEYOND], _missing())
    return "\n".join([_HEAD, *chain(*parts), *_used(tried, results)])


def _shown() -> dict[str, histories.History]:
    return {each.name: each for each in histories.load()}


def _cell(result: Result, names: list[str]) -> str:
    """Return what a system gets of the histories that show one property."""
    each = [result["histories"][name] for name in names if name in result["histories"]]
    if result["not_tried"] or not each:
        return UNKNOWN
    if any(one["rows"] for one in each):
        return WRONG
    return REFUSED if any(one["refused"] for one in each) else RIGHT


def _feed_cell(result: Result) -> str:
    each = [one for one in result["histories"].values() if one["has_feed"]]
    if result["not_tried"] or not each:
        return UNKNOWN
    return WRONG if any(one["changes"] for one in each) else RIGHT


def _names(result: Result, word: str) -> list[str]:
    if word == "drawn":
        return [name for name in result["histories"] if name.startswith("drawn_")]
    return [name for name, each in _shown().items() if each.shows == word]


def _table(tried: list[peers.Peer], results: Mapping[str, Result]) -> Iterator[str]:
    yield "| | " + " | ".join(peer.title for peer in tried) + " |"
    yield "|---" * (len(tried) + 1) + "|"
    for word, title in COLUMNS.items():
        cells = [_cell(results[peer.name], _names(results[peer.name], word)) for peer in tried]
        yield f"| {title} | " + " | ".join(cells) + " |"
    yield f"| {FEED} | " + " | ".join(_feed_cell(results[peer.name]) for peer in tried) + " |"


def _reasons(tried: list[peers.Peer], results: Mapping[str, Result]) -> Iterator[str]:
    """Tell of each cell that is not green the smallest history of it, and what came out."""
    shown = _shown()
    yield "## Why a cell is not green"
    yield ""
    yield "Of each cell the smallest history that shows it."
    yield ""
    for peer in tried:
        result = results[peer.name]
        if result["not_tried"]:
            yield f"**{peer.title}** was not tried: {_line(result['not_tried'])}"
            yield ""
            continue
        told: list[str] = []
        for word, title in COLUMNS.items():
            names = _names(result, word)
            for kind in ("rows", "refused"):
                told += _smallest(result, names, kind, title, shown, peer.name, word)
        told += _smallest(result, list(shown), "changes", FEED, shown, peer.name, "changes")
        if told:
            yield f"**{peer.title}**"
            yield ""
            yield from told
            yield ""


def _smallest(
    result: Result,
    names: list[str],
    kind: str,
    title: str,
    shown: Mapping[str, histories.History],
    peer: str,
    word: str,
) -> list[str]:
    by_name: Mapping[str, Mapping[str, object]] = result["histories"]
    wrong = [name for name in names if by_name.get(name, {}).get(kind)]
    if not wrong:
        return []
    name = min(wrong, key=lambda each: shown[each].row_count if each in shown else 10**9)
    place = name
    if name in shown:
        place = f"[{name}](../changelog-conformance/histories/{name}.json)"
    others = f" ({len(wrong)} of {len(names)} histories)" if len(names) > 1 else ""
    label = f"{title}, refused" if kind == "refused" else title
    told = str(by_name[name][kind])
    if kind == "refused":
        return [f"- *{label}*{others}: {place}: {_line(_cause(told))}"]
    known = KNOWN.get((peer, word), "Upstream: none known.")
    if steps := by_name[name].get("smallest"):
        known = f"The smallest that does: `{json.dumps(steps)}`. {known}"
    return [f"- *{label}*{others}: {place}: {_line(told)}", f"  {known}"]


def _cause(refused: str) -> str:
    """Return what an error says at its root, without paths of the machine that ran it."""
    return re.split(r"(?:Exception|Error): ", re.sub(r"/\S+: ", "", refused))[-1]


def _line(told: str) -> str:
    return " ".join(told.replace("|", "\\|").replace("<", "&lt;").split())


def _missing() -> Iterator[str]:
    yield "## Not tried"
    yield ""
    for name, reason in NOT_TRIED.items():
        yield f"- **{name}**: {reason}"
    yield ""


def _used(tried: list[peers.Peer], results: Mapping[str, Result]) -> Iterator[str]:
    yield "## How each system is used"
    yield ""
    yield "| system | versions | used by |"
    yield "|---|---|---|"
    for peer in tried:
        versions = dict(results[peer.name]["versions"])
        if peer.jar:
            versions["jar"] = peer.jar.split(":", 1)[1]
        ran = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield f"| [{peer.title}]({peer.source}) | {ran or UNKNOWN} | {peer.used} |"
    yield ""


_HEAD = """\
# What each system gets right

A table by key is a promise about what happens when rows come late, twice or after a delete. Here
are the promises as histories in JSON, in [changelog-conformance](../changelog-conformance), with
an oracle of more than 150 lines of plain Python that reads as their definition, and a runner for each
system. This page is made by one command, which anybody can repeat:

<!-- not run: takes the peers' jars and an hour; integration/test_conformance.py and tests/unit/test_conformance.py run what is ours -->
```sh
make conformance
```

Each system is used as its own documentation says for this job; the settings stand
[below](#how-each-system-is-used). The rule that they are held against: of the commands of a key the
one with the greatest order stands, a delete is a command, and what comes late or again changes
nothing. Each row of the table is judged by the tables that a system shows behind each batch; the
last row compares its change feed with the difference between the tables that *it* showed, so that
a system is not told the same thing twice.

✔ right in all histories of the row; ✘ a wrong answer in one of them; *refused* an error, and no
wrong answer; – there is nothing to judge.
"""


_BEYOND = """\
## What is not asked

Speed, which the [report](benchmarks/report.md) has; concurrent writers; statements of people, for
which `MERGE` is made and upsertflow is not. And how long a delete is remembered: upsertflow forgets
one after `tombstoneRetention` (7 days, or as long as a table says), and counts an older row that
comes later still as `rejected`; deletes that are kept as rows are remembered for as long as the rows
stay.
"""


def load(path: Path) -> Result:
    """Return a result that is kept."""
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result
