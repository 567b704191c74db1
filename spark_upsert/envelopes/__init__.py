"""Envelopes: the meaning of rows as inserts, updates and deletes (docs/envelopes.md).

Plain rows, change rows, Kafka records and Debezium events become commands. `write_plan` checks
write options against the newest manifest before any row is read.
"""
