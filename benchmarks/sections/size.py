"""How much of everything a run measures."""

from __future__ import annotations

from dataclasses import dataclass

M = 1_000_000


K = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything; the quick form is a matter of minutes."""

    table: int
    """Keys where a peer is measured against."""
    far_table: int
    """The same for peers on a Spark of their own."""
    slow_table: int
    """The same for peers that take minutes per batch."""
    tables: tuple[int, ...]
    """Sizes over which the cost of a batch should stay."""
    rounds: int
    epochs: int
    consumers: tuple[int, ...]
    behind: int
    """Epochs that a stream has not read."""
    merged: int
    """Rows that the bare merge hands on."""
    split_keys: tuple[int, ...]
    """Keys of tables that are read as one split."""
    inputs: tuple[int, ...]
    """Tables of one query, ascending."""
    watched: tuple[int, ...]
    """Tables of one query that are looked at beside planning: more than 300."""
    queries: tuple[int, int]
    """Queries of one table each that run at once."""
    appends: int
    """Of all threads together."""
    commits: int
    """Of one row each."""
    flooded: tuple[int, int]
    """Tables of one query of which three are flooded, and for how many seconds it is watched."""
    routed: tuple[int, ...]
    """Tables that one write goes to, ascending."""
    each: int
    """So many tables at most get a query or a MERGE each; of 1 000 that takes twenty minutes."""
    topics: tuple[str, ...]
    """What the program of a thousand topics is told."""
    wide: tuple[int, ...]
    """Columns of a table of few rows, ascending."""
    bucket_tables: tuple[int, ...]
    """Row counts for tables in a bucket, ascending."""
    manifest_files: tuple[int, ...]
    """Made-up files of a table, ascending."""
    slow_s: float
    """How long a query is watched whose consumer is slow, or that has nothing to do: a fifth."""


QUICK = Size(
    table=10 * M,
    far_table=M,
    slow_table=100 * K,
    tables=(100 * K, M, 10 * M),
    rounds=3,
    epochs=2_000,
    consumers=(1, 4),
    behind=10 * K,
    merged=4 * M,
    split_keys=(K, 50 * K, M),
    inputs=(1, 10, 100),
    watched=(1 * K,),
    queries=(4, 16),
    appends=320,
    commits=100,
    flooded=(300, 60),
    routed=(10, 100, 1_000),
    each=25,
    topics=("--topics=200", "--new=5", "--minutes=1.5", "--rate=60000", "--kills=1"),
    wide=(1 * K, 3 * K, 10 * K),
    bucket_tables=(200 * K, 2 * M),
    manifest_files=(K, 10 * K),
    slow_s=15,
)


FULL = Size(
    table=10 * M,
    far_table=10 * M,
    slow_table=100 * K,
    tables=(100 * K, M, 10 * M, 100 * M),
    rounds=5,
    epochs=2_000,
    consumers=(1, 4, 16),
    behind=10 * K,
    merged=4 * M,
    split_keys=(K, 50 * K, M),
    inputs=(1, 10, 100, 1_000),
    watched=(1 * K, 10 * K),
    queries=(16, 64),
    appends=320,
    commits=100,
    flooded=(1 * K, 120),
    routed=(10, 100, 1_000),
    each=250,
    topics=("--seed=7", "--minutes=5", "--kills=3"),
    wide=(1 * K, 3 * K, 10 * K),
    bucket_tables=(2 * M, 20 * M, 200 * M),
    manifest_files=(K, 10 * K, 100 * K, M),
    slow_s=30,
)


TINY = Size(
    table=20 * K,
    far_table=20 * K,
    slow_table=5 * K,
    tables=(10 * K, 20 * K),
    rounds=2,
    epochs=20,
    consumers=(1, 2),
    behind=100,
    merged=20 * K,
    split_keys=(100, K),
    inputs=(1, 4),
    watched=(310,),
    queries=(1, 2),
    appends=64,
    commits=3,
    flooded=(8, 4),
    routed=(2, 3),
    each=2,
    topics=("--topics=5", "--new=1", "--minutes=0.2", "--rate=3000", "--kills=0"),
    wide=(10, 20),
    bucket_tables=(20 * K, 40 * K),
    manifest_files=(100,),
    slow_s=2,
)
