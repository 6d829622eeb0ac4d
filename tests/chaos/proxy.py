"""A proxy between all ranks that alters bytes, or stops to pass them on.

Every rank posts the port of the proxy instead of its own. The first bytes of a connection say which
rank opens it and for what (thinreduce/transport/gloo/peer_links.h), so that the proxy knows every
stream: the rank that sends, the one that receives, and the use of the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

_HELLO = struct.Struct("<8s16sII")  # magic, token, rank, use
_PORT = slice(
    18, 20
)  # place of the port in an address on the board: a byte for "fine", family, 16 bytes, port

Stream = tuple[int, int, int]  # sender, receiver, use


@dataclass
class Fault:
    """A fault that alters the bytes of one stream, once."""

    stream: Stream
    kind: str  # "flip", "drop" or "duplicate"
    offset: int  # first byte
    bit: int = 0  # number of the bit that a flip changes
    length: int = 1  # of the others

    def alter(self, chunk: bytes, first: int) -> bytes:
        """Returns a chunk whose first byte is byte `first` of the stream as the fault leaves it."""
        at = self.offset - first
        if self.kind == "flip":
            return chunk[:at] + bytes([chunk[at] ^ 1 << self.bit]) + chunk[at + 1 :]
        end = at + self.length
        return chunk[:at] + (chunk[end:] if self.kind == "drop" else chunk[at:end] + chunk[at:])


class Board:
    """The store through which the ranks meet: a file per key, and the proxy's ports."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self._folder = folder
        self._ports = ports

    def _file(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")

    def set(self, key: str, value: bytes) -> None:
        topic, rank = key.split("/")
        if topic == "address" and len(value) > _PORT.stop:
            self._write(f"real/{rank}", value[_PORT])
            port = self._ports[int(rank)].to_bytes(2, "big")
            value = value[: _PORT.start] + port + value[_PORT.stop :]
        self._write(key, value)

    def _write(self, key: str, value: bytes) -> None:
        partial = self._folder / f"{key.replace('/', '-')}.{os.getpid()}"
        partial.write_bytes(value)
        partial.replace(self._file(key))

    def get(self, key: str) -> bytes:
        return self._file(key).read_bytes()

    def wait(self, keys: list[str], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not all(self._file(key).exists() for key in keys):
            if time.monotonic() > until:
                raise TimeoutError(f"no {keys} within {seconds:g} s")
            time.sleep(0.001)

    def real_port(self, rank: int) -> int:
        return int.from_bytes(self.get(f"real/{rank}"), "big")


class Proxy:
    """Runs in a process of its own: :meth:`serve`."""

    def __init__(self, world: int, folder: Path, fault: Fault | None = None) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(world)]
        self.board = Board(folder, [one.getsockname()[1] for one in self._listeners])
        self._fault = fault
        self._lock = threading.Lock()
        self._altered_at = 0.0  # when the fault was done
        self._cut_off = -1  # the rank whose bytes are not passed on any more
        self._counts: dict[Stream, int] = {}
        self._sockets: list[socket.socket] = []  # those of a rank that is cut off stay open

    def close(self) -> None:
        for one in self._listeners:
            one.close()

    def serve(self, pipe: Connection) -> None:
        """Passes bytes on. A rank that the pipe names is cut off; at "end" the answer is the time
        of the fault, or 0, and the bytes per stream."""
        for rank, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(rank, listener), daemon=True).start()
        while (said := pipe.recv()) != "end":
            self._cut_off = said
            pipe.send(time.monotonic())
        with self._lock:
            pipe.send((self._altered_at, self._counts))

    def _accept(self, rank: int, listener: socket.socket) -> None:
        while True:
            dialer, _ = listener.accept()
            threading.Thread(target=self._join, args=(rank, dialer), daemon=True).start()

    def _join(self, listening: int, dialer: socket.socket) -> None:
        hello = b""
        while len(hello) < _HELLO.size:
            got = dialer.recv(_HELLO.size - len(hello))
            if not got:
                return
            hello += got
        _, _, rank, use = _HELLO.unpack(hello)
        target = socket.create_connection(("127.0.0.1", self.board.real_port(listening)))
        for one in (dialer, target):
            self._sockets.append(one)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = (listening, rank, use)
        threading.Thread(target=self._pump, args=(target, dialer, back, b""), daemon=True).start()
        self._pump(dialer, target, (rank, listening, use), hello)

    def _pump(
        self, source: socket.socket, sink: socket.socket, stream: Stream, chunk: bytes
    ) -> None:
        with contextlib.suppress(OSError):
            chunk = chunk or source.recv(1 << 16)
            while chunk and self._cut_off not in stream[:2]:
                sink.sendall(self._pass_on(stream, chunk))
                chunk = source.recv(1 << 16)
        if self._cut_off not in stream[:2]:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def _pass_on(self, stream: Stream, chunk: bytes) -> bytes:
        with self._lock:
            first = self._counts.get(stream, 0)
            self._counts[stream] = first + len(chunk)
            fault = self._fault
            if not fault or fault.stream != stream or self._altered_at:
                return chunk
            if not first <= fault.offset < first + len(chunk):
                return chunk
            self._altered_at = time.monotonic()
            return fault.alter(chunk, first)
