"""Measure upsertflow and its peers, in turn, on the same rows: `python -m benchmarks`."""
