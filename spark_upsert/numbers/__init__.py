"""Numbers of batches: what each did to its table, how far behind it is, and what means trouble.

`batches` has them as plain values, `sinks` reads what a batch did from the log of its table, and
`totals` adds batches up for Prometheus (`prometheus`) and OpenTelemetry (`telemetry`). Nothing here
knows Spark: a progress report comes in as the mapping that its JSON is.
"""
