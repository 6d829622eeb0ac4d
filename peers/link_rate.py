"""Measures the rate of every rank's link, with several TCP connections at once.

Half of the ranks send to the other half, then the other way round, so that no link carries data in
both directions: acknowledgements would wait behind data. The kernel counts what comes through. One
connection alone would leave the link idle when it slows down.

    python -m peers.link_rate receive ADDRESS
    python -m peers.link_rate send ADDRESS

are the two ends of a flow, until they are stopped.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench.namespaces import Namespaces, bits_per_second

PORT, CONNECTIONS = 29777, 6
SETTLE, MEASURE = 0.5, 1.0  # seconds: TCP starts slowly, and the bucket of tc is full at first
HEADERS, DATA = 66, 1448  # bytes of a packet
STARTED = 100_000  # bytes after which all connections are made
TOLERANCE = 0.03


class WrongRate(Exception):
    """A link does not have the rate that it should have."""


def send(address: str) -> None:
    """Sends until the receiver closes a connection."""
    waiting = selectors.DefaultSelector()
    while True:
        try:
            links = [socket.create_connection((address, PORT)) for _ in range(CONNECTIONS)]
            break
        except ConnectionRefusedError:  # until the other rank listens
            time.sleep(0.02)
    for link in links:
        link.setblocking(False)
        waiting.register(link, selectors.EVENT_WRITE)
    try:
        while True:
            for key, _ in waiting.select():
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.send(bytes(65536))
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(address: str) -> None:
    """Reads from all connections."""
    waiting = selectors.DefaultSelector()
    with socket.create_server((address, PORT), backlog=CONNECTIONS) as listener:
        for _ in range(CONNECTIONS):
            waiting.register(listener.accept()[0], selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.recv(1 << 18)


def main() -> None:
    what, address = sys.argv[1:]
    (send if what == "send" else receive)(address)


def flow(network: Namespaces, what: str, rank: int, receiver: int) -> subprocess.Popen[str]:
    command = ["/usr/bin/python3", "-m", "peers.link_rate", what, network.address(receiver)]
    root = Path(__file__).resolve().parent.parent
    return subprocess.Popen([*network.within(rank), *command], cwd=root, text=True)


def bytes_into(network: Namespaces, rank: int) -> float:
    """Returns the bytes that have entered the rank's namespace so far, as tc counts them.

    The device counts the headers of a train of packets once, tc those of every packet.
    """
    counters = Path(f"/sys/class/net/{network.outside(rank)}/statistics")
    count = int((counters / "tx_bytes").read_text())
    trains = int((counters / "tx_packets").read_text())
    packets = max(trains, (count - HEADERS * trains) / DATA)
    return count + HEADERS * (packets - trains)


def one_way(network: Namespaces, receivers: range) -> list[float]:
    """Returns the bits per second of the links into the receivers, each from its neighbour."""
    before = [bytes_into(network, rank) for rank in receivers]
    flows = [flow(network, "receive", rank, rank) for rank in receivers]
    flows += [flow(network, "send", rank ^ 1, rank) for rank in receivers]
    try:
        deadline = time.monotonic() + 20
        while any(
            bytes_into(network, rank) < count + STARTED for rank, count in zip(receivers, before)
        ):
            if time.monotonic() > deadline:
                raise WrongRate("no bytes arrive over the links")
            time.sleep(0.02)
        time.sleep(SETTLE)
        start, before = time.monotonic(), [bytes_into(network, rank) for rank in receivers]
        time.sleep(MEASURE)
        seconds, after = time.monotonic() - start, [bytes_into(network, one) for one in receivers]
    finally:
        for one in flows:
            one.kill()
            one.wait()
    return [8 * (b - a) / seconds for a, b in zip(before, after)]


def measured(network: Namespaces) -> list[float]:
    """Returns the bits per second of the link into each rank. The number of ranks must be even."""
    rates = [0.0] * network.ranks
    for first in (0, 1):
        receivers = range(first, network.ranks, 2)
        for rank, rate in zip(receivers, one_way(network, receivers)):
            rates[rank] = rate
    return rates


def check(network: Namespaces, trials: int = 3) -> list[float]:
    """Returns the rates; raises if they are wrong every time, as on a busy machine."""
    asked = bits_per_second(network.rate)
    for _ in range(trials):
        rates = measured(network)
        if all(abs(rate / asked - 1) <= TOLERANCE for rate in rates):
            return rates
    found = ", ".join(f"{rate / 1e6:.1f}" for rate in rates)
    raise WrongRate(
        f"the links into the ranks carry {found} Mbit/s instead of {asked / 1e6:.0f}, which is off "
        f"by more than {100 * TOLERANCE:.0f} %; stop other programs and run again"
    )


if __name__ == "__main__":
    main()
