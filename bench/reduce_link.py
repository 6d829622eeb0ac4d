#!/usr/bin/env python3
"""Runs `thinreduce bench reduce` with a network namespace per rank; tc shapes each link both ways.

    sudo bench/reduce_link.py 20mbit 4 --floats 830k --steps 5 --method bf16 --shapes none

The first two arguments are the rate of each link and the number of ranks; `bench reduce` gets the
others. Unlike --link and --simulate, the messages travel over TCP and compete with one another.
Needs root, ip and tc. THINREDUCE=PROGRAM chooses another version, to compare with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from local_ranks import free_port
from namespaces import Namespaces, bits_per_second

PROGRAM = Path(__file__).resolve().parent.parent / "build/release/bin/thinreduce"


def main() -> None:
    try:
        rate, ranks, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
        bits_per_second(rate)
    except (IndexError, ValueError):
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("reduce_link: network namespaces and tc need root; without, use --link")
    program = os.environ.get("THINREDUCE", str(PROGRAM))
    command = [program, "bench", "reduce", "--transport", "gloo", *arguments]
    with Namespaces(ranks, rate, name="tr-reduce", subnet="10.78.14") as network:
        shared = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": network.address(0),
            "MASTER_PORT": str(free_port()),
            "THINREDUCE_INTERFACE": network.interface,
        }
        started = [
            subprocess.Popen(
                [*network.within(rank), *command],
                env={**shared, "RANK": str(rank)},
                stdout=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        codes = [one.wait() for one in started]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
