"""The decisions of a stream reader, without Spark: how far a batch goes, and in which splits.

`planner` plans micro-batches over `inputs`. The positions of the inputs make an offset (`offsets`),
and `reads` is what tasks do. Spark's callbacks in `pyspark_upsertflow` only pass calls on.
"""
