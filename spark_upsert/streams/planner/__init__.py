"""The planner of micro-batches: heads that are asked, turns, and pressure.

`stream` answers what Spark asks. `heads` learns what came, `pace` says how far the batch goes by
limits and `turns`, `pressure` samples how far behind the stream is, `exact` plans exact orders, and
`kinds` are the formats that inputs may have.
"""
