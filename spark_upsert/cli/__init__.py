"""The command ``upsertflow``: inspects a table, and maintains it.

Its libraries are the extra ``cli``: an executor does not need them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the process's arguments."""
    try:
        from spark_upsert.cli.commands import upsertflow
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"The command needs {error.name}: run pip install 'upsertflow[cli]'")
    # Shells that complete it ask by this name, whatever the program file is called.
    upsertflow(prog_name="upsertflow")
