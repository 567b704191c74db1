"""Projects of `upsertflow init`, made as their Makefiles do, in the environment of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / "examples" / "projects"
SECONDS_MAX = 400


def made(
    project: Path, *targets: str, environ: Mapping[str, str] | None = None, **settings: str
) -> str:
    """Make targets of a project, without installing anything; return what they print."""
    roots = os.pathsep.join(str(root) for root in (ROOT, ROOT / "datasource", ROOT / "sink"))
    given = {"BIN": str(Path(sys.executable).parent), **settings}
    done = subprocess.run(
        ["make", "--old-file=.venv/installed", *targets, *(f"{k}={v}" for k, v in given.items())],
        cwd=project,
        env={**(environ or os.environ), "PYTHONPATH": roots},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
    done.check_returncode()
    return done.stdout
