"""Run systems through all histories, keep what came out, and write the page of it.

python -m changelog_conformance                    all systems
python -m changelog_conformance delta_rs ducklake  some; the others keep their results
python -m changelog_conformance delta_rs --shrink  and the smallest of each drawn history that goes wrong
python -m changelog_conformance --page             the page of the results that are kept
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from changelog_conformance import generator, histories, oracle, page, peers, runner
from changelog_conformance.shrinking import shrunk

HOME = Path(__file__).resolve().parents[1]
SEEDS = 3
"""Drawn histories of each system: a batch takes Spark a second or two, and each has five."""


def main(arguments: list[str]) -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m changelog_conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("peers", nargs="*", metavar="SYSTEM", help="default: all")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument(
        "--only",
        metavar="HISTORY",
        action="append",
        help="this one, and others that are named so; those that are not keep their results",
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default: {SEEDS}")
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="of a drawn history that goes wrong, look for the smallest that still does",
    )
    parser.add_argument("--results", type=Path, default=HOME / "results")
    parser.add_argument("--out", type=Path, default=HOME.parent / "docs" / "conformance.md")
    parser.add_argument("--cache", type=Path, default=HOME.parent / ".bench")
    told = parser.parse_args(arguments)
    names = {each.name for each in peers.PEERS}
    if unknown := set(told.peers) - names:
        parser.error(f"expected systems of {sorted(names)}, found {sorted(unknown)}")
    drawn = [generator.draw(seed) for seed in range(told.seeds)]
    asked = [
        each for each in (*histories.load(), *drawn) if not told.only or each.name in told.only
    ]
    if not asked:
        parser.error(f"expected a history of {histories.HISTORIES}, found {told.only!r}")
    told.results.mkdir(parents=True, exist_ok=True)
    for peer in () if told.page else peers.PEERS:
        if not told.peers or peer.name in told.peers:
            file = told.results / f"{peer.name}.json"
            result = run(peer, asked, cache=told.cache)
            if told.shrink:
                shrink(peer, drawn, result, cache=told.cache)
            if told.only and file.exists():
                result["histories"] = {**page.load(file)["histories"], **result["histories"]}
            text = json.dumps(result, indent=1, ensure_ascii=False)
            file.write_text(text + "\n", encoding="utf-8")
            print(peer.title, page.summary(result), flush=True)
    results = {
        peer.name: page.load(told.results / f"{peer.name}.json")
        for peer in peers.PEERS
        if (told.results / f"{peer.name}.json").exists()
    }
    told.out.write_text(page.text(results), encoding="utf-8")
    print(told.out)


def run(peer: peers.Peer, asked: Sequence[histories.History], *, cache: Path) -> page.Result:
    """Run a system through histories, and judge what it showed."""
    home = Path(tempfile.mkdtemp(prefix=f"conformance-{peer.name}-"))
    try:
        runner.ask(home, asked)
        try:
            peers.run(peer, home, cache=cache)
        except peers.SetupError as error:
            return {"not_tried": str(error), "versions": {}, "histories": {}}
        observed = json.loads((home / "observed.json").read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    found: dict[str, page.EntryMatches] = {}
    for history in asked:
        if history.name in observed["histories"]:
            seen, refused = runner.observed_of_json(observed["histories"][history.name])
            found[history.name] = page.found(oracle.judge(history, seen), refused)
    return {"not_tried": "", "versions": observed["versions"], "histories": found}


def shrink(
    peer: peers.Peer, drawn: Sequence[histories.History], result: page.Result, *, cache: Path
) -> None:
    """Add to each drawn history that went wrong the smallest that still does."""

    def are_wrong(asked: Sequence[histories.History]) -> list[bool]:
        named = [replace(each, name=str(number)) for number, each in enumerate(asked)]
        found = run(peer, named, cache=cache)["histories"]
        return [_is_wrong(found.get(each.name)) for each in named]

    for history in drawn:
        found = result["histories"].get(history.name)
        if found is not None and _is_wrong(found):
            found["smallest"] = histories.to_json(shrunk(history, are_wrong))["steps"]


def _is_wrong(found: page.EntryMatches | None) -> bool:
    return found is not None and bool(found["rows"] or found["changes"])


if __name__ == "__main__":
    main(sys.argv[1:])
