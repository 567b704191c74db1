"""What one command does to an entry of its key with an equal order; the rest is in the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import Scope, Ties
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.lookup import find
from spark_upsert.table.write.outcomes import Outcome, classify
from tests.support.model import Command
from tests.support.tables import batch_of, schema_of


@pytest.mark.parametrize(
    ("ties", "command", "outcome", "is_tied"),
    [
        (Ties.LAST, Command("k", 2, 5), Outcome.UPDATE, True),
        (Ties.LAST, Command("k", 1, 5), Outcome.DUPLICATE, False),
        (Ties.LAST, Command("k", 2, 6), Outcome.UPDATE, False),
        (Ties.FIRST, Command("k", 2, 5), Outcome.STALE, True),
        (Ties.FIRST, Command("k", 1, 5), Outcome.DUPLICATE, False),
        (Ties.FIRST, Command("k", 2, 4), Outcome.STALE, False),
        (Ties.FAIL, Command("k", None, 5), Outcome.DELETE, True),
    ],
    ids=str,
)
def test_equal_order_with_another_content_is_a_tie(
    ties: Ties, command: Command, outcome: Outcome, is_tied: bool
) -> None:
    schema = replace(schema_of(Scope.TABLE, key=pa.string()), ties=ties)
    entry, rows = (BatchPart(batch_of(schema, [each])) for each in (Command("k", 1, 5), command))
    commands = Rows(schema, [rows])
    keys = commands.take(["k"], np.array([0]))
    entries = find(schema, [(entry, 1)], hash_keys(keys, seed=schema.hash_seed), keys)
    outcomes = classify(commands, np.array([0]), entries)
    assert (outcomes.kinds[0], bool(outcomes.are_tied[0])) == (outcome, is_tied)
