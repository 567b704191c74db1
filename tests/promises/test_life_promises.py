"""P4 between the lives of a query: what the first write has fixed decides who wins for good."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import MergeEngine
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import OptionError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.int64())])

FIRST = {"path": "/unused", "keys": "id", "sequenceBy": "n", "columnList": "id,v"}

OTHERS = {
    "keys": {"keys": "v"},
    "sequenceBy": {"sequenceBy": "v"},
    "sequenceScope": {"sequenceScope": "epoch"},
    "ties": {"ties": "first"},
    "onError": {"onError": "inline"},
}


@pytest.mark.parametrize("seed", range(8))
def test_p4_what_the_first_write_fixed_is_refused_in_later_lives(seed: int) -> None:
    name = random.Random(seed).choice(sorted(OTHERS))
    table = Table(MemoryStore())
    plan = plan_table_write(table, WriteOptions.parse(FIRST), COLUMNS)
    assert plan.base.schema.engine == MergeEngine()
    made = table.ensure(plan.base.schema).schema
    with pytest.raises(OptionError) as caught:
        plan_table_write(table, WriteOptions.parse(FIRST | OTHERS[name]), COLUMNS)
    assert caught.value.fields["option"] == name
    assert plan_table_write(table, WriteOptions.parse(FIRST), COLUMNS).base.schema == made
