"""Object storage: reads, durable writes and conditional puts for a table's objects.

`open` returns the store for a path; other code gets a store passed in.
"""

from spark_upsert.store.local import LocalStore, resident_bytes
from spark_upsert.store.protocol import ObjectInfo, ObjectSink, Store

__all__ = ["LocalStore", "ObjectInfo", "ObjectSink", "Store", "resident_bytes"]
