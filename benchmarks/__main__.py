"""``python -m benchmarks --full``: measure, and write ``docs/benchmarks/report.md``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.contest import Place
from benchmarks.figures import figures, written
from benchmarks.host import ROOT
from benchmarks.measure import machine, quiet
from benchmarks.report.page import write_report
from benchmarks.sections import FULL, QUICK, SECTIONS, TINY
from benchmarks.words import without_places

SIZES = {"quick": QUICK, "full": FULL, "tiny": TINY}


def arguments(given: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    for name, what in (
        ("quick", "minutes (default)"),
        ("full", "an hour and a half, 100 million keys"),
        ("tiny", "seconds a section; checks the harness, measures nothing"),
    ):
        size.add_argument(
            f"--{name}", dest="size", action="store_const", const=name, default="quick", help=what
        )
    parser.add_argument(
        "--only", help=f"some of: {','.join(SECTIONS)}; the others stay as they are"
    )
    parser.add_argument("--report", action="store_true", help="only write the report anew")
    parser.add_argument(
        "--output",
        type=Path,
        help="default: docs/benchmarks, and a folder of its own in there for a form that is not full",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=ROOT / ".bench",
        help="keeps environments, jars, generated rows and each sample (default: .bench)",
    )
    options = parser.parse_args(given)
    if options.output is None:
        # What stands in the repository is a full form; a quick look must not replace it.
        report = ROOT / "docs" / "benchmarks"
        options.output = report if options.size == "full" else report / options.size
    return options


def main(given: list[str]) -> int:
    """Run the sections; one that fails is reported and does not stop the others."""
    options = arguments(given)
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "figures.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if found.get("size") != options.size and not options.report:
        found = {"size": options.size, "machines": {}, "sections": {}}
    names = options.only.split(",") if options.only else list(SECTIONS)
    if not options.report:
        # A run that is ended leaves no tables behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        work = Path(tempfile.mkdtemp(prefix="upsertflow-bench-"))
        place = Place(cache=options.cache.resolve(), work=work, parts=os.cpu_count() or 1)
        samples = place.cache / "samples" / options.size
        samples.mkdir(parents=True, exist_ok=True)
        try:
            for name in names:
                busy = quiet() if options.size != "tiny" else 0.0
                before = time.perf_counter()
                print(f"{name} ...", file=sys.stderr, flush=True)
                try:
                    result = SECTIONS[name](place, SIZES[options.size])
                except Exception:  # noqa: BLE001  the report says what failed
                    traceback.print_exc()
                    result = {"failed": without_places(traceback.format_exc(limit=-2))}
                took = time.perf_counter() - before
                print(f"{name}: {took:.0f} s", file=sys.stderr, flush=True)
                result |= {"took_s": took, "busy_before": busy}
                # After each section: a run that is stopped has not measured for nothing.
                (samples / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
                found["sections"][name] = figures(result)
                found["machines"][name] = machine()
                kept.write_text(written(found) + "\n")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    # As it is read again: by the names, not in the order in which they were measured.
    write_report(json.loads(written(found)), options.output)
    print(options.output / "report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
