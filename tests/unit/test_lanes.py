"""Tests that run side by side: what belongs together stays together, and the report is one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import conftest

ROOT = Path(__file__).resolve().parents[2]


def test_files_that_share_a_spark_begin_before_the_longest_and_those_before_others() -> None:
    shared = {
        file.name
        for file in (ROOT / "integration").glob("test_*.py")
        if conftest.lane_of(f"integration/{file.name}") == conftest.SHARED
    }
    assert {"test_batch_read.py", "test_stream_write.py", "test_types.py"} <= shared
    # These start Java themselves, or do without.
    assert shared.isdisjoint({"test_crash.py", "test_deployment.py", "test_gateway.py"})
    for file in conftest.LONGEST:
        assert (ROOT / file).is_file()
        assert conftest.rank("integration/test_types.py") < conftest.rank(file)
        assert conftest.rank(file) < conftest.rank("integration/test_gateway.py")


def test_a_module_of_make_test_that_starts_its_own_processes_gives_the_reason() -> None:
    missing, unneeded = [], []
    for file in sorted((ROOT / "integration").glob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if re.search(r"^pytestmark = .*mark.slow", text, re.MULTILINE):
            continue
        docstring = ast.get_docstring(ast.parse(text)) or ""
        has_reason = re.search(r"^Own processes: \S", docstring, re.MULTILINE) is not None
        is_shared = conftest.lane_of(f"integration/{file.name}") == conftest.SHARED
        if not (is_shared or has_reason):
            missing.append(file.name)
        if is_shared and has_reason:
            unneeded.append(file.name)
    assert not missing, "use the fixture `spark`, or mark the module `slow`, or give the reason"
    assert not unneeded
