"""The log: immutable versions, folded into a manifest.

`log` commits versions, `reader` proves the newest one, `snapshot` pins a version list, `storage`
has the records, `codec` their JSON, `manifest` the values, `properties` the table properties.
"""
