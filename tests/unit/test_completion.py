"""`upsertflow completion`: what a shell that has read it completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELLS = [shell for shell in ("bash", "zsh", "fish") if shutil.which(shell)]
"""Those of this machine; bash is the one that every machine of the tests has."""

COMPLETED = {
    "bash": """
eval "$(upsertflow completion bash)"
complete -p upsertflow > /dev/null || exit 3
COMP_WORDS=({words}); COMP_CWORD={last}
_upsertflow_completion upsertflow
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": """
upsertflow completion fish | source
complete --do-complete '{words}'
""",
    # Its completion needs a terminal: what the function asks for is asked here.
    "zsh": """
upsertflow completion zsh | zsh -n || exit 3
COMP_WORDS='{words}' COMP_CWORD={last} _UPSERTFLOW_COMPLETE=zsh_complete upsertflow
""",
}


def completed(shell: str, words: str, folder: Path) -> list[str]:
    """Return what a shell offers behind some words, first words of lines."""
    program = folder / "upsertflow"
    code = "from spark_upsert.cli import main; main()"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    script = COMPLETED[shell].format(words=words, last=len(words.split()) - 1)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    assert {"expire", "explain"} <= {*completed(shell, "upsertflow exp", tmp_path)}
    assert "info" not in completed(shell, "upsertflow exp", tmp_path)
    assert "--retain-versions" in completed(shell, "upsertflow expire --ret", tmp_path)


def test_this_machine_has_bash() -> None:
    assert "bash" in SHELLS
