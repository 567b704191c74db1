"""The log: immutable versions, and the manifest that they fold into.

`log` commits versions, `reader` proves the newest one, `snapshot` pins a version list, `storage`
has the records, `codec` their JSON, `manifest` the values, `properties` the table properties.
"""
