"""The planning and reading of streams, without Spark: batch ends, splits and their rows.

`planner` plans micro-batches over `inputs`, `offsets` stores positions, and `reads` is the work of
tasks. Spark's callbacks in `pyspark_upsertflow` only pass calls on.
"""
