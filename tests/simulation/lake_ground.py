"""What all in a lake share: its dice, its clocks, its objects, and its inputs by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_upsert.store.open import PrefixStore
from spark_upsert.table.table import Table
from tests.simulation.lake_inputs import TableModel
from tests.simulation.lake_options import Drawn
from tests.support.clocked import ClockedStore, Now

BEGINNING_S = 1_000_000_000.0


class Wall:
    """The clock of the process that plans: another one than that of those who write."""

    def __init__(self, now: Now, *, follows: bool) -> None:
        self._now = now if follows else Now(now())
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return self._now() + self._ahead_s

    def jump(self, seconds: float) -> None:
        """Go ahead or back."""
        self._ahead_s += seconds


@dataclass
class Ground:
    """A lake without anybody in it: all that is drawn before anything happens."""

    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = self.random = random.Random(self.seed)
        self.now = Now(BEGINNING_S)
        self.objects = ClockedStore(self.now)
        self.dice = random.Random(f"pressure of {self.seed}")
        """Draws what concerns caps, pressure and waits: what it draws changes nothing else."""
        self.options = Drawn(draw, self.dice)
        self.lives = random.Random(f"lives of {self.seed}")
        """Draws what the user of the query changes when it starts again."""
        self._shown = random.Random(f"what lives of {self.seed} are shown")
        self.wall = Wall(self.now, follows=self.options.has_age)
        """By which is told since when an input waits: it may stand still, and jump."""
        self.slept_s = 0.0
        """How long the write has waited that is under way."""
        self.while_asleep: Callable[[], None] = lambda: None
        self.is_asked = False
        """Whether the query is at work: no time passes then, or it would have looked for long."""
        self.models: dict[str, TableModel] = {}
        self._observed: dict[str, Table] = {}
        self.gone: dict[str, dict[str, bytes]] = {}
        """The objects of tables that were dropped."""
        self.named: list[str] = []
        """The inputs that the options name, in their order."""
        self.bounds = {
            "inputs": draw.choice([0, 1, 1, 2, 300]),
            "delta": draw.choice([0, 1, 3]),
            "kept": draw.choice([2, 3, 5]),
        }
        is_named = self.options.pattern is None
        self.is_polled = is_named and random.Random(-1 - self.seed).random() < 0.5
        """Whether heads are learnt beside planning (new tables would be found later then)."""
        self.has_sink = self.options.is_feed and draw.random() < 0.5

    def __str__(self) -> str:
        return f"{self.options} over {self.named or self.options.pattern}"

    def change_options(self) -> None:
        """Draw other options for the next life of the query."""
        if self.lives.random() < 0.5:
            self.options.change(self.lives)
            self.options.change_what_is_shown(self._shown, has_sink=self.has_sink)
            self.tell(f"the next life reads by {self.options}")

    def is_there(self, name: str) -> bool:
        """Return whether an input is a table that is there."""
        return name not in self.gone and name in self.models

    def tell(self, event: str) -> None:
        """Add something that happened to the trace."""
        self.trace.append(event)

    def table(self, name: str) -> Table:
        """Return a table as a process finds it that has seen nothing, and that has no faults."""
        return Table(PrefixStore(self.objects, name), clock=self.now, sleep=self._sleep)

    def observed(self, name: str) -> Table:
        """Return a table as somebody has it who looks at it all the time."""
        if name not in self._observed:
            self._observed[name] = self.table(name)
        return self._observed[name]

    def remove(self, name: str) -> dict[str, bytes]:
        """Remove the objects of a table; returns them."""
        paths = [path for path in self.objects.objects if path.startswith(f"{name}/")]
        found = {path: self.objects.objects[path] for path in paths}
        for path in paths:
            self.objects.delete(path)
        self._observed.pop(name, None)
        return found

    def _sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now.advance(seconds)
        self.while_asleep()

    def model(self, name: str) -> TableModel:
        """Return what a table holds."""
        return self.models[name]

    def present(self) -> list[str]:
        """Return the inputs that the query should have, in their order."""
        if self.options.pattern is None:
            return self.named
        return sorted(name for name in self.models if name not in self.gone)

    def tables(self) -> list[str]:
        """Return the tables that are there."""
        return [name for name in self.models if name not in self.gone]

    def any_table(self) -> str:
        """Draw a table that is there."""
        return self.random.choice(self.tables())

    def any_input(self) -> str:
        """Draw an input that is there."""
        return self.random.choice([name for name in self.models if name not in self.gone])

    def first_changes(self, name: str) -> int:
        """Return the oldest version of an input whose changes can be read."""
        if name in self.gone:
            return 0
        return self.observed(name).log.head().first_changes
