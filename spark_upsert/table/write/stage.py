"""Staging (`stage`): a task writes its commands as one durable run and counts their effects.

Nothing is visible until all tasks' files are committed as one `WriteSet`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_upsert.core.precedence import Precedence
from spark_upsert.core.threads import beside, in_order, useful_threads
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.counters import EMPTY
from spark_upsert.table.state.observer import prepare
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.moves import Move, moves_in
from spark_upsert.table.write.outcomes import Outcomes, accepted, count, may_reject, outcomes_of
from spark_upsert.table.write.scratch import Scratch
from spark_upsert.table.write.stash import Stash
from spark_upsert.table.write.ties import examples_of, in_table
from spark_upsert.table.write.write_set import StagedRuns

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation


def stage(
    snapshot: Snapshot,
    commands: Iterable[pa.RecordBatch],
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
) -> StagedRuns:
    """Write one task's commands durably and count their effects."""
    with Stash(snapshot.manifest.schema) as stash:
        for batch in commands:
            stash.add(batch)
        return stage_sealed(
            snapshot, stash, overwrite=overwrite, late_rows=late_rows, threads=threads
        )


def stage_sealed(
    snapshot: Snapshot,
    stash: Stash,
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
) -> StagedRuns:
    """Seal a stash, write the winning commands durably and count their effects (`stage`).

    After an error it may be repeated, on any snapshot.
    """
    files = []
    counters = EMPTY
    examples: dict[str, str] = {}
    moves: list[Move] = []
    schema = snapshot.manifest.schema
    may_lose = may_reject(
        schema,
        low_water=snapshot.manifest.low_water,
        late_rows=late_rows,
        is_overwrite=overwrite,
    )
    reaches_back = Precedence.of(schema).order_reaches_back and not overwrite
    prepared = prepare(snapshot.store, snapshot.manifest)
    with Scratch(snapshot.store, prepared) as scratch:
        for sealed in stash.seal():
            batch = in_table(sealed, snapshot, schema) if reaches_back else sealed
            if schema.engine.multiplicity is not None:
                moves += moves_in(batch)
            rows = Rows(schema, [BatchPart(batch)])
            judge = partial(
                _judged,
                snapshot,
                rows,
                overwrite=overwrite,
                late_rows=late_rows,
                is_by_keys=stash.is_by_keys,
                threads=threads,
                ahead=None if overwrite else prepared,
            )
            # The storage makes them durable while it is found out what they do.
            early = 0 if may_lose else len(rows)
            with beside(partial(scratch.write, batch), rows=early) as written:
                outcomes = judge()
                counters += count(outcomes)
                examples |= examples_of(rows, np.arange(len(rows)), outcomes, late_rows)
                stored = accepted(batch, outcomes)
                if stored is batch:
                    files.append(written())
                elif stored.num_rows:
                    files.append(scratch.write(stored))
                if prepared is not None:
                    prepared.stored(files[-1] if stored is batch and not overwrite else None)
    return StagedRuns(
        base=snapshot.manifest.place,
        files=tuple(files),
        counters=counters + stash.counters,
        examples={**examples, **stash.examples},
        truncated=stash.truncated,
        is_by_keys=stash.is_by_keys,
        logs=stash.logs,
        move=moves[0] if moves else None,
        ahead=None if prepared is None else prepared.made(),
    )


def _judged(
    snapshot: Snapshot,
    rows: Rows,
    *,
    overwrite: bool,
    late_rows: LateRows,
    is_by_keys: bool,
    threads: int,
    ahead: Preparation | None,
) -> Outcomes:
    """Return all commands' effects on a snapshot, computed by key range in parallel."""
    outcomes_in = partial(
        outcomes_of,
        snapshot,
        rows,
        overwrite=overwrite,
        late_rows=late_rows,
        is_by_keys=is_by_keys,
        ahead=ahead,
    )
    useful = useful_threads(len(rows), threads)
    pieces = np.array_split(np.arange(len(rows)), useful)
    return Outcomes.joined(in_order(outcomes_in, pieces, useful))
