"""Where rows go, told by a loop over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_upsert.core.path_template import Template
from spark_upsert.routed.router import Router

Values = tuple[str | None, ...]


def check_routes(
    router: Router,
    template: Template,
    batch: pa.RecordBatch,
    values: Sequence[Values],
    names_folder: Callable[[Values], bool],
) -> None:
    """Route a batch: each row goes where its own values lead, and no route is without rows.

    Parameters
    ----------
    batch : pyarrow.RecordBatch, shape (n,)
        Its column ``at`` numbers the rows.
    values : sequence of tuple, length n
        Of each row, the values of the template's columns.
    names_folder : callable
        Whether values can be the name of a folder.
    """
    expected: dict[Values, list[int]] = defaultdict(list)
    for at, own in zip(batch.column("at").to_pylist(), values, strict=True):
        expected[own].append(at)
    routed = router.route(batch)
    found = [(route.values, rows.column("at").to_pylist()) for route, rows in routed.split()]
    assert dict(found) == expected
    assert len(found) == len(expected)
    assert [routed.routes[code].values for code in routed.codes] == list(values)
    for route in routed.routes:
        has_folder = names_folder(route.values)
        assert (route.folder is not None) is (route.problem is None) is has_folder
        if route.folder is not None:
            assert template.try_values(route.folder) == route.values
