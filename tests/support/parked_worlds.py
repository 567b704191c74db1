"""Worlds of routed streams in which tables break and are mended, and what is parked is applied.

A table breaks in three ways: a row that it does not take, a file of it that is damaged, another
table in its place. What its rows mean does not depend on when they are applied, but on their order
by batches alone (`routed_worlds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from spark_upsert.errors import ContentionError, UpsertFlowError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import NAMELESS, DeadLetterTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from tests.support.routed_worlds import (
    ROWS,
    TOPICS,
    Model,
    Row,
    World,
    batch_of,
    content,
    divided,
    routed_options,
    row,
    rows_of,
    transaction,
)
from tests.support.stores import (
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)

FORGIVING = {"onError": "quarantine"}
"""What lets a table take the rows that it did not take."""

STEPS_MAX = 250


def parking_options() -> RoutedOptions:
    """Return options by which tables that fail are parked."""
    return routed_options(onTableError="park")


@dataclass
class ParkedWorld(World):
    """A root whose tables break."""

    options: RoutedOptions = field(default_factory=parking_options)
    broken: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Of each table that is broken: its objects as they were."""
    nameless: int = 0
    unparked: int = 0
    """Rows that were applied later than they came."""
    in_doubt: int = 0
    """Attempts that a fault struck while rows were unparked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # The model takes what the tables take in the end.
        self.model = Model(routed_options(**{"table.last.onError": "quarantine"}))

    def play(self, batches: int) -> None:
        """Write some batches while tables break and are mended; then apply all that is parked."""
        for number in range(batches):
            self.hurt()
            self.meddle()
            self.batch(number)
            self.check(number)
            if self.rng.random() < 0.4:
                self.mend()
                self.unpark()
        self.mend()
        while set(DeadLetterTable(self.store).counts()) - {NAMELESS}:
            self.unpark()
        self.check(batches - 1)
        self.check_past()
        group = GroupTable(self.store).at()
        counts = DeadLetterTable(self.store).counts()
        assert counts.get(NAMELESS, 0) == self.nameless
        assert not any(member.parked for member in group.members.values())

    # -- breaking and mending --------------------------------------------------------

    def hurt(self) -> None:
        """Break a table, perhaps."""
        topic = self.rng.choice(TOPICS)
        own = {path: data for path, data in self.store.objects.items() if path.startswith(topic)}
        if topic in self.broken or not own or self.rng.random() < 0.4:
            return
        self.broken[topic] = own
        for path in own:
            del self.store.objects[path]
        if self.rng.random() < 0.5:
            runs = {path for path in own if "/_log/" not in path}
            hurt = {path: b"" if path in runs else data for path, data in own.items()}
        else:
            other = MemoryStore()
            Table(other).ensure(self.model.tables[topic].log.head().schema)
            hurt = {f"{topic}/{path}": data for path, data in other.objects.items()}
        self.store.objects |= hurt
        forget_runs_and_logs()

    def mend(self) -> None:
        """Put the tables back that are broken, with what has come to them meanwhile."""
        for topic, own in self.broken.items():
            now = {p: d for p, d in self.store.objects.items() if p.startswith(topic)}
            is_same = all(now.get(path) == data for path, data in own.items() if "/_log/" in path)
            for path in now:
                if not is_same:
                    del self.store.objects[path]
            self.store.objects |= own
        self.broken.clear()
        forget_runs_and_logs()

    def meddle(self) -> None:
        if not self.broken:
            super().meddle()

    # -- writing ---------------------------------------------------------------------

    def batch(self, number: int) -> None:
        """Write a batch until it is whole; some rows are not taken, some name no table."""
        rows = rows_of(self.rng)
        bad = [{**row(self.rng, "last"), "id": None} for _ in range(self.rng.random() < 0.3)]
        lost = [{**row(self.rng, "last"), "topic": None} for _ in range(self.rng.random() < 0.2)]
        every = [*rows, *bad, *lost]
        self.rng.shuffle(every)
        faults = self.rng.randrange(3)
        while not self.tried(every, number, is_faulty=faults > 0):
            self.crashes += 1
            faults -= 1
        self.nameless += len(lost)
        named = [each for each in every if each["topic"] is not None]
        self.model.apply(named)
        parked = DeadLetterTable(self.store).counts()
        topics = sorted({each["topic"] for each in named} - parked.keys())
        self.wholes.append({topic: self.model.content(topic) for topic in topics})

    def write(self, root: Store, tasks: Sequence[Sequence[Row]], number: int) -> None:
        """Write a batch; others apply meanwhile what is parked."""
        late, batch = LateRows.REJECT, transaction(number)
        plan = plan_routed(self.options, ROWS, root=root, late_rows=late)
        if self.rng.random() < 0.3:
            self.unpark()
        staged = [
            stage_routed(plan, root, [batch_of(rows)], batch, index, threads=1)
            for index, rows in enumerate(tasks)
        ]
        if self.rng.random() < 0.3:
            self.unpark()
        commit_routed(root, self.options, staged, batch, late_rows=late)

    def tried(self, rows: Sequence[Row], number: int, *, is_faulty: bool) -> bool:
        """Try to write a batch; return whether it is whole now."""
        tasks = divided(self.rng, rows)
        fault = Fault(self.rng.randrange(STEPS_MAX), self.rng.choice(list(Moment)), KilledError)
        root = FaultyStore(self.store, Steps(fault if is_faulty else None))
        with suppress(KilledError, ContentionError):
            self.write(root, tasks, number)
            return True
        return GroupTable(self.store).has(transaction(number))

    # -- applying --------------------------------------------------------------------

    def unpark(self) -> None:
        """Apply what is parked, or die of it."""
        fault = Fault(self.rng.randrange(STEPS_MAX), self.rng.choice(list(Moment)), KilledError)
        is_faulty = self.rng.random() < 0.5
        root = FaultyStore(self.store, Steps(fault if is_faulty else None))
        for topic in sorted(DeadLetterTable(self.store).counts().keys() - {NAMELESS}):
            try:
                done = replay_dead_letters(
                    root, [topic], options=FORGIVING if topic == "last" else {}
                )
            except KilledError:
                self.in_doubt += 1
                return
            except UpsertFlowError:
                assert topic in self.broken, "a table that is not broken does not take its rows"
            else:
                self.unparked += sum(each.rows for each in done)

    # -- looking ---------------------------------------------------------------------

    def check(self, number: int) -> None:
        """Compare all tables with the model that have no parked rows and are not broken."""
        group = GroupTable(self.store).at()
        assert group.batch is not None
        assert group.batch.number == number
        parked = DeadLetterTable(self.store).counts()
        for topic in self.model.tables.keys() - self.broken.keys() - parked.keys():
            table = table_below(self.store, topic)
            assert content(table) == self.model.content(topic), (self.seed, number, topic)
            assert not table.check().findings
            member = group.members.get(topic)  # None: others have made it.
            assert member is None or table.log.version_ref(member.place.version) == member.place

    def check_past(self) -> None:
        """Look at every whole batch once more: tables that took its rows at once have it."""
        group_table = GroupTable(self.store)
        for number, contents in enumerate(self.wholes):
            members = group_table.of_batch(number).members
            for topic, expected in contents.items():
                assert members[topic].batch == number
                found = content(table_below(self.store, topic), members[topic].place.version)
                assert found == expected, (self.seed, number, topic)
