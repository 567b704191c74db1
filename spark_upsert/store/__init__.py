"""Object storage: where the bytes of a table lie, and the order of durable writes.

`resolve` opens the store of a path; what is given a store has no need of it.
"""

from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import ObjectInfo, ObjectSink, Store
from spark_upsert.store.residence import resident_bytes

__all__ = ["LocalStore", "ObjectInfo", "ObjectSink", "Store", "resident_bytes"]
