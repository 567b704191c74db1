"""The ``debezium`` envelope: change events, parsed already or in Kafka's records."""
