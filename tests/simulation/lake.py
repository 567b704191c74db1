"""A small lake: several inputs, one query over all of them, on a store that fails.

Every choice comes from one seeded random source: which options the query has (`lake_options`),
which inputs there are, who acts next, which I/O step fails, and between which two others act.
Writers (`lake_writers`) and keepers (`lake_keepers`) change the tables at any time; inputs come,
go, and are made anew; the query's process (`lake_reader`) dies and begins anew from its offsets,
and its user (`lake_user`) does what an error asks for.

What each input holds is known from dictionaries (`lake_inputs`), what the query must say of it from
a ledger (`lake_ledger`). The promises:

- a batch says what its offsets say: each change of each input exactly once, in its order;
- an exact order is the one that is told row by row, and its numbers have no gap;
- a batch keeps its limits, unless one step alone is larger;
- an input that has something is served within as many batches as there are inputs;
- a batch that may be replayed has the same rows again, in an exact order in the same sequence;
- what is lost is an error, and an error has its reason;
- a batch that waits for rows waits for no longer than it may, and is not made before;
- a table that is fed by the changes holds the rows of all inputs.

Those of who writes to tables with caps, and to readers that cannot keep up, are at the gate
(`lake_gate`).
"""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from spark_upsert.errors import UpsertFlowError
from spark_upsert.streams.inputs import batch
from spark_upsert.streams.inputs import table as table_input
from spark_upsert.streams.planner import formats, poller, rate_limit
from spark_upsert.streams.reads import packing
from spark_upsert.table.retention.lag import report_path
from tests.simulation.lake_gate import Gate
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_keepers import Keepers
from tests.simulation.lake_options import Drawn
from tests.simulation.lake_reader import Reader
from tests.simulation.lake_user import User
from tests.simulation.lake_writers import Writers
from tests.support.notebooks import few_are_many
from tests.support.stores import BrokenError, Fault, KilledError, Moment

ACTS = 40

BATCHES_MAX = 400
"""A query that has not caught up by then never will."""

BATCH_S = 0.2
"""How long a batch takes, where that matters."""

STEPS_OF_WALL_S = (0.0, 0.0, 0.2, 3.0, 20.0, 86_400.0, -0.3, -3600.0)


class Lake:
    """One life of some inputs and of a query over them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.ground = ground = Ground(seed)
        self._random = ground.random
        gate = Gate(ground)
        self.reader = Reader(ground, gate, self._let_others_act)
        self.writers = Writers(ground, gate)
        self.keepers = Keepers(ground, gate, self.writers, self.reader)
        self.user = User(ground, self.reader, self.keepers)
        self._weather: tuple[Fault | None, int | None] = None, None
        ground.while_asleep = self._go_on_while_a_writer_waits

    def __str__(self) -> str:
        return str(self.ground)

    @property
    def options(self) -> Drawn:
        """How the query reads."""
        return self.ground.options

    @property
    def trace(self) -> list[str]:
        """What happened, in order: the same for the same seed."""
        return self.ground.trace

    def run(self) -> None:
        """Live, then catch up and compare what was delivered with what there is."""
        with self._conditions():
            for _ in range(self._random.randint(1, 3)):
                self.keepers.create()
            for _ in range(ACTS):
                self._act()
            self.keepers.bring_back()
            self._weather = None, None
            self.reader.restart()
            self._catch_up(writes=5 if self.options.is_pressed else 0)
            if self.options.is_pressed:
                self.keepers.send_away()
                self.writers.write_all()
                self._catch_up()
            self.reader.check_end()

    def _act(self) -> None:
        """Do one thing; a fault ends the process of the query."""
        draw = self._random
        self.ground.now.advance(draw.choice([0.0, 0.0, 0.5]))
        if self.options.has_priorities:
            self.ground.wall.jump(draw.choice(STEPS_OF_WALL_S))
        if self.options.is_pressed:
            self._do_what_presses()
        if draw.random() < 0.45:
            self._do_something_else()
        elif draw.random() < 0.08 and len(self.ground.models) < 5:
            self.keepers.create()
        else:
            self._read()

    def _do_what_presses(self) -> None:
        dice, keepers = self.ground.dice, self.keepers
        if dice.random() < 0.2:
            dice.choice([keepers.hold, keepers.hold, keepers.press])()
        if (named := self._drawn_to_write()) is not None:
            self.writers.write(named)

    def _do_something_else(self) -> None:
        writers, keepers, draw = self.writers, self.keepers, self._random
        acts = [writers.write] * 6 + [writers.stage, writers.stage, keepers.compact]
        acts += [keepers.compact, keepers.expire, keepers.alter]
        acts += [keepers.bring_back, keepers.bring_back, keepers.name_again]
        rare = [keepers.drop, keepers.make_anew, keepers.remove_input, keepers.restore]
        draw.choice(rare if draw.random() < 0.1 else acts)()

    def _read(self) -> None:
        """Let the query go on, in a weather that is drawn."""
        draw, reader = self._random, self.reader
        if draw.random() < 0.2:
            reader.restart()
            if self.ground.lives.random() < 0.3:
                reader.try_what_is_refused()
        fault = None
        if draw.random() < 0.15:
            kind = draw.choice([KilledError, BrokenError])
            fault = Fault(draw.randrange(20), draw.choice(list(Moment)), kind)
        self._weather = fault, draw.randrange(12) if draw.random() < 0.15 else None
        self._read_in_this_weather()

    def _read_in_this_weather(self) -> None:
        reader = self.reader
        self.ground.is_asked = True
        try:
            self._go_on()
        except (KilledError, BrokenError) as error:
            self.ground.tell(f"the query dies by {type(error).__name__}")
            reader.restart()
        except UpsertFlowError as error:
            has_struck = reader.process.struck
            reader.process.expect()
            self.user.mend(error, has_struck=has_struck)
        finally:
            reader.process.expect()
            self.ground.is_asked = False

    def _go_on_while_a_writer_waits(self) -> None:
        """Let the query go on, which may make room; nobody else writes meanwhile."""
        if not self.ground.is_asked and self.ground.dice.random() < 0.5:
            self._weather = None, None
            self._read_in_this_weather()

    def _go_on(self) -> None:
        reader = self.reader
        reader.query.begin()
        fault, others_in = self._weather
        if reader.query.is_pending:
            reader.process.expect(fault=fault)
            self._deliver()
        elif self._random.random() < 0.15:
            reader.replay()
        else:
            reader.process.expect(fault=fault, others_in=others_in)
            reader.plan()

    def _deliver(self) -> None:
        self.reader.deliver()
        if self.options.is_pressed:
            self.ground.now.advance(BATCH_S)

    def _let_others_act(self) -> None:
        """Let somebody act between two steps of the query."""
        writers, keepers = self.writers, self.keepers
        self._random.choice([writers.write, writers.write, keepers.compact, keepers.restore])()

    def _catch_up(self, *, writes: int = 0) -> None:
        """Read all there is, while writers write so many times."""
        is_patient = False
        for _ in range(BATCHES_MAX):
            try:
                if writes and (named := self._drawn_to_write()):
                    writes, is_patient = writes - 1, False
                    self.writers.write(named)
                if self.reader.query.is_pending:
                    self._deliver()
                self.reader.plan()
            except UpsertFlowError as error:
                self.user.mend(error)
                is_patient = False
                continue
            if not self.reader.query.is_pending:
                if self.options.rows_min is None or is_patient:
                    return
                self.ground.now.advance(600.0)  # Then no batch waits any more.
            is_patient = not self.reader.query.is_pending
        raise AssertionError("the query does not catch up")

    def _drawn_to_write(self) -> str | None:
        """Draw a table that somebody writes to just now, rather one whose reader is pressed."""
        ground = self.ground
        there = ground.objects.objects
        pressed = [name for name in ground.tables() if f"{name}/{report_path('lake')}" in there]
        if ground.dice.random() < (0.5 if pressed else 0.1):
            return ground.dice.choice(pressed or ground.tables())
        return None

    @contextmanager
    def _conditions(self) -> Iterator[None]:
        """Let names be drawn from the seed, the lake be the storage, and few inputs be many."""
        names = random.Random(self.seed)
        reader, ground = self.reader, self.ground
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))))
            enter(patch.object(secrets, "randbits", names.getrandbits))
            enter(
                patch.object(rate_limit, "map_in_order", lambda do, items, threads: map(do, items))
            )
            for module in (formats, packing):
                enter(patch.object(module, "CONCURRENT_REQUESTS", 1))
            for module in (formats, table_input, batch):
                enter(patch.object(module, "open_store", reader.open_store))
            for module in (formats, table_input, batch):
                enter(patch.object(module, "open_table", reader.open_table))
            enter(patch.object(poller, "LOOKED_AT_MAX", 0 if ground.is_polled else 300))
            enter(few_are_many(**ground.bounds))
            yield


def live(seed: int) -> Lake:
    """Live one lake; an error names its seed."""
    lake = Lake(seed)
    try:
        lake.run()
    except (Exception, KilledError) as error:
        error.add_note(f"lake {seed}: {lake}")
        raise
    return lake
