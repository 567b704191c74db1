"""A kept table: the contributions of a grouped view, in the columns that tell them apart.

Each entry is the sum of the rows' contributions to it. Part 0 is the group itself; part ``i`` has
an entry for each value of the ``i``-th column of which the smallest or greatest is wanted. One more
entry, the *marker*, says up to which position of the view's inputs the table is:

===========  =======  ==========================================================================
column       type     meaning
===========  =======  ==========================================================================
*group*               the columns of the group
``_part``    int32    0 the group, ``i`` a value of it, `MARKER_PART` the marker; never null
``_v<i>``    any      the value; null but in part ``i``
``n``        int64    how many rows are behind the entry
*sums*                as `views.groups.grouping.Grouping` says
``_from``    string   of the marker: the position before the newest step
``_to``      string   of the marker: the position behind it
===========  =======  ==========================================================================

All but the last two are the key or sums, so that the engine ``aggregation`` folds them. The marker
comes in the same epoch as the contributions of its step, hence a table is at one position at every
version, and takes each step once (`table.write.moves`).
"""

PART = "_part"
FROM = "_from"
TO = "_to"

MARKER_PART = -1
GROUP_PART = 0


def value_column(part: int) -> str:
    """Return the name of the column that holds the values of a part."""
    return f"_v{part}"
