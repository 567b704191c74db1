"""What a stream reader decides, without Spark: how far a batch goes, and in which splits.

`planner` plans micro-batches over `inputs`, whose positions make an offset (`offsets`), and `reads`
is what tasks do. Spark's callbacks in `pyspark_upsertflow` only pass on.
"""
