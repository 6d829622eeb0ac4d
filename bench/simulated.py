"""Compares `bench reduce --simulate` with `bench reduce --link`: virtual time with real time.

Two ranks, so that a machine with two cores can run both at full speed; run it on an idle machine.
Prints a table in Markdown and fails if a median of the ratios is off by more than --tolerance.
"""

import argparse
import json
import subprocess
import sys
from statistics import median

METHODS = ["fp32", "dqsg", "gradiveq", "fft", "topk"]
LINKS = ["100mbit", "1gbit"]


def measure(arguments: argparse.Namespace, method: str, how: str, link: str) -> float:
    """Returns the seconds of one reduce."""
    command = [arguments.program, "bench", "reduce", "--json", "--ranks", "2", "--method", method]
    command += ["--floats", arguments.floats, "--steps", arguments.steps, how, link]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--floats", default="1000000")
    parser.add_argument("--steps", default="5")
    parser.add_argument("--rounds", type=int, default=1, help="real and virtual runs take turns")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--links", nargs="*", default=LINKS)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    arguments = parser.parse_args()
    print("| link | method | real | simulated | simulated / real |\n|---|---|---|---|---|")
    worst = 0.0
    for link in arguments.links:
        for method in arguments.methods:
            real, virtual = [], []
            for _ in range(arguments.rounds):
                real.append(measure(arguments, method, "--link", link))
                virtual.append(measure(arguments, method, "--simulate", link))
            ratio = median(virtual) / median(real)
            worst = max(worst, abs(ratio - 1))
            print(
                f"| {link} | `{method}` | {1e3 * median(real):.1f} ms "
                f"| {1e3 * median(virtual):.1f} ms | {ratio:.2f} |",
                flush=True,
            )
    return int(worst > arguments.tolerance)


if __name__ == "__main__":
    sys.exit(main())
