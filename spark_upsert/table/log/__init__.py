"""The log: immutable versions, and the manifest that they fold into.

`log` commits versions, `reader` proves the newest one, `snapshot` is a pinned version list,
`storage` has the records and `codec` their JSON. `manifest` has the values, `properties` the table
properties.
"""
