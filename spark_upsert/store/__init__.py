"""Object storage: where the bytes of a table lie, and the order of durable writes."""

from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import ObjectInfo, ObjectSink, Store
from spark_upsert.store.residence import resident_bytes
from spark_upsert.store.resolve import is_remote, open_store

__all__ = [
    "LocalStore",
    "ObjectInfo",
    "ObjectSink",
    "Store",
    "is_remote",
    "open_store",
    "resident_bytes",
]
