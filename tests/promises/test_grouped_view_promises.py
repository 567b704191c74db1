"""Groups over any plan: what is kept of them is what plain Python makes of the plan's rows.

Random plans, random columns that group, random steps, some of several tables at once; steps come
again, the kept table is compacted. The long form: as of
`test_view_promises`.
"""

from __future__ import annotations

import random

from spark_upsert.errors import UpsertFlowError
from spark_upsert.views.grouping import contributions
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.relation import Step, changes_of
from tests.promises.test_view_promises import RUNS, advanced
from tests.support.grouped import expected, kept_in_memory, position, shown
from tests.support.seeds import seeds
from tests.support.view_plays import World, rows_of
from tests.support.view_trees import random_epoch, random_group


def play(chance: random.Random) -> None:
    world = World(chance)
    for _ in range(chance.randint(0, 8)):
        world.apply(random_epoch(chance, list(world.shapes)))
    relation, grouping, group = random_group(chance, world.open, world.known_versions)
    kept = kept_in_memory(grouping)
    at = {path: world.known_versions(path)[-1] for path in dict.fromkeys(relation.paths)}
    pairs = Pairs.of_inserts(relation.scan(at))
    for number in range(5):
        step = contributions(grouping, pairs)
        lower, upper = position(number - 1), position(number)
        assert kept.apply(step, lower=lower, upper=upper)
        rows = [tuple(r.values()) for r in rows_of(group.input, world.contents(at))]
        assert shown(grouping, kept.rows()) == expected(grouping, rows)
        if chance.random() < 0.3:
            kept.table.compact(full=True)
            assert not kept.apply(step, lower=lower, upper=upper)
            assert shown(grouping, kept.rows()) == expected(grouping, rows)
        end = {**at, **dict(advanced(chance, world, relation))}
        pairs = changes_of(relation, Step(at, end))
        at = end


@seeds(4)
def test_p2_what_is_kept_of_groups_is_the_batch_query(seed: int) -> None:
    for life in range(seed * RUNS // 12, (seed + 1) * RUNS // 12):
        try:
            play(random.Random(life))
        except (AssertionError, UpsertFlowError) as error:
            error.add_note(f"life {life}")
            raise
