"""Envelopes: the meaning of rows as inserts, updates and deletes (docs/envelopes.md).

Plain rows, change rows, Kafka records and Debezium events become commands. `write_plan` checks the
options of a write against the newest manifest before any row is read.
"""
