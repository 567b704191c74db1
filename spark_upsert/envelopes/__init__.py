"""Envelopes: how rows say what is inserted, updated and deleted.

Plain rows, change rows, Kafka's records and Debezium's events become commands here. `write_plan`
holds the options of a write against the newest manifest before a row moves.
"""
