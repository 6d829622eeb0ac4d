"""Gives each rank a network namespace of its own on this machine. Needs root, ip and tc."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def quietly(*command: str) -> None:
    """Runs a command that may fail."""
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


def bits_per_second(rate: str) -> float:
    """Returns a rate as tc writes it, such as 100mbit, as a number."""
    found = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate)
    if not found:
        raise ValueError(f"'{rate}' is no rate; write it as 20mbit or 1gbit")
    return float(found[1]) * UNITS[found[2]]


def burst_bytes(rate: str) -> int:
    """Returns the bytes that may pass at once: 2 ms of the link, and at least ten packets.

    While a rank computes, its bucket fills; a larger one would let short messages pass for free.
    """
    return max(16_000, round(bits_per_second(rate) / 8 * 2e-3))


@dataclass(frozen=True)
class Namespaces:
    """Namespaces NAME0, NAME1, ... that a bridge joins; tc shapes every rank's link both ways.

    Without a rate all ranks are in NAME0, which has a loopback interface and nothing else.
    """

    ranks: int
    rate: str
    name: str = "thinred"
    subnet: str = "10.77.13"

    @property
    def interface(self) -> str:
        return "eth0" if self.rate else "lo"

    def address(self, rank: int) -> str:
        return f"{self.subnet}.{rank + 1}" if self.rate else "127.0.0.1"

    def outside(self, rank: int) -> str:
        """Returns the name of the end of the rank's link that is outside its namespace."""
        return f"{self.name}-v{rank}"

    def within(self, rank: int) -> list[str]:
        """Returns the words before a command that run it in the rank's namespace."""
        return ["ip", "netns", "exec", f"{self.name}{rank if self.rate else 0}"]

    def __enter__(self) -> Namespaces:
        self.remove()
        if not self.rate:
            run("ip", "netns", "add", f"{self.name}0")
            run("ip", "-n", f"{self.name}0", "link", "set", "lo", "up")
            return self
        run("ip", "link", "add", f"{self.name}-br", "type", "bridge")
        run("ip", "link", "set", f"{self.name}-br", "up")
        for rank in range(self.ranks):
            self._add(rank)
        return self

    def _add(self, rank: int) -> None:
        space, outside = f"{self.name}{rank}", self.outside(rank)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", outside, "master", f"{self.name}-br", "up")
        inside = ("ip", "-n", space)
        run(*inside, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
        # One queue shapes the traffic out of the namespace, the other one the traffic into it.
        shape = ("root", "tbf", "rate", self.rate, "burst", str(burst_bytes(self.rate)))
        run("tc", "-n", space, "qdisc", "add", "dev", "eth0", *shape, "latency", "100ms")
        run("tc", "qdisc", "add", "dev", outside, *shape, "latency", "100ms")

    def remove(self) -> None:
        for rank in range(self.ranks):
            # A namespace takes its devices with it, but only when its last socket is gone.
            quietly("ip", "link", "del", self.outside(rank))
            quietly("ip", "netns", "del", f"{self.name}{rank}")
        quietly("ip", "link", "del", f"{self.name}-br")

    def __exit__(self, *_: Any) -> None:
        self.remove()
