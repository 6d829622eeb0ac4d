"""The engine's messages over a process group of PyTorch.

The group is one of its own beside the user's, because Gloo closes all connections of a group when
one wait times out. It is made as PyTorch makes the user's: with the same store, network interface
and encryption.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from ._agreement import agree
from ._listener import address_towards, listen_for_ranks
from ._store import StoreView
from ._time_limit import TimeLimit
from .errors import Error, Timeout, Unavailable

# Longer than any run; Gloo adds it to a clock.
_LONGEST_WAIT = timedelta(days=365)
# Tags beside the channels of the engine's tracks, which are below 256.
_WORD_TAG, _UNUSED_TAG = 1000, 1001
_WORD_BYTES = 1024
_SECONDS_FOR_LAST_WORD = 1.0
_NOTHING = torch.empty(0, dtype=torch.uint8)


def _limit(seconds: float) -> timedelta:
    """Returns a time that Gloo takes; 0 would mean its default."""
    return timedelta(seconds=min(max(seconds, 0.001), _LONGEST_WAIT.total_seconds()))


def _new_word() -> torch.Tensor:
    return torch.zeros(_WORD_BYTES, dtype=torch.uint8)


class Messages:
    """One rank's messages to its peers. The threads of the engine call it."""

    def __init__(
        self,
        store: StoreView,
        rank: int,
        size: int,
        *,
        timeout: float,
        interface: str = "",
        devices: list[Any] | None = None,
    ) -> None:
        """Connects. ``devices``: Gloo's devices of the user's group, unless there is an
        ``interface``; None: PyTorch chooses."""
        self.rank = rank
        self.size = size
        self._store = store  # its server, at rank 0, lives as long
        self._has_spoken = False
        self._lock = threading.Lock()  # of the last words, sent and received
        self._heard: dict[int, str] = {}
        gloo: Any = dist.ProcessGroupGloo  # torch's type hints lack most of it
        limit = _limit(timeout)
        try:
            if interface:
                devices = [gloo.create_device(interface=interface)]
            if devices:
                options = gloo._Options()
                options._timeout = limit
                # One: PyTorch would choose among several by tag, and give_up() must close them all.
                options._devices = devices[:1]
                self._group = gloo(store.part("gloo"), rank, size, options)
            else:
                self._group = gloo(store.part("gloo"), rank, size, limit)
        except RuntimeError as error:
            raise Unavailable(
                f"rank {rank}: PyTorch {torch.__version__} can't connect a process group over "
                f"Gloo: {str(error).splitlines()[0]}"
            ) from None
        self._last_words = {}
        for peer in range(size):
            if peer != rank:
                word = _new_word()
                self._last_words[peer] = (word, self._group.recv([word], peer, _WORD_TAG))

    def send(self, peer: int, tag: int, memory: memoryview) -> Any:
        """Starts to send the bytes of ``memory``, which must stay valid until :meth:`wait`."""
        return self._group.send([self._tensor(memory)], peer, tag)

    def receive(self, peer: int, tag: int, memory: memoryview) -> Any:
        """Starts to receive into ``memory``."""
        return self._group.recv([self._tensor(memory)], peer, tag)

    @staticmethod
    def _tensor(memory: memoryview) -> torch.Tensor:
        return torch.frombuffer(memory, dtype=torch.uint8) if memory.nbytes else _NOTHING

    def wait(self, work: Any, seconds: float) -> None:
        """Waits for a message. When ``seconds`` have passed, all connections close."""
        if work.wait(_limit(seconds)) is False:
            raise RuntimeError("aborted")

    def check_connection(self, peer: int) -> None:
        """Raises RuntimeError if the connection to a peer is closed."""
        self._group.recv([_new_word()], peer, _UNUSED_TAG)

    def give_up(self, reason: str) -> None:
        """Tells the others why, and ends all waits here and those of the others for this rank."""
        with self._lock:
            try:
                self._say(reason)
            finally:
                self._close()

    def _close(self) -> None:
        """Closes all connections: a wait that times out does. A connection that is closed already
        fails at once and closes no other, so every peer has its turn."""
        for peer in self._last_words:
            with contextlib.suppress(RuntimeError):
                self.wait(self._group.recv([_new_word()], peer, _UNUSED_TAG), 0)

    def leave(self, reason: str) -> None:
        """Disconnects; ``reason`` is empty unless this rank has given up."""
        with self._lock:
            self._say(reason or "left")
            self._last_words.clear()
            self._group = None

    def _say(self, word: str) -> None:
        """Sends the last word of this rank, once. The peers are ready to receive it."""
        if self._has_spoken:
            return
        self._has_spoken = True
        message = _new_word()
        text = torch.frombuffer(bytearray(word.encode()[: _WORD_BYTES - 1]), dtype=torch.uint8)
        message[: text.numel()] = text
        deadline = time.monotonic() + _SECONDS_FOR_LAST_WORD
        started = []
        for peer in self._last_words:
            with contextlib.suppress(RuntimeError):  # this peer is gone
                started.append(self._group.send([message], peer, _WORD_TAG))
        for work in started:
            with contextlib.suppress(RuntimeError):
                self.wait(work, deadline - time.monotonic())

    def last_word_of(self, peer: int) -> str:
        """Returns what a peer said before it closed its connection, or an empty string. Must be
        called after a wait for that peer has failed."""
        with self._lock:
            # Once: a second wait for the same message would time out and close all connections.
            if peer not in self._heard:
                message, work = self._last_words[peer]
                try:
                    self.wait(work, 0)
                    word = bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")
                except RuntimeError:
                    word = ""
                self._heard[peer] = word
            return self._heard[peer]


def connect_at(
    rank: int,
    world: int,
    master: tuple[str, int],
    *,
    interface: str,
    timeout: float,
    link: str,
    secret: str | None,
) -> _core.Connection:
    """Connects ranks that have no process group; rank 0 listens at ``master``."""
    host, port = master
    has_secret = _core.has_secret(secret)
    limit = TimeLimit(timeout)  # all stages of connecting share it
    try:
        store = _store_at(host, port, rank, world, _limit(timeout))
    except RuntimeError as error:
        if isinstance(error, Error):
            raise
        raise Timeout(
            f"rank {rank}: rank 0 can't be reached at {host}:{port} within {timeout:g} s: "
            f"{str(error).splitlines()[0]}; start it, or raise connect_timeout"
        ) from None
    view = StoreView(store, "thinreduce")
    agree(view, rank, world, transport="torch", secret=has_secret, limit=limit)
    messages = Messages(
        view,
        rank,
        world,
        timeout=limit.left(),
        interface=interface,
        devices=None if interface else _devices_towards(host),
    )
    return _core.connect_torch(messages, link=link, timeout=limit.left(), secret=secret)


def _store_at(host: str, port: int, rank: int, world: int, limit: timedelta) -> Any:
    """Returns a client of rank 0's store; at rank 0, the store, too."""
    kind: Any = dist.TCPStore
    options = {}
    # torch 1.13 can't be given a socket, and listens on all interfaces.
    if rank == 0 and "master_listen_fd" in kind.__init__.__doc__:
        options["master_listen_fd"] = listen_for_ranks(host, port).detach()
    return kind(host, port, world, rank == 0, limit, wait_for_workers=False, **options)


def _devices_towards(host: str) -> list[Any] | None:
    """Returns a device that listens only where the other ranks reach this one; None: PyTorch
    chooses, because the user has told it or because it is not clear."""
    address = None if os.environ.get("GLOO_SOCKET_IFNAME") else address_towards(host)
    gloo: Any = dist.ProcessGroupGloo
    return None if address is None else [gloo.create_device(hostname=address)]
