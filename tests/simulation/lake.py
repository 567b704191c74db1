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
- a table that is fed by the changes holds the rows of all inputs.
"""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from spark_upsert.errors import UpsertFlowError
from spark_upsert.source import at_once, batch, file_input, file_kind, kinds, lookout, table_input
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

STEPS_OF_WALL_S = (0.0, 0.0, 0.2, 3.0, 20.0, 86_400.0, -0.3, -3600.0)


class Lake:
    """One life of some inputs and of a query over them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.ground = Ground(seed)
        self._random = self.ground.random
        self.reader = Reader(self.ground, self._let_others_act)
        self.writers = Writers(self.ground)
        self.keepers = Keepers(self.ground, self.writers, self.reader)
        self.user = User(self.ground, self.reader, self.keepers)
        self._weather: tuple[Fault | None, int | None] = None, None

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
            self._catch_up()
            self.reader.check_end()

    def _act(self) -> None:
        """Do one thing; a fault ends the process of the query."""
        draw = self._random
        self.ground.now.advance(draw.choice([0.0, 0.0, 0.5]))
        if self.options.has_priorities:
            self.ground.wall.advance(draw.choice(STEPS_OF_WALL_S))
        if draw.random() < 0.45:
            self._do_something_else()
        elif draw.random() < 0.08 and len(self.ground.models) < 5:
            self.keepers.create()
        else:
            self._read()

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
        fault = None
        if draw.random() < 0.15:
            kind = draw.choice([KilledError, BrokenError])
            fault = Fault(draw.randrange(20), draw.choice(list(Moment)), kind)
        self._weather = fault, draw.randrange(12) if draw.random() < 0.15 else None
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

    def _go_on(self) -> None:
        reader = self.reader
        reader.query.begin()
        fault, others_in = self._weather
        if reader.query.is_pending:
            reader.process.expect(fault=fault)
            reader.deliver()
        elif self._random.random() < 0.15:
            reader.replay()
        else:
            reader.process.expect(fault=fault, others_in=others_in)
            reader.plan()

    def _let_others_act(self) -> None:
        """Let somebody act between two steps of the query."""
        writers, keepers = self.writers, self.keepers
        self._random.choice([writers.write, writers.write, keepers.compact, keepers.restore])()

    def _catch_up(self) -> None:
        for _ in range(BATCHES_MAX):
            try:
                if self.reader.query.is_pending:
                    self.reader.deliver()
                self.reader.plan()
            except UpsertFlowError as error:
                self.user.mend(error)
                continue
            if not self.reader.query.is_pending:
                return
        raise AssertionError("the query does not catch up")

    @contextmanager
    def _conditions(self) -> Iterator[None]:
        """Let names be drawn from the seed, the lake be the storage, and few inputs be many."""
        names = random.Random(self.seed)
        reader, ground = self.reader, self.ground
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))))
            enter(patch.object(secrets, "randbits", names.getrandbits))
            for module in (kinds, at_once):
                enter(patch.object(module, "ASKED_AT_ONCE", 1))
            for module in (kinds, table_input, batch):
                enter(patch.object(module, "open_store", reader.open_store))
            for module in (kinds, table_input, batch):
                enter(patch.object(module, "open_table", reader.open_table))
            for module in (file_kind, file_input):
                enter(patch.object(module, "open_folder", reader.open_folder))
            enter(patch.object(lookout, "LOOKED_AT_MAX", 0 if ground.is_polled else 300))
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
