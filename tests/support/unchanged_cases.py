"""Cases of values that an update leaves unchanged, in a text form.

Value columns are ``n`` (a number) and ``x`` (text); the key is 1 unless a prefix names another.

===================  ===========================================================
``P10(n=1,x=·)``     put of order 10 that sets n and leaves x unchanged
``C10(...)``         create: resets the columns that it does not set
``D7``, ``L5→2``     delete; delete of a row that moves to key 2
``T7``, ``E6``       truncate; event with an undecodable value
``2:D7``             the delete of key 2
``|``                ends an epoch
``/``                ends a task of an epoch
``!``                begins an epoch that overwrites the table
``merge``            compaction of all runs
``forget``           the same in a table that keeps no deletes
``restore 1``        restores the table after its first epoch
===================  ===========================================================

Rows are written ``1: 1,a``, with ``?`` where the column is unknown, and changes
``-1: 0,a +1: 1,a``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, Ties
from spark_upsert.table.log.properties import LateRows
from tests.support.registers_model import Command, Kind

UNCHANGED = "·"
COLUMNS = ("n", "x")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One commit."""

    tasks: tuple[tuple[Command, ...], ...]
    overwrite: bool = False

    @property
    def commands(self) -> list[Command]:
        return [command for task in self.tasks for command in task]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A compaction, which changes no row."""

    first: int = 0
    """The oldest of the merged epochs, counted from the oldest one or, if negative, the newest."""
    count: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore to an earlier version."""

    version: int


Step = Epoch | Upkeep | Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Steps, and the table after them. ``changes`` and ``counters`` are of the last epoch."""

    name: str
    steps: str
    rows: str
    changes: str | None = None
    counters: str | None = None
    on_unknown: OnUnknown = OnUnknown.NULL
    ties: Ties = Ties.LAST
    on_error: ErrorPolicy = ErrorPolicy.FAIL
    scope: Scope = Scope.TABLE
    late_rows: LateRows = LateRows.REJECT
    fails: str = ""
    """What the last epoch's error is about: ``unknown``, ``strayed`` or ``tied``; then the rest
    describes the version before it."""
    listed: str = ""
    """The keys in the quarantine."""

    def __str__(self) -> str:
        return self.name

    @property
    def parsed(self) -> list[Step]:
        """The steps."""
        return list(parse_steps(self.steps))


def parse_steps(text: str) -> Iterator[Step]:
    """Yield the steps of a text."""
    for part in text.split("|"):
        words = part.split()
        if words[0] in ("merge", "forget"):
            yield Upkeep()
        elif words[0] == "restore":
            yield Restore(int(words[1]))
        else:
            overwrite = words[0] == "!"
            body = part.replace("!", "")
            tasks = (tuple(map(parse_command, task.split())) for task in body.split("/"))
            yield Epoch(tuple(tasks), overwrite)


_COMMAND = re.compile(r"(?:(-?\d+):)?([PCDLTE])(\d+)(?:→(-?\d+))?(?:\((.*)\))?")


def parse_command(text: str) -> Command:
    """Return the command of a text."""
    matched = _COMMAND.fullmatch(text)
    assert matched is not None, f"'{text}' is no command"
    key, kind, order, moved_to, sets = matched.groups()
    pairs = [each.split("=") for each in (sets or "").split(",") if each]
    return Command(
        Kind.DELETE if kind == "L" else Kind(kind),
        int(order),
        None if kind == "T" else int(key or 1),
        {name: _value(name, value) for name, value in pairs if value != UNCHANGED},
        None if moved_to is None else int(moved_to),
    )


def _value(name: str, text: str) -> int | str | None:
    if text in ("NULL", "?"):
        return None
    return int(text) if name == "n" else text


_ROW = re.compile(r"([+-]?)(-?\d+): ([^,\s]+),([^,\s]+)")


def parse_rows(text: str) -> list[tuple[str, int, tuple[int | str | None, ...]]]:
    """Return the sign, key and values of each row or change."""
    return [
        (sign, int(key), (_value("n", n), _value("x", x))) for sign, key, n, x in _ROW.findall(text)
    ]


def unknown_in(text: str) -> dict[int, tuple[str, ...]]:
    """Return the unknown columns of the rows of a text, by key."""
    found = {
        int(key): tuple(name for name, value in zip(COLUMNS, values, strict=True) if value == "?")
        for _, key, *values in _ROW.findall(text)
    }
    return {key: names for key, names in found.items() if names}


def parse_counters(text: str) -> dict[str, int]:
    """Return counters by name."""
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


FAIL, APART = OnUnknown.FAIL, OnUnknown.QUARANTINE
FIRST = "P5(n=0,x=a) | P10(n=1,x=·)"
"""An insert, and an update that leaves x unchanged."""
MOVED = "P1(n=0,x=a) | L5→2 2:C5(n=1,x=·)"

CASES: Sequence[Case] = (
    Case(
        name="1 an update keeps the value below it",
        steps=FIRST,
        rows="1: 1,a",
        changes="-1: 0,a +1: 1,a",
        counters="updates 1",
    ),
    *(
        Case(
            name=f"2 in one epoch, {how}",
            steps=steps,
            rows="1: 1,a",
            changes="+1: 1,a",
            counters="inserts 1 superseded 1",
        )
        for how, steps in {
            "in order": "P5(n=0,x=a) P10(n=1,x=·)",
            "in reverse": "P10(n=1,x=·) P5(n=0,x=a)",
            "in two tasks": "P5(n=0,x=a) / P10(n=1,x=·)",
            "in two tasks in reverse": "P10(n=1,x=·) / P5(n=0,x=a)",
        }.items()
    ),
    Case(
        name="3 a late put fills",
        steps="P10(n=1,x=·) | P5(n=0,x=a)",
        rows="1: 1,a",
        changes="-1: 1,? +1: 1,a",
        counters="updates 1 filled 1",
    ),
    Case(
        name="4 fail: the update alone fails",
        steps="P10(n=1,x=·)",
        rows="",
        on_unknown=FAIL,
        fails="unknown",
    ),
    Case(
        name="4 fail: both in one epoch",
        steps="P10(n=1,x=·) P5(n=0,x=a)",
        rows="1: 1,a",
        on_unknown=FAIL,
    ),
    Case(
        name="5 quarantine: the update alone is listed",
        steps="P10(n=1,x=·)",
        rows="",
        changes="",
        counters="quarantined 1 unknown 1",
        on_unknown=APART,
        listed="1: x",
    ),
    Case(
        name="5 quarantine: a fill brings the row",
        steps="P10(n=1,x=·) | P5(n=0,x=a)",
        rows="1: 1,a",
        changes="+1: 1,a",
        counters="inserts 1 filled 1",
        on_unknown=APART,
    ),
    Case(
        name="6 NULL is a value",
        steps="P5(n=0,x=a) | P10(n=1,x=NULL)",
        rows="1: 1,NULL",
        changes="-1: 0,a +1: 1,NULL",
        counters="updates 1",
    ),
    Case(
        name="7 a late put between",
        steps=f"{FIRST} | P7(n=7,x=b)",
        rows="1: 1,b",
        changes="-1: 1,a +1: 1,b",
        counters="updates 1 filled 1",
    ),
    Case(
        name="8 a late put below the value",
        steps=f"{FIRST} | P7(n=7,x=b) | P6(n=6,x=c)",
        rows="1: 1,b",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="9 a late delete resets",
        steps=f"{FIRST} | D7",
        rows="1: 1,?",
        changes="-1: 1,a +1: 1,?",
        counters="updates 1 unknown 1",
    ),
    Case(
        name="10 a put below the reset",
        steps=f"{FIRST} | D7 | P6(n=6,x=c)",
        rows="1: 1,?",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="11 a put above the reset",
        steps=f"{FIRST} | D7 | P8(n=8,x=e)",
        rows="1: 1,e",
        changes="-1: 1,? +1: 1,e",
        counters="updates 1 filled 1",
    ),
    Case(
        name="12 fail: a late delete fails",
        steps=f"{FIRST} | D7",
        rows="1: 1,a",
        on_unknown=FAIL,
        fails="unknown",
    ),
    Case(
        name="12 quarantine: a late delete hides the row",
        steps=f"{FIRST} | D7",
        rows="",
        changes="-1: 1,a",
        counters="displaced 1 quarantined 1 unknown 1",
        on_unknown=APART,
        listed="1: x",
    ),
    Case(
        name="13 an update above a delete",
        steps="P5(n=0,x=a) | D7 | P10(n=1,x=·)",
        rows="1: 1,?",
        changes="+1: 1,?",
        counters="inserts 1 unknown 1",
    ),
    Case(
        name="14 a create borrows nothing",
        steps="P5(n=0,x=a) | C10(n=1,x=·)",
        rows="1: 1,?",
        changes="-1: 0,a +1: 1,?",
        counters="updates 1 unknown 1",
    ),
    *(
        Case(
            name=f"15 a replay is a duplicate, {ties.value}",
            steps=f"{FIRST} | merge | P10(n=1,x=·)",
            rows="1: 1,a",
            changes="",
            counters="duplicates 1 tied 0",
            ties=ties,
        )
        for ties in Ties
    ),
    Case(
        name="16 a replay of the insert is stale",
        steps=f"{FIRST} | merge | P10(n=1,x=·) | P5(n=0,x=a)",
        rows="1: 1,a",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="17 other columns of one order are not tied",
        steps="P10(n=1,x=·) | P10(n=·,x=b)",
        rows="1: 1,b",
        changes="-1: 1,? +1: 1,b",
        counters="updates 1 tied 0",
        ties=Ties.FAIL,
    ),
    Case(
        name="18 one column of one order is tied",
        steps="P10(n=1,x=·) | P10(n=2,x=·)",
        rows="1: 2,?",
        changes="-1: 1,? +1: 2,?",
        counters="updates 1 tied 1",
    ),
    Case(
        name="18 one column of one order is tied, first",
        steps="P10(n=1,x=·) | P10(n=2,x=·)",
        rows="1: 1,?",
        changes="",
        counters="stale 1 tied 1",
        ties=Ties.FIRST,
    ),
    Case(
        name="18 one column of one order is tied, fail",
        steps="P10(n=1,x=·) | P10(n=2,x=·)",
        rows="1: 1,?",
        ties=Ties.FAIL,
        fails="tied",
    ),
    Case(
        name="19 an update that sets nothing",
        steps="P5(n=0,x=a) | P10(n=·,x=·)",
        rows="1: 0,a",
        changes="",
        counters="updates 1",
    ),
    Case(
        name="20 a late put below a delete",
        steps=f"{FIRST} | D12 | P11(n=2,x=b)",
        rows="",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="21 a late put wins one of two columns",
        steps=f"{FIRST} | P12(n=·,x=c) | P11(n=3,x=d)",
        rows="1: 3,c",
        changes="-1: 1,c +1: 3,c",
        counters="updates 1 filled 1",
    ),
    Case(
        name="22 a row moves",
        steps=MOVED,
        rows="2: 1,a",
        changes="-1: 0,a +2: 1,a",
        counters="deletes 1 inserts 1 superseded 1",
    ),
    Case(
        name="23 the create comes before the delete",
        steps="P1(n=0,x=a) | 2:C5(n=1,x=·) | L5→2",
        rows="2: 1,a",
        changes="-1: 0,a -2: 1,? +2: 1,a",
        counters="deletes 1 updates 1 filled 1",
    ),
    Case(
        name="23 the create has not come yet",
        steps="P1(n=0,x=a) | L5→2",
        rows="2: 0,a",
        changes="-1: 0,a +2: 0,a",
        counters="deletes 1 inserts 1",
    ),
    Case(
        name="24 a row moves twice in a batch",
        steps="P1(n=0,x=a) L5→2 2:C5(n=1,x=·) 2:L6→3 3:C6(n=2,x=·)",
        rows="3: 2,a",
        changes="+3: 2,a",
    ),
    *(
        Case(
            name=f"25 two rows swap their keys in {how}",
            steps="P1(n=1,x=a) 2:P2(n=2,x=b) | "
            + end.join(
                [
                    "L5→-1 -1:C5(n=1,x=·)",
                    "2:L6→1 1:C6(n=2,x=·)",
                    "-1:L7→2 2:C7(n=1,x=·)",
                ]
            ),
            rows="1: 2,b 2: 1,a",
        )
        for how, end in {"one batch": " ", "three": " | "}.items()
    ),
    Case(
        name="26 a row of the old key comes after the move",
        steps="P1(n=0,x=a) | L5→2 2:C5(n=1,x=·) | P3(n=3,x=b)",
        rows="2: 1,a",
        changes="",
        counters="stale 1 strayed 1",
    ),
    Case(
        name="26 fail: a row of the old key comes after the move",
        steps="P1(n=0,x=a) | L5→2 2:C5(n=1,x=·) | P3(n=3,x=b)",
        rows="2: 1,a",
        on_unknown=FAIL,
        fails="strayed",
    ),
    Case(
        name="27 all again after a move",
        steps=f"{MOVED} | P1(n=0,x=a) L5→2 2:C5(n=1,x=·)",
        rows="2: 1,a",
        changes="",
    ),
    Case(
        name="27 all again after a move, in two epochs",
        steps=f"{MOVED} | {MOVED}",
        rows="2: 1,a",
        changes="",
    ),
    Case(
        name="28 the old key is used again",
        steps=f"{MOVED} | P8(n=9,x=z) | P3(n=3,x=b)",
        rows="1: 9,z 2: 1,a",
        changes="",
        counters="stale 1 strayed 1",
    ),
    Case(
        name="29 a late row of the new key",
        steps="2:P2(n=0,x=old) 2:D4 P1(n=0,x=a) | L5→2 2:C5(n=1,x=·) | 2:P3(n=3,x=w)",
        rows="2: 1,a",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="30 a put below a forgotten delete, reject",
        steps="D7 | forget | P10(n=1,x=·) | P6(n=6,x=c)",
        rows="1: 1,?",
        changes="",
        counters="rejected 1",
    ),
    Case(
        name="30 a put below a forgotten delete, apply",
        steps="D7 | forget | P10(n=1,x=·) | P6(n=6,x=c)",
        rows="1: 1,c",
        changes="-1: 1,? +1: 1,c",
        counters="updates 1 filled 1 late 1",
        late_rows=LateRows.APPLY,
    ),
    Case(
        name="31 a truncate below an update",
        steps=f"{FIRST} | T7",
        rows="1: 1,?",
        changes="-1: 1,a +1: 1,?",
        counters="skipped 1 retracted 1 restored 1 unknown 1",
    ),
    Case(
        name="32 a put below a truncate",
        steps=f"{FIRST} | T7 | P6(n=6,x=c)",
        rows="1: 1,?",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="33 an overwrite borrows nothing",
        steps="P5(n=0,x=a) | ! P10(n=1,x=·)",
        rows="1: 1,?",
        changes="-1: 0,a +1: 1,?",
        counters="updates 1 unknown 1",
    ),
    Case(
        name="33 fail: an overwrite borrows nothing",
        steps="P5(n=0,x=a) | ! P10(n=1,x=·)",
        rows="1: 0,a",
        on_unknown=FAIL,
        fails="unknown",
    ),
    Case(
        name="34 an update after a restore",
        steps=f"{FIRST} | restore 1 | P12(n=2,x=·)",
        rows="1: 2,a",
        changes="-1: 0,a +1: 2,a",
        counters="updates 1",
    ),
    Case(
        name="35 an unreadable event resets",
        steps="P5(n=0,x=a) | E6 | P10(n=1,x=·)",
        rows="",
        on_unknown=APART,
        on_error=ErrorPolicy.QUARANTINE,
        listed="1: x",
    ),
    Case(
        name="35 the event is read again",
        steps="P5(n=0,x=a) | E6 | P10(n=1,x=·) | P6(n=6,x=b)",
        rows="1: 1,b",
        changes="+1: 1,b",
        counters="inserts 1 filled 1",
        on_unknown=APART,
        on_error=ErrorPolicy.QUARANTINE,
    ),
    Case(
        name="41 a later epoch wins",
        steps="P9(n=0,x=a) | P3(n=1,x=·)",
        rows="1: 1,a",
        changes="-1: 0,a +1: 1,a",
        counters="updates 1",
        scope=Scope.EPOCH,
    ),
    Case(
        name="42 a task has folded the update",
        steps="P3(n=0,x=a) P6(n=1,x=·) / P5(n=0,x=b)",
        rows="1: 1,b",
        changes="+1: 1,b",
        counters="inserts 1 superseded 2",
    ),
    Case(
        name="a replay of two commands of a moved row",
        steps="P1(n=0,x=a) | P4(n=1,x=·) | L9→2 2:C9(n=·,x=·) | P1(n=0,x=a) P4(n=1,x=·)",
        rows="2: 1,a",
        changes="",
        counters="superseded 1 stale 1",
    ),
    Case(
        name="a replay of a create that reset a moved row",
        steps="P1(n=0,x=a) | C2(n=0,x=·) | L9→2 2:C9(n=·,x=·) | C2(n=0,x=·)",
        rows="2: 0,?",
        changes="",
        counters="stale 1",
    ),
    Case(
        name="a row of a key after the earlier of two moves",
        steps=f"{MOVED} | P8(n=5,x=b) | L11→3 3:C11(n=6,x=·) | P4(n=·,x=c)",
        rows="2: 1,a 3: 6,b",
        changes="",
        counters="stale 1 strayed 1",
    ),
    Case(
        name="the create of a move after the next move",
        steps="2:P2(n=0,x=a) | 2:L3→1 | L4→3 3:C4(n=9,x=·) | C3(n=1,x=b)",
        rows="3: 9,a",
        changes="",
        counters="stale 1 strayed 1",
    ),
    Case(
        name="a row moves in another task than its values",
        steps="P1(n=0,x=a) / L5→2 2:C5(n=1,x=·)",
        rows="2: 1,a",
    ),
    Case(
        name="a row moves in another task than its newest values",
        steps="P1(n=0,x=a) | P3(n=0,x=b) / L5→2 2:C5(n=1,x=·)",
        rows="2: 1,b",
    ),
    *(
        Case(
            name=f"a row moves with a newer {what}, and another task has its create",
            steps=f"P1(n=0,x=b) | P3(n=·,x={text}) L5→2 / 2:C5(n=1,x=·)",
            rows=f"2: 1,{text}",
        )
        for what, text in {"null": "NULL", "value": "a"}.items()
    ),
    Case(
        name="a row moves twice in two tasks",
        steps="P1(n=0,x=a) | L5→2 2:C5(n=1,x=·) / 2:L6→3 3:C6(n=2,x=·)",
        rows="3: 2,a",
    ),
    Case(
        name="two rows move to one key in another task than the key",
        steps="P1(n=0,x=a) 3:P2(n=0,x=b) | "
        "4:L6→2 2:C6(n=1,x=·) / L5→4 4:C5(n=1,x=·) 3:L7→4 4:C7(n=1,x=·)",
        rows="2: 1,a 4: 1,b",
    ),
    Case(
        name="two swaps in two tasks, the first with a newer value of its own",
        steps="P1(n=0,x=a) 4:P2(n=0,x=b) | "
        "4:L11→-1 4:C12(n=1,x=·) 4:L15→1 4:C16(n=1,x=·) / "
        "P10(n=·,x=z) -1:C11(n=1,x=·) L12→4 -1:L13→1 C13(n=1,x=·) "
        "L14→-1 -1:C14(n=1,x=·) C15(n=1,x=·) -1:L16→4",
        rows="1: 1,z 4: 1,b",
    ),
    Case(
        name="two swaps in two tasks",
        steps="2:P1(n=0,x=a) 4:P2(n=0,x=b) | "
        "2:L11→-1 4:L12→2 2:C12(n=1,x=·) 4:C13(n=1,x=·) 4:L14→-1 2:L15→4 4:C15(n=1,x=·) "
        "2:C16(n=1,x=·) / -1:C11(n=1,x=·) -1:L13→4 -1:C14(n=1,x=·) -1:L16→2",
        rows="2: 1,a 4: 1,b",
    ),
    Case(
        name="a row moves twice in two tasks in reverse",
        steps="P1(n=0,x=a) | 2:L6→3 3:C6(n=2,x=·) / L5→2 2:C5(n=1,x=·)",
        rows="3: 2,a",
    ),
    Case(
        name="a later epoch's row moves with values of greater orders",
        steps="P9(n=0,x=a) | L5→2 2:C5(n=1,x=·)",
        rows="2: 1,a",
        scope=Scope.EPOCH,
    ),
    Case(
        name="a later epoch's row moves with the newest of its values",
        steps="P9(n=0,x=a) | P2(n=·,x=b) P7(n=·,x=c) L5→2 2:C5(n=1,x=·)",
        rows="1: ?,c 2: 1,b",
        scope=Scope.EPOCH,
    ),
    Case(
        name="a row of a later epoch at the key that a row has left",
        steps="P9(n=0,x=a) | L9→2 2:C9(n=1,x=·) | P3(n=2,x=·)",
        rows="1: 2,? 2: 1,a",
        changes="+1: 2,?",
        counters="inserts 1 unknown 1",
        scope=Scope.EPOCH,
    ),
    Case(
        name="an update with marks makes a row of the quarantine complete",
        steps="P10(n=1,x=·) | P5(n=·,x=a)",
        rows="1: 1,a",
        changes="+1: 1,a",
        counters="inserts 1 filled 1",
        on_unknown=APART,
    ),
    Case(
        name="a late create that only resets fills nothing",
        steps="P10(n=·,x=·) | C5(n=·,x=·)",
        rows="1: ?,?",
        changes="",
        counters="updates 1",
    ),
    Case(
        name="a repeated update beside a fill",
        steps="P10(n=1,x=·) | P5(n=0,x=a) P10(n=1,x=·)",
        rows="1: 1,a",
        changes="-1: 1,? +1: 1,a",
        counters="updates 1 filled 1",
    ),
    Case(
        name="a truncate between the commands of its epoch",
        steps="P5(n=0,x=a) P10(n=1,x=·) T7",
        rows="1: 1,?",
        changes="+1: 1,?",
        counters="inserts 1 unknown 1 skipped 1",
    ),
    Case(
        name="an update below an earlier truncate, in one epoch with one above it",
        steps="T7 | P5(n=0,x=a) P10(n=1,x=·)",
        rows="1: 1,?",
        changes="+1: 1,?",
        counters="inserts 1 unknown 1",
    ),
)
"""The cases 1 to 35, 41 and 42, and those that random histories have found."""


MERGES = {"all": Upkeep(), "the two newest": Upkeep(-2, 2), "the two oldest": Upkeep(0, 2)}


def with_merges(case: Case, merge: Upkeep) -> list[Step]:
    """Return the steps of a case with a compaction after each of them but the last."""
    steps = case.parsed
    return [*(each for step in steps[:-1] for each in (step, merge)), steps[-1]]


def ordered_by(scope: Scope, version: int, epoch: Epoch) -> list[Command]:
    """Return an epoch's commands with their orders in a scope."""
    if scope is Scope.TABLE:
        return epoch.commands
    return [replace(command, order=(version, command.order)) for command in epoch.commands]
