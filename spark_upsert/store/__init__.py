"""Object storage: where the bytes of a table lie, and the order of durable writes.

`resolve` opens the store of a path; what is given a store has no need of it.
"""

from spark_upsert.store.local import LocalStore, resident_bytes
from spark_upsert.store.protocol import ObjectInfo, ObjectSink, Store

__all__ = ["LocalStore", "ObjectInfo", "ObjectSink", "Store", "resident_bytes"]
