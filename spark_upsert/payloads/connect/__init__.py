"""Kafka Connect's schemas and logical types, in JSON and in Avro."""
