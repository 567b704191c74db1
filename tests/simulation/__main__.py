"""Replay one seed with its trace, or live many worlds.

python -m tests.simulation --seed 17
python -m tests.simulation --seeds 100000 --first 2000
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation.world import World, simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="live this world and print its trace")
    parser.add_argument("--seeds", type=int, default=2000, help="how many worlds to live")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    if options.seed is not None:
        world = World(options.seed)
        try:
            world.run()
        finally:
            sys.stdout.write("\n".join(world.trace) + "\n")
        return 0
    for seed in range(options.first, options.first + options.seeds):
        simulate(seed)
        if seed % 500 == 499:
            sys.stdout.write(f"{seed + 1 - options.first} worlds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
