"""`make peers`: compares thinreduce with what a user would pick instead, and writes docs/peers.md.

Every result is kept in docs/peers/results.json at once, so the same command continues after a stop.
`--only`, `--links`, `--seeds` and `--workloads` select parts. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.namespaces import Namespaces
from reproduce.page import cpu

from . import contenders as plan
from . import link_rate, page
from .contenders import Contender, Part
from .measure import Ranks, fetch_data, network_of
from .store import Store


def chosen(parser: argparse.ArgumentParser, what: str, known: list[str], text: str) -> list[str]:
    """Returns the names in a list with semicolons or commas; all of them if it is empty."""
    if not text:
        return known
    names = [one.strip() for one in text.split(";" if ";" in text or what == "contender" else ",")]
    for name in names:
        if name not in known:
            parser.error(f"there is no {what} '{name}'; there are {'; '.join(known)}")
    return names


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="make peers", description=__doc__)
    parser.add_argument("--only", default="", help="contenders, joined by semicolons")
    parser.add_argument("--links", default="", help=f"of {', '.join(plan.LINKS)}")
    parser.add_argument("--seeds", default="", help="such as 1,2; 'none': time steps only")
    parser.add_argument("--workloads", default="", help=f"of {', '.join(plan.WORKLOADS)}")
    parser.add_argument("--no-times", action="store_true", help="train only")
    parser.add_argument("--again", action="store_true", help="measure selected parts again")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no part after as many minutes"
    )
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    parser.add_argument("--folder", type=Path, default=Path("build/peers"), help="for logs")
    parser.add_argument("--python", type=Path, default=Path("build/peers/venv/bin/python"))
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for peers.md")
    return parser, parser.parse_args()


def selected(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Part]:
    names = chosen(parser, "contender", [one.name for one in plan.BY_NAME.values()], options.only)
    links = chosen(parser, "link", list(plan.LINKS), options.links)
    workloads = chosen(parser, "workload", list(plan.WORKLOADS), options.workloads)
    known = [str(seed) for seed in plan.SEEDS]
    seeds = [] if options.seeds == "none" else chosen(parser, "seed", known, options.seeds)
    wanted = tuple(one for one in plan.CONTENDERS if one.name in names)
    found = plan.parts(wanted, tuple(links), tuple(map(int, seeds)), tuple(workloads))
    return [
        part
        for part in found
        if part.contender.name in names and not (options.no_times and not part.seed)
    ]


class Progress:
    """Prints one line per part, with the time left as far as the parts so far tell."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.spent: dict[bool, list[float]] = {True: [], False: []}  # seconds, by: is a training

    def left(self, first: int) -> float:
        """Returns the seconds that the parts from `first` on will take."""
        guess = {kind: sum(all_) / len(all_) if all_ else 60.0 for kind, all_ in self.spent.items()}
        return sum(guess[bool(part.seed)] for part in self.parts[first:])

    def begin(self, number: int) -> None:
        left = f"about {self.left(number) / 60:.0f} min left"
        print(f"[{number + 1}/{len(self.parts)}, {left}] {self.parts[number].name}", flush=True)

    def end(self, number: int, seconds: float) -> None:
        self.spent[bool(self.parts[number].seed)].append(seconds)


def cannot_run(store: Store, contender: Contender) -> str:
    """Returns why pip could not install the contender, or nothing."""
    return str(store.content["packages"].get(contender.package, {}).get("error", ""))


def run(parts: list[Part], store: Store, options: argparse.Namespace) -> None:
    progress = Progress(parts)
    end = time.monotonic() + 60 * options.minutes
    fetch_data(options.python, sorted({part.workload for part in parts}))

    def network_key(numbered: tuple[int, Part]) -> tuple[str, bool]:
        return numbered[1].link, bool(numbered[1].seed)

    for (link, training), group in itertools.groupby(enumerate(parts), key=network_key):
        if time.monotonic() > end:
            return
        with contextlib.ExitStack() as stack:
            network = stack.enter_context(network_of(plan.LINKS.get(link, ""), timed=not training))
            # The loss of a training does not depend on the rate, only what `auto` chooses.
            rates = (
                (link_rate.measured if training else link_rate.check)(network)
                if network.rate
                else []
            )
            ranks = stack.enter_context(Ranks(network, options.python, options.folder / "logs"))
            done = []
            for number, part in group:
                if time.monotonic() > end:
                    break
                progress.begin(number)
                begun = time.monotonic()
                error = cannot_run(store, part.contender)
                found: dict[str, Any] = {"error": error} if error else ranks.measure(part)
                if rates:
                    found["link_rates"] = [round(rate) for rate in rates]
                store.add(part, found)
                done.append(part)
                progress.end(number, time.monotonic() - begun)
                print("   " + summary(found), flush=True)
            if network.rate and not training:
                check_again(network, store, done)


def check_again(network: Namespaces, store: Store, done: list[Part]) -> None:
    """Removes the results of a link that has lost its rate meanwhile, and raises."""
    try:
        link_rate.check(network)
    except link_rate.WrongRate:
        store.remove(done)
        raise


def summary(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"FAILED: {found['error']}"
    if "curve" in found:
        return f"loss {found['curve'][-1][1]:.4f} after {found['curve'][-1][0]} steps"
    return (
        f"{1e3 * found['step_seconds']:.0f} ms, {found['bytes_per_step']:,.0f} bytes per step; "
        f"other programs had {found['other_cores']:.2f} cores"
    )


def main() -> int:
    parser, options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that namespaces are removed
    store = Store(options.out / "peers" / "results.json")
    parts = selected(parser, options)
    installed = options.folder / "packages.json"
    if installed.exists():
        store.change("packages", json.loads(installed.read_text()))
    try:
        if not options.page:
            store.change("machine", {"cpu": cpu(), "cores": os.cpu_count()})
            if options.again:
                store.remove(parts)
            run([part for part in parts if store.is_open(part)], store, options)
    except link_rate.WrongRate as wrong:
        print(f"peers: {wrong}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("peers: stopped; the same command continues from here", file=sys.stderr)
        return 1
    print(f"wrote {page.write(options.out, store)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
