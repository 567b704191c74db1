"""Runs the scenarios beside this file.

A scenario begins with the directive ``table`` and is named by the comment above it. It is a
sequence of blocks: a directive with its options, lines of input, ``----``, lines of output. A
block ends at an empty line; lines that begin with ``#`` are comments.

A command is written ``key=value #order``; ``∅`` as value deletes the key, and a comma
separates the columns of a key or of an order. ``k[0..9]=v`` stands for ten keys. Names of
files and checksums are printed as ``*``.

=========================  ==================================================================
directive                  input and output
=========================  ==================================================================
``table``                  makes a table; ``scope``, ``keys`` and ``order`` (numbers of
                           columns), ``deletes`` (``gone``: rows without values are marked as
                           deletes; ``none``: nothing is; ``null``: ``nullsAsDeletes``),
                           ``retention`` (epochs for which deletes are remembered), ``ties``
``epoch``                  commands, with ``batch`` and ``task`` as separators; prints the
                           version and the counters that are not zero. ``transaction=w/7``,
                           ``overwrite=yes``, ``unordered=yes``
``stage name=x``           as ``epoch``, but only staged; ``commit name=x`` makes it visible
``rows``                   prints the snapshot; ``version=n``
``changes``                prints ``(key, value, version, diff)``; ``from``, ``to`` (exclusive),
                           ``show`` (none, dropCarryovers, netChanges)
``tally``                  prints how many changes of each kind there are
``compact``                merges all runs, or with ``only=due`` what is due; prints the version
``check``                  prints what a verification of the table finds
``restart``                opens the table again, as another process would
``damage version=n``       overwrites the middle of that version's run
=========================  ==================================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import PROPERTY
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import make_table

NOTHING = "∅"
MERGES_MAX = 20
"""More rounds of merges on a table of a few rows are a loop."""

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@dataclass(frozen=True)
class Block:
    """One directive with its input and the output that it must have."""

    line: int
    name: str
    options: dict[str, str]
    lines: list[str]
    expected: list[str]


@dataclass(frozen=True)
class Scenario:
    """Some blocks upon a table of their own."""

    file: Path
    title: str
    blocks: list[Block]

    def __str__(self) -> str:
        return f"{self.file.stem.replace('_', ' ')}: {self.title}"


def scenarios_of(file: Path) -> list[Scenario]:
    """Return the scenarios of a file: each begins where a table is made."""
    lines = file.read_text().splitlines()
    found: list[Scenario] = []
    for block in blocks_of(file.read_text()):
        if block.name == "table":
            found.append(Scenario(file, _title(lines, block.line), []))
        found[-1].blocks.append(block)
    return found


def _title(lines: list[str], line: int) -> str:
    """Return the first sentence of the comment that a block begins with, or that is above it."""
    own = list(takewhile(lambda text: text.startswith("#"), lines[line - 1 :]))
    above = dropwhile(lambda text: not text.startswith("#"), reversed(lines[: line - 1]))
    comment = own or list(takewhile(lambda text: text.startswith("#"), above))[::-1]
    return " ".join(text.removeprefix("#").strip() for text in comment).split(". ")[0].rstrip(".")


def blocks_of(text: str) -> Iterator[Block]:
    start, lines = 0, [*text.splitlines(), ""]
    for number, line in enumerate(lines):
        if line.strip():
            continue
        body = [each.strip() for each in lines[start:number] if not each.startswith("#")]
        if body:
            yield _block(start + 1, body)
        start = number + 1


def _block(line: int, body: list[str]) -> Block:
    assert "----" in body, f"line {line}: no ---- in the block '{body[0]}'"
    cut = body.index("----")
    name, *options = body[0].split()
    pairs = dict(option.split("=", 1) for option in options)
    return Block(line, name, pairs, body[1:cut], body[cut + 1 :])


class Runner:
    """Carries out the directives of one scenario."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.staged: dict[str, WriteSet] = {}
        self.deletes = "gone"

    def run(self, block: Block) -> list[str]:
        """Return what a block prints."""
        directive = getattr(self, f"do_{block.name}", None)
        assert directive is not None, f"line {block.line}: unknown directive '{block.name}'"
        try:
            printed: list[str] = directive(block.lines, **block.options)
        except UpsertFlowError as error:
            message = re.sub(r"[0-9a-f]{8,32}", "*", error.message.splitlines()[0])
            return [f"error {error.code}: {message}"]
        return printed or ["(nothing)"]

    # -- directives ------------------------------------------------------------------

    def do_table(
        self,
        lines: Sequence[str],
        scope: str = "table",
        keys: str = "1",
        order: str = "1",
        deletes: str = "gone",
        retention: str = "",
        ties: str = "last",
    ) -> list[str]:
        names = [f"k{index}" for index in range(int(keys))]
        columns = pa.schema([pa.field(name, pa.string()) for name in [*names, "v"]])
        fields = (
            [] if scope == "arrival" else [pa.field(f"o{i}", pa.int64()) for i in range(int(order))]
        )
        schema = TableSchema.of(
            columns,
            keys=names,
            order=fields,
            scope=Scope(scope),
            hash_seed=1,
            ties=Ties(ties),
        )
        properties = {PROPERTY: f"{retention} epochs"} if retention else None
        self.table = make_table(self.store, schema, properties=properties)
        self.schema = schema
        self.deletes = deletes
        return ["version 0"]

    def do_epoch(
        self,
        lines: Sequence[str],
        transaction: str = "",
        overwrite: str = "",
        unordered: str = "",
    ) -> list[str]:
        return self._commit(self._stage(lines, transaction, overwrite, unordered))

    def do_stage(
        self,
        lines: Sequence[str],
        name: str,
        transaction: str = "",
        overwrite: str = "",
        unordered: str = "",
    ) -> list[str]:
        self.staged[name] = self._stage(lines, transaction, overwrite, unordered)
        return [f"staged upon version {self.staged[name].base.manifest.version}"]

    def do_commit(self, lines: Sequence[str], name: str) -> list[str]:
        return self._commit(self.staged[name])

    def do_rows(self, lines: Sequence[str], version: str = "") -> list[str]:
        rows = self.table.snapshot(int(version) if version else None).to_pylist()
        return sorted(f"{self._key(row)}={_shown(row['v'])}" for row in rows)

    def do_changes(self, lines: Sequence[str], show: str = "none", **span: str) -> list[str]:
        return [
            f"({self._key(row)},{_shown(row['v'])},{row['_commit_version']},{row['_diff']:+d})"
            for row in self._changes(show, span)
        ]

    def do_tally(self, lines: Sequence[str], show: str = "none", **span: str) -> list[str]:
        kinds = Counter(row["_change_type"] for row in self._changes(show, span))
        return [f"{kind}: {count}" for kind, count in sorted(kinds.items())]

    def do_compact(self, lines: Sequence[str], only: str = "") -> list[str]:
        for _ in range(MERGES_MAX):
            jobs = self.table.compaction_jobs(full=not only)
            merges = [compact_runs(self.store, self.table.log.head(), job) for job in jobs]
            if not self.table.commit_compactions(merges) or not only:
                head = self.table.log.head()
                return [f"version {head.version}, runs {len(head.slices)}"]
        return ["never ends"]

    def do_check(self, lines: Sequence[str]) -> list[str]:
        return [re.sub(r"[0-9a-f]{8,32}", "*", str(each)) for each in self.table.check().findings]

    def do_restart(self, lines: Sequence[str]) -> list[str]:
        forget_runs_and_logs()
        self.table = Table(self.store)
        return [f"version {self.table.log.head().version}"]

    def do_damage(self, lines: Sequence[str], version: str) -> list[str]:
        path = self.table.log.commit(int(version)).added[0].path
        data = bytearray(self.store.objects[path])
        middle = len(data) // 2
        data[middle - 200 : middle + 200] = bytes(400)
        self.store.objects[path] = bytes(data)
        forget_runs_and_logs()
        return ["damaged"]

    # -- parts -----------------------------------------------------------------------

    def _stage(
        self, lines: Sequence[str], transaction: str, overwrite: str, unordered: str
    ) -> WriteSet:
        base = self.table.at()
        tasks: list[list[list[dict[str, object]]]] = [[[]]]
        for line in lines:
            if line == "task":
                tasks.append([[]])
            elif line == "batch":
                tasks[-1].append([])
            else:
                tasks[-1][-1] += self._rows_of(line)
        writer, _, number = transaction.partition("/")
        return WriteSet(
            base=base,
            staged=tuple(
                stage(base, [self._commands(b) for b in task if b], overwrite=bool(overwrite))
                for task in tasks
            ),
            transactions=(Transaction(writer=writer, number=int(number)),) if transaction else (),
            overwrite=bool(overwrite),
            allow_unordered=bool(unordered),
        )

    def _rows_of(self, line: str) -> Iterator[dict[str, object]]:
        command, _, order = line.partition(" #")
        span = re.search(r"\[(\d+)\.\.(\d+)\]", command)
        if span:
            for number in range(int(span[1]), int(span[2]) + 1):
                plain = command.replace(span[0], str(number))
                yield from self._rows_of(f"{plain} #{order}" if order else plain)
            return
        key, _, value = command.partition("=")
        row: dict[str, object] = {"v": None if value.strip() == NOTHING else value.strip()}
        for index, part in enumerate(key.split(",")):
            row[f"k{index}"] = None if part == NOTHING else part
        for index, part in enumerate(order.split(",") if order else []):
            row[f"o{index}"] = int(part)
        row["gone"] = row["v"] is None
        yield row

    def _commands(self, rows: Sequence[dict[str, object]]) -> pa.RecordBatch:
        fields = [*self.schema.columns, *self.schema.order, pa.field("gone", pa.bool_())]
        batch = pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(fields))
        envelope = UpsertEnvelope(
            schema=self.schema,
            sources={name: name for name in self.schema.columns.names},
            order=tuple(field.name for field in self.schema.order),
            deletes="gone" if self.deletes == "gone" else None,
            nulls_as_deletes=self.deletes == "null",
        )
        return envelope.commands(batch)

    def _commit(self, epoch: WriteSet) -> list[str]:
        commit: Commit | None = self.table.commit(epoch)
        if commit is None:
            return ["in the table already"]
        counters = Counters.from_json(commit.counters)
        assert counters.is_balanced
        used = [f"{name}={n}" for name, n in counters.to_json().items() if n]
        return [" ".join([f"version {commit.version}:", *used])]

    def _changes(self, show: str, span: dict[str, str]) -> list[dict[str, object]]:
        options = ChangeOptions(
            columns=tuple(self.schema.columns.names), deduplication=Deduplication(show)
        )
        lower = int(span.get("from", 1))
        upper = int(span.get("to", self.table.log.head().upper))
        found = self.table.iter_changes(lower, upper, options)
        rows = [row for batch in found for row in batch.to_pylist()]
        return sorted(rows, key=lambda r: (r["_commit_version"], self._key(r), r["_diff"]))

    def _key(self, row: dict[str, object]) -> str:
        return ",".join(_shown(row[key]) for key in self.schema.keys)


def _shown(value: object) -> str:
    return NOTHING if value is None else str(value)


SCENARIOS = [scenario for file in FILES for scenario in scenarios_of(file)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario) -> None:
    runner = Runner()
    for block in scenario.blocks:
        printed = runner.run(block)
        assert printed == block.expected, f"{scenario.file.name}:{block.line}: {block.name}"


def test_there_are_scenarios_each_with_a_name_of_its_own() -> None:
    assert len(FILES) >= 8
    names = [str(scenario) for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(scenario.title for scenario in SCENARIOS)


def test_a_block_is_read_as_written() -> None:
    [block] = blocks_of("# why\nepoch transaction=w/1\nk=a #1\n----\nversion 1:\n")
    assert (block.name, block.options) == ("epoch", {"transaction": "w/1"})
    assert (block.lines, block.expected) == (["k=a #1"], ["version 1:"])


def test_an_unknown_directive_is_an_error() -> None:
    with pytest.raises(AssertionError, match="unknown directive 'epohc'"):
        Runner().run(Block(1, "epohc", {}, [], []))
