"""All-reduce of numpy arrays, without torch."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Union

import numpy as np

from . import _core
from .errors import BadInput
from .stats import Stats


class Comm:
    """One rank's connection to all others. Made by :func:`connect` or :func:`local`.

    All ranks must make the same calls in the same order. What a method holds back (a residual)
    is kept under the array's name, and by spec and shape.
    """

    def __init__(self, connection: _core.Connection, options: _core.SessionOptions) -> None:
        self._session = _core.Session(connection, options)
        self._layouts: dict[tuple[str, str, tuple[int, ...]], _core.Layout] = {}
        self._stats = Stats()
        self._calls = 0
        self.rank: int = self._session.rank
        self.world: int = self._session.world

    def all_reduce_mean(
        self,
        array: Any,
        spec: str = "fp32",
        *,
        name: str = "",
        out: Optional[np.ndarray] = None,
        second_moment: Optional[Any] = None,
    ) -> np.ndarray:
        """The mean of all ranks' arrays, as float32: the same bits on every rank.

        Arrays of two and more dimensions are compressed with their shape in mind, 1-D ones as one
        run; those with fewer than ``min_size`` elements travel uncompressed.
        ``out`` may be the array itself when it is contiguous float32.
        """
        values = np.asarray(array)
        if out is None:
            out = np.array(values, dtype=np.float32, order="C")
        else:
            if out.dtype != np.float32 or not out.flags.c_contiguous or out.shape != values.shape:
                raise BadInput(
                    f"out must be contiguous float32 of shape {values.shape}, "
                    f"not {out.dtype} of shape {out.shape}"
                )
            if out is not array:
                out[...] = values
        layout = self._layout(name, _core.spec_text(spec), out)
        moment = None
        if second_moment is not None:
            moment = np.ascontiguousarray(second_moment, dtype=np.float32)
            if moment.size != out.size:
                raise BadInput(
                    f"the second moment has {moment.size} values for {out.size} elements"
                )
        pending = self._session.submit(
            layout, out.ctypes.data, 0 if moment is None else moment.ctypes.data
        )
        # Python's signal handlers run between two looks. An interrupted exchange can't be resumed,
        # and its memory must not go before it has ended.
        try:
            while not pending.wait(0.2):
                pass
        except BaseException:
            self._session.abandon("interrupted")
            pending.wait(3600.0)
            raise
        report = pending.get()
        self._calls += 1
        self._stats.add(self._calls, report)
        return out

    def _layout(self, name: str, spec: str, array: np.ndarray) -> _core.Layout:
        key = (name, spec, array.shape)
        layout = self._layouts.get(key)
        if layout is None:
            # Without shape, 1-D arrays count as one run that is compressed.
            tensors = [(name, list(array.shape))] if array.ndim > 1 else []
            layout = _core.Layout(
                id=len(self._layouts), elements=array.size, tensors=tensors, spec=spec
            )
            self._layouts[key] = layout
        return layout

    def stats(self) -> dict[str, Any]:
        """Times in seconds, bytes, ratio and the method's statistics of the last call and of all."""
        return self._stats.as_dict()

    def save(self) -> bytes:
        """Residuals and all else that a resumed run needs, of this rank."""
        return self._session.save()

    def load(self, state: bytes) -> None:
        """What :meth:`save` gave; the same arrays must then come in the same order."""
        self._session.load(state)

    def close(self) -> None:
        """Leaves the other ranks."""
        self._session.close()

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _options(
    *,
    timeout: float,
    min_size: int,
    seed: int,
    check_replicas_every: int,
    momentum_inside_ok: bool,
) -> _core.SessionOptions:
    return _core.SessionOptions(
        timeout=timeout,
        min_elements=min_size,
        seed=seed,
        check_replicas_every=check_replicas_every,
        momentum_inside_ok=momentum_inside_ok,
    )


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise BadInput(f"give connect() its rank, world and master, or set {name}")
    return value


def connect(
    rank: Optional[int] = None,
    world: Optional[int] = None,
    master: Union[str, None] = None,
    *,
    interface: str = "",
    link: str = "",
    timeout: float = 60.0,
    connect_timeout: float = 30.0,
    min_size: int = 1024,
    seed: int = 0,
    check_replicas_every: int = 100,
    momentum_inside_ok: bool = False,
) -> Comm:
    """Connects to all other ranks. ``master`` is "host:port" of rank 0, where nobody listens yet.

    What is not given comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. ``link`` simulates
    a slow network ("1gbit,2ms"), ``interface`` chooses a real one ("eth1").
    """
    if master is None:
        master = f"{_from_environment('MASTER_ADDR')}:{_from_environment('MASTER_PORT')}"
    host, _, port = master.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"master is '{master}'; expected host:port, as 10.0.0.1:29400")
    where = _core.Where(
        rank=int(_from_environment("RANK")) if rank is None else rank,
        world=int(_from_environment("WORLD_SIZE")) if world is None else world,
        master_addr=host.strip("[]"),
        master_port=int(port),
        interface=interface or os.environ.get("THINREDUCE_INTERFACE", ""),
        timeout=connect_timeout,
        link=link,
    )
    options = _options(
        timeout=timeout,
        min_size=min_size,
        seed=seed,
        check_replicas_every=check_replicas_every,
        momentum_inside_ok=momentum_inside_ok,
    )
    return Comm(_core.connect_at(where), options)


def local(
    world: int,
    *,
    timeout: float = 60.0,
    min_size: int = 1024,
    seed: int = 0,
    check_replicas_every: int = 100,
    momentum_inside_ok: bool = False,
) -> list[Comm]:
    """All ranks of a world inside this process; use each from a thread of its own."""
    options = _options(
        timeout=timeout,
        min_size=min_size,
        seed=seed,
        check_replicas_every=check_replicas_every,
        momentum_inside_ok=momentum_inside_ok,
    )
    connections = _core.connect_inside(world)
    with ThreadPoolExecutor(world) as threads:  # a session waits for the others
        return list(threads.map(lambda connection: Comm(connection, options), connections))
