"""The planner of micro-batches: heads, turns, limits and pressure.

`stream` answers Spark's calls. `heads` and `poller` find new versions, `rate_limit` ends a batch,
`pressure` measures the lag, `ordered` plans exact orders, and `formats` lists the input formats.
"""
