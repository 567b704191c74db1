"""One query over the topics of a real broker, under kills: what ``make topics`` finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.host import ROOT

PROGRAM = ROOT / "integration" / "topic_run.py"


def measure(arguments: Sequence[str], program: Path = PROGRAM) -> dict[str, Any]:
    """Run the program, which compares each table with its model.

    Parameters
    ----------
    arguments : sequence of str
        Of the program.
    program : Path, optional

    Returns
    -------
    dict
        ``arguments``, and ``found``: what the program prints last.

    Raises
    ------
    subprocess.CalledProcessError
        Something was lost or doubled, or the program failed; its output is shown as it comes.
    """
    command = [sys.executable, str(program), *arguments]
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    begin = max(at for at, line in enumerate(lines) if line == "{\n")
    return {"arguments": " ".join(arguments), "found": json.loads("".join(lines[begin:]))}
