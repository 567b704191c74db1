"""Replay one seed with its trace, or live many worlds.

python -m tests.simulation --seed 17
python -m tests.simulation --seeds 100000 --first 5000
python -m tests.simulation --losses 500
python -m tests.simulation --schema-changes --seeds 2000
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import schema_changes, world
from tests.simulation.losses import finding_after_losses
from tests.simulation.world import World


def live_all(seeds: range, finding: Callable[[int], str | None], *, jobs: int) -> int:
    """Live many worlds; returns in how many something went wrong."""
    failed = 0
    # Spawned, because Arrow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for seed, wrong in zip(seeds, pool.map(finding, seeds, chunksize=20), strict=True):
            if wrong is not None:
                failed += 1
                sys.stdout.write(f"world {seed}:\n{wrong}\n")
            lived = seed + 1 - seeds.start
            if lived % 500 == 0 or lived == len(seeds):
                sys.stdout.write(f"{lived} worlds, {failed} with a finding\n")
                sys.stdout.flush()
    return failed


def lose_all(count: int, first: int, *, jobs: int) -> int:
    """Lose so many objects of worlds; returns in how many worlds something went wrong."""
    failed = lost = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for start in itertools.count(first, 10 * jobs):
            seeds = range(start, start + 10 * jobs)
            for seed, (losses, wrong) in zip(
                seeds, pool.map(finding_after_losses, seeds), strict=True
            ):
                lost += losses
                if wrong is not None:
                    failed += 1
                    sys.stdout.write(f"losses of world {seed}:\n{wrong}\n")
            sys.stdout.write(f"{lost} lost objects, {failed} worlds with a finding\n")
            sys.stdout.flush()
            if lost >= count or failed:
                return failed
    raise AssertionError("the seeds do not end")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, help="live this world and print its trace")
    parser.add_argument("--seeds", type=int, default=5000, help="how many worlds to live")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--losses", type=int, help="lose so many objects of worlds")
    parser.add_argument(
        "--schema-changes",
        action="store_true",
        help="live histories of a table whose schema another process changes",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    options = parser.parse_args()
    if options.losses is not None:
        return 1 if lose_all(options.losses, options.first, jobs=options.jobs) else 0
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        finding = schema_changes.finding if options.schema_changes else world.finding
        return 1 if live_all(seeds, finding, jobs=options.jobs) else 0
    if options.schema_changes:
        sys.stdout.write("\n".join(schema_changes.live(options.seed).trace) + "\n")
        return 0
    lived = World(options.seed)
    try:
        lived.run()
    finally:
        sys.stdout.write("\n".join(lived.trace) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
