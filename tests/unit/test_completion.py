"""`upsertflow completion`: what a shell that has read it completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETED = """
eval "$(upsertflow completion bash)"
complete -p upsertflow > /dev/null || exit 3
COMP_WORDS=({words}); COMP_CWORD={last}
_upsertflow_completion upsertflow
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(words: str, folder: Path) -> list[str]:
    """Return what bash offers behind some words."""
    program = folder / "upsertflow"
    code = "from spark_upsert.cli import main; main()"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    script = COMPLETED.format(words=words, last=len(words.split()) - 1)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    commands = completed("upsertflow exp", tmp_path)
    assert {"expire", "explain"} <= {*commands}
    assert "info" not in commands
    assert "--retain-versions" in completed("upsertflow expire --ret", tmp_path)
