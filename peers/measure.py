"""Starts the ranks of one measurement and returns what rank 0 prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from bench.local_ranks import free_port
from bench.namespaces import Namespaces

from .contenders import RANKS, Part

ROOT = Path(__file__).resolve().parent.parent
LIMIT = {"train": 1200.0, "time": 300.0}  # seconds; a run that takes longer has failed


def error_of(log: str) -> str:
    """Returns the last line of a log that names an error, without paths of this machine."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [
        line for line in lines if re.match(r"([A-Za-z_.]*(Error|Exception)|terminate)\b", line)
    ]
    text = (errors or lines or ["no output"])[-1]
    return re.sub(r"(/[\w.+-]+){3,}/", "", text)[:300]


def wait(codes: list[futures.Future[str]], limit: float) -> str:
    """Waits until all ranks have ended, or one has failed; returns what went wrong."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended = [code.result().strip() for code in codes if code.done()]
        wrong = [code for code in ended if code != "0"]
        if wrong:
            return f"exit code {wrong[0]}" if wrong[0] else "a rank has ended"
        if len(ended) == len(codes):
            return ""
        time.sleep(0.05)
    return f"not finished after {limit:.0f} s"


class Ranks:
    """The processes of all ranks in a network, for one measurement after another."""

    def __init__(self, network: Namespaces, python: Path, logs: Path) -> None:
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        shared = {
            **os.environ,
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": network.address(0),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": network.interface,
            "PEERS_INTERFACE": network.interface,
            "PYTHONPATH": f"{ROOT}:{ROOT}/build/release/python",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The operation that DeepSpeed compiles, and the ninja that it looks for.
            "TORCH_EXTENSIONS_DIR": str(ROOT / "build/peers/extensions"),
            "PATH": f"{python.parent.absolute()}:{os.environ['PATH']}",
        }
        self.servers = []
        for rank in range(RANKS):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.servers.append(
                subprocess.Popen(
                    [*network.within(rank), str(python), "-m", "peers.rank"],
                    env={**shared, **own, "PEERS_ADDRESS": network.address(rank)},
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: Any) -> None:
        for server in self.servers:
            server.kill()
            server.wait()

    def answers(self) -> list[futures.Future[str]]:
        """Returns the next line that each rank prints."""
        pool = futures.ThreadPoolExecutor(RANKS)
        lines = [pool.submit(server.stdout.readline) for server in self.servers if server.stdout]
        pool.shutdown(wait=False)
        return lines

    def measure(self, part: Part) -> dict[str, Any]:
        """Returns the result of a part, or {"error": ...} with the reason."""
        logs = [self.logs / f"{part.name} rank {rank}.log" for rank in range(RANKS)]
        result = self.logs / f"{part.name}.json"
        result.unlink(missing_ok=True)
        order = {"asked": part.asked, "port": free_port(), "result": str(result.resolve())}
        for server, log in zip(self.servers, logs):
            assert server.stdin
            print(json.dumps({**order, "log": str(log.resolve())}), file=server.stdin, flush=True)
        children = [int(line.result()) for line in self.answers()]
        codes = self.answers()
        try:
            wrong = wait(codes, LIMIT["train" if part.seed else "time"])
        finally:
            for child in children:  # with the processes that it has started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
        futures.wait(codes)  # those of ranks that were killed, too
        if wrong:
            texts = [log.read_text() for log in logs]
            first = next((text for text in texts if "Error" in text), texts[0])
            return {"error": f"{wrong}: {error_of(first)}"}
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def fetch_data(python: Path, workloads: list[str]) -> None:
    """Downloads the data sets that are missing."""
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT}/build/release/python"}
    command = [str(python), "-m", "peers.workloads", *workloads]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **paths})


@contextlib.contextmanager
def network_of(rate: str, *, timed: bool) -> Iterator[Namespaces]:
    """Makes the network; trainings and timed steps have names of their own, so both may run."""
    if os.geteuid() != 0:
        sys.exit("peers: network namespaces need root; run `sudo make peers`")
    with Namespaces(
        RANKS, rate, name="tptime" if timed else "tptrain", subnet="10.77.19"
    ) as network:
        yield network
