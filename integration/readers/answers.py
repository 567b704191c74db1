"""The words between a test and a reader: a line of JSON asks, a file of Arrow or an error answers.

Readers run in environments in which nothing of ours is installed, so that this module imports
nothing but pyarrow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

Question = Mapping[str, Any]

MESSAGE_MAX = 2000
"""Characters of an error: plans of a query may be long."""


def answer(kinds: Mapping[str, Callable[[Question], pa.Table]]) -> None:
    """Answer each question of the input, in turn; one that fails does not stop the others.

    Parameters
    ----------
    kinds : mapping of str to callable
        What gives the rows for each ``kind`` of question. The rows go into the file ``to``.
    """
    for line in sys.stdin:
        question = json.loads(line)
        try:
            rows = kinds[question["kind"]](question)
            with pa.OSFile(question["to"], "wb") as file, pa.ipc.new_file(file, rows.schema) as out:
                out.write_table(rows)
            said = {"rows": rows.num_rows}
        except Exception as error:  # noqa: BLE001 - what a reader refuses is an answer, too
            said = {"error": f"{type(error).__name__}: {error}"[:MESSAGE_MAX]}
        # Behind a newline: a progress bar may stand on the line.
        sys.stdout.write(f"\nANSWER {json.dumps(said)}\n")
        sys.stdout.flush()
