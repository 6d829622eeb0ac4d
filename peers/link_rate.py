"""Measures the rate of every rank's link, with TCP.

Half of the ranks send to the other half, then the other way round, so that no link carries data in
both directions: acknowledgements would wait behind data. A flow is as fast as the sender's link out
or the receiver's link in.

    python -m peers.link_rate receive ADDRESS
    python -m peers.link_rate send ADDRESS

The receiver prints the bits per second that arrive, with the headers of Ethernet, IP and TCP, which
tc counts as well.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench.namespaces import Namespaces, bits_per_second

PORT = 29777
SETTLE, MEASURE = 0.8, 1.2  # seconds: TCP starts slowly, and the bucket of tc is full at first
PACKET, DATA = 1514, 1448  # bytes of a packet, and of the data in it
TOLERANCE = 0.03


def send(address: str) -> None:
    end = time.monotonic() + SETTLE + MEASURE + 0.3
    with contextlib.suppress(OSError):  # the receiver closes first
        while True:
            with contextlib.suppress(ConnectionRefusedError):  # until the other rank listens
                link = socket.create_connection((address, PORT), timeout=5)
                break
            time.sleep(0.02)
        while time.monotonic() < end:
            link.sendall(bytes(65536))


def receive(listener: socket.socket) -> float:
    """Returns the bits per second of data that arrive after the first moments."""
    link, _ = listener.accept()
    with link:
        start = time.monotonic()
        while time.monotonic() < start + SETTLE:
            link.recv(65536)
        first, received = time.monotonic(), 0
        while time.monotonic() < first + MEASURE:
            received += len(link.recv(65536))
        return 8 * received / (time.monotonic() - first)


def main() -> None:
    what, address = sys.argv[1:]
    if what == "send":
        send(address)
        return
    with socket.create_server((address, PORT)) as listener:
        print(receive(listener) * PACKET / DATA)


def flow(network: Namespaces, what: str, rank: int, receiver: int) -> subprocess.Popen[str]:
    command = ["/usr/bin/python3", "-m", "peers.link_rate", what, network.address(receiver)]
    root = Path(__file__).resolve().parent.parent
    return subprocess.Popen(
        [*network.within(rank), *command], cwd=root, stdout=subprocess.PIPE, text=True
    )


class WrongRate(Exception):
    """A link does not have the rate that it should have."""


def measured(network: Namespaces) -> list[float]:
    """Returns the bits per second of the link into each rank. The number of ranks must be even."""
    rates = [0.0] * network.ranks
    for first in (0, 1):
        receivers = range(first, network.ranks, 2)
        senders = [flow(network, "send", one ^ 1, one) for one in receivers]
        for one, process in [(one, flow(network, "receive", one, one)) for one in receivers]:
            rates[one] = float(process.communicate(timeout=60)[0] or "nan")
        for sender in senders:
            sender.wait(timeout=60)
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
