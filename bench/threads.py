#!/usr/bin/env python3
"""Measures how much faster two threads of a rank encode and decode than one.

    bench/threads.py --rounds 6

Runs `thinreduce bench codec` with one thread, with two threads, and as two processes of one thread
each at the same time, in turn, and takes the best of all rounds. The two processes share only the
machine, so their speed together over that of one is the machine's limit: cores that share a cache,
memory bandwidth or a clock do less than twice as much. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict

METHODS = ["dqsg", "gradiveq", "fft", "sketch", "topk"]
STAGES = ["encode_gbps", "decode_gbps"]
Speeds = dict[tuple[str, str], float]  # GB/s by method and stage


def start(args: argparse.Namespace, threads: int) -> subprocess.Popen[str]:
    command = [args.program, "bench", "codec", "--json", "--shapes", "none"]
    command += ["--floats", str(args.floats), "--threads", str(threads)]
    for method in args.methods:
        command += ["--method", method]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def speeds_of(args: argparse.Namespace, process: subprocess.Popen[str]) -> Speeds:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"bench/threads.py: {' '.join(map(str, process.args))} failed")
    parsed = json.loads(output)
    results = parsed if isinstance(parsed, list) else [parsed]
    return {
        (method, stage): result[stage]
        for method, result in zip(args.methods, results)
        for stage in STAGES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/bin/thinreduce")
    parser.add_argument("--floats", type=int, default=25_600_000)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    one: Speeds = defaultdict(float)
    two: Speeds = defaultdict(float)
    pair: Speeds = defaultdict(float)
    for _ in range(args.rounds):
        alone = speeds_of(args, start(args, 1))
        shared = speeds_of(args, start(args, 2))
        processes = [start(args, 1), start(args, 1)]
        first, second = (speeds_of(args, process) for process in processes)
        for key in alone:
            one[key] = max(one[key], alone[key])
            two[key] = max(two[key], shared[key])
            pair[key] = max(pair[key], first[key] + second[key])
    print("| method | stage | 1 thread, GB/s | 2 threads, GB/s | faster | two processes |")
    print("|---|---|---|---|---|---|")
    for (method, stage), speed in one.items():
        key = (method, stage)
        print(
            f"| `{method}` | {stage.removesuffix('_gbps')} | {speed:.2f} | {two[key]:.2f} "
            f"| {two[key] / speed:.2f}x | {pair[key] / speed:.2f}x |"
        )


if __name__ == "__main__":
    main()
