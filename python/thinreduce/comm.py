"""All-reduces numpy arrays, without torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._arguments import (
    MAX_RANKS,
    SessionArguments,
    check_out,
    check_secret,
    check_text,
    real_numbers,
    saved_bytes,
    seconds,
    spec_text,
    whole_number,
)
from .errors import BadInput, BadSpec, Error, Mismatch, Unavailable, describe
from .stats import Stats

_MAX_LOCAL_RANKS = 1024  # of local(), as of the program with threads
_Key = tuple[str, str, tuple[int, ...]]  # name, spec, shape


class Comm:
    """One rank's connection to all other ranks. :func:`connect` and :func:`local` make it.

    All ranks must make the same calls in the same order. Arguments that one rank refuses are an
    error on all ranks, and the next call works again. Methods with error feedback keep a
    residual (the part of the gradient that was not sent yet) per array name, spec and shape, until
    :meth:`forget`.
    ``rank`` is the number of this rank, ``world`` the number of ranks.
    """

    def __init__(self, connection: _core.Connection, options: _core.SessionOptions) -> None:
        self._session = _core.Session(connection, options)
        self._momentum_inside_ok = options.momentum_inside_ok
        self._begun = False  # whether begin_step() was called
        self._buckets: dict[_Key, tuple[int, _core.Bucket]] = {}
        self._ids: set[int] = set()
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
        out: NDArray[np.float32] | None = None,
        second_moment: Any = None,
    ) -> NDArray[np.float32]:
        """Returns the mean of all ranks' arrays as float32, with the same bits on every rank.

        ``spec``: a method with options, such as "dqsg:levels=7".
        ``name``: tells arrays of the same shape apart, so that each has its own residual; the ranks
        compare it.
        ``out``: an array for the result, writeable, contiguous and float32; it may be ``array``.
        ``second_moment``: one value per element, the sum over the local batch of (gradient of the
        sample / batch size) squared; only the variance method uses it.

        Methods may use the shape of an array with two or more dimensions; a 1-D array is compressed
        as one run of numbers. Arrays with fewer than ``min_size`` elements are sent uncompressed.
        Complex arrays are refused.
        """
        with self._telling_others():
            full = _single_spec(spec)
            out = _result_array(array, out)
            moment = _moment_array(second_moment, name, out)
            key = (check_text("name", name), full, out.shape)
            bucket = self._bucket(key)
        pending = self._session.submit(
            bucket, out.ctypes.data, 0 if moment is None else moment.ctypes.data
        )
        # Python's signal handlers run between two waits. An interrupted exchange can't be resumed,
        # and its arrays must stay alive until it has ended.
        try:
            while not pending.wait(0.2):
                pass
        except BaseException:
            self._session.abandon("interrupted")
            pending.wait(3600.0)
            raise
        try:
            report = pending.get()
        except (BadInput, Mismatch) as error:
            raise type(error)(self._with_call(error, key)) from None
        self._calls += 1
        self._stats.add(self._calls, report)
        return out

    def _with_call(self, error: Error, key: _Key) -> str:
        """Returns the engine's text, which names a bucket, with the call that this rank made."""
        name, spec, shape = key
        array = f"array '{name}'" if name else "an array without a name,"
        call = f"rank {self.rank} called all_reduce_mean for {array} of shape {shape} with '{spec}'"
        # A bucket's id is a hash of name, shape and spec.
        if isinstance(error, Mismatch) and "the bucket's id is" in str(error):
            return (
                "the ranks did not call all_reduce_mean with the same name, shape and spec in the "
                f"same order: {call} ({error})"
            )
        return f"{error} ({call})"

    @contextlib.contextmanager
    def _telling_others(self) -> Iterator[None]:
        """Tells the other ranks, which wait for this one's array, of an exception in the body."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Error):  # the session is over, which the others know
                self._session.decline(describe(error))
            raise

    def _bucket(self, key: _Key) -> _core.Bucket:
        if key in self._buckets:
            return self._buckets[key][1]
        name, spec, shape = key
        if _core.momentum_inside(spec) and not self._momentum_inside_ok:
            method = spec.partition(":")[0]
            raise BadSpec(
                f"'{spec}' applies momentum itself, so the optimizer must apply none: set its "
                "momentum to 0 and give connect() or local() momentum_inside_ok=True, or use "
                f"{method}:{_core.without_momentum(spec)}"
            )
        # From the key and not from a counter: after a call that failed on some ranks, counters
        # would differ. Ids up to 2**31 - 1 are free for callers.
        number = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")
        while (id := number % 2**31) in self._ids:
            number += 1
        # The engine sends 1-D tensors uncompressed, but compresses a bucket without tensors.
        tensors = [(name, list(shape))] if len(shape) > 1 else []
        elements = int(np.prod(shape, dtype=np.int64))
        layout = _core.Layout(id=id, elements=elements, tensors=tensors, spec=spec, name=name)
        bucket = self._session.add_bucket(layout)
        self._ids.add(id)
        self._buckets[key] = (id, bucket)
        return bucket

    def forget(self, name: str = "") -> int:
        """Frees what is kept for the arrays of this name, with any spec and shape: about 1 kB per
        array, and the method's state. Their residuals are dropped. Returns the number of arrays.

        All ranks must call it at the same point.
        """
        keys = [key for key in self._buckets if key[0] == name]
        for key in keys:
            id, _ = self._buckets.pop(key)
            self._ids.discard(id)
            self._session.forget(id)
        return len(keys)

    def begin_step(self) -> None:
        """Starts a step that :meth:`undo_step` can take back. From the first call on, states are
        copied in every step, which doubles the memory of residuals. All ranks must call it."""
        self._session.begin_step()
        self._begun = True

    def undo_step(self) -> None:
        """Restores residuals and learned state as they were at :meth:`begin_step`. Raises BadInput
        before the first one.

        For a step that is skipped because one of its arrays was refused (:class:`NonFinite`): the
        residuals of others may be in means that nobody applies. All ranks must call it.
        """
        if not self._begun:
            raise BadInput("undo_step() needs begin_step() at the start of the step")
        self._session.undo_step()

    def stats(self) -> dict[str, Any]:
        """Returns times in seconds, bytes, the compression ratio and the method's statistics: those
        of the last call and, under "total", those of all calls."""
        return self._stats.as_dict()

    def save(self) -> bytes:
        """Returns this rank's state, including residuals, for :meth:`load`. Each saves its own."""
        return self._session.save()

    def load(self, state: bytes) -> None:
        """Restores the state that :meth:`save` of the same rank returned.

        It belongs to the arrays with the same names, specs and shapes as in the saved run.
        """
        self._session.load(saved_bytes("state", state))

    def close(self) -> None:
        """Disconnects from the other ranks."""
        self._session.close()

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _single_spec(spec: str) -> str:
    """Returns a spec with all options; raises BadSpec unless it can serve a single array."""
    full = spec_text(spec)
    if full.startswith("auto"):
        raise BadSpec(
            f"'{spec}' chooses a method per bucket of a training step, and all_reduce_mean() has "
            "single arrays; name a method, such as 'dqsg'"
        )
    return full


def _result_array(array: Any, out: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Returns ``out`` with the values of ``array``; a new array if it is None."""
    values = real_numbers("array", array)
    if out is None:
        return np.array(values, dtype=np.float32, order="C")
    check_out(out, values.shape)
    if out is not array:
        out[...] = values
    return out


def _moment_array(
    second_moment: Any, name: str, out: NDArray[np.float32]
) -> NDArray[np.float32] | None:
    if second_moment is None:
        return None
    values = real_numbers("second_moment", second_moment)
    moment = np.ascontiguousarray(values, dtype=np.float32)
    if moment.size != out.size:
        raise BadInput(
            f"second_moment has {moment.size} values and array '{name}' has {out.size} "
            "elements; second_moment must have one value per element"
        )
    return moment


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise BadInput(
            f"the environment variable {name} is not set; set it, or give connect() its rank, "
            "world and master"
        )
    return value


def _number_from_environment(name: str) -> int:
    text = _from_environment(name)
    if not text.isdigit():
        raise BadInput(f"the environment variable {name} must be a whole number; it is '{text}'")
    return int(text)


class _Where(NamedTuple):
    rank: int
    world: int
    host: str
    port: int
    interface: str
    timeout: float
    link: str
    secret: str | None

    def connect(self) -> _core.Connection:
        """Connects over Gloo: that of the engine or, if it was built without, that of torch."""
        if _core.have_gloo():
            where = _core.Where(
                rank=self.rank,
                world=self.world,
                master_addr=self.host,
                master_port=self.port,
                interface=self.interface,
                timeout=self.timeout,
                link=self.link,
                secret=self.secret,
            )
            return _core.connect_at(where)
        try:
            from ._torch_messages import connect_at
        except ImportError as error:
            raise Unavailable(
                f"this build of thinreduce connects processes through PyTorch: {error}; install "
                "thinreduce[torch], or build the package with Gloo (docs/python.md)"
            ) from None
        return connect_at(
            self.rank,
            self.world,
            (self.host, self.port),
            interface=self.interface,
            timeout=self.timeout,
            link=self.link,
            secret=self.secret,
        )


def connect(
    rank: int | None = None,
    world: int | None = None,
    master: str | None = None,
    *,
    interface: str = "",
    secret: str | None = None,
    link: str = "",
    timeout: float = 60.0,
    patience: float = 1800.0,
    connect_timeout: float = 30.0,
    min_size: int = 1024,
    seed: int = 0,
    check_replicas_every: int = 100,
    threads: int = 1,
    momentum_inside_ok: bool = False,
) -> Comm:
    """Connects this process, as rank ``rank`` of ``world``, to all other ranks over TCP.

    ``master`` is "host:port" of rank 0; the port must be free there. Arguments that are not given
    come from the environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.

    ``interface``: the network interface to use, such as "eth1"; default THINREDUCE_INTERFACE.
    ``secret``: a text of at least 16 bytes that all ranks must share (docs/security.md); default
    THINREDUCE_SECRET or the text of the file THINREDUCE_SECRET_FILE; "": none.
    ``link``: a slow network to emulate, such as "1gbit,2ms" (bandwidth, latency).
    ``timeout``: seconds that a peer may be silent before the exchange fails. A peer that computes
    is not silent.
    ``patience``: seconds to wait for a peer that is alive but does not take part; 0: forever.
    ``connect_timeout``: seconds to wait for all ranks to connect.
    ``min_size``: arrays with fewer elements are sent uncompressed.
    ``seed``: seed of the methods' random numbers; it must be the same on all ranks.
    ``check_replicas_every``: number of calls after which the ranks compare the bits of their means.
    ``threads``: threads of this rank that share the work on a large array; the means have the same
    bits for any number.
    ``momentum_inside_ok``: must be True for methods that apply momentum themselves
    ("sketch:momentum=0.9"); the optimizer must then apply none.
    """
    if master is None:
        master = f"{_from_environment('MASTER_ADDR')}:{_from_environment('MASTER_PORT')}"
    host, _, port = check_text("master", master).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"master must be host:port, such as 10.0.0.1:29400; it is '{master}'")
    arguments = SessionArguments(
        timeout=timeout,
        patience=patience,
        min_size=min_size,
        seed=seed,
        check_replicas_every=check_replicas_every,
        threads=threads,
    )
    options = arguments.options(momentum_inside_ok=momentum_inside_ok)
    check_secret(secret)
    world = _number_from_environment("WORLD_SIZE") if world is None else world
    world = whole_number("world", world, min=1, max=MAX_RANKS)
    rank = _number_from_environment("RANK") if rank is None else rank
    rank = whole_number("rank", rank, max=MAX_RANKS)
    if rank >= world:
        ranks = "rank" if world == 1 else "ranks"
        raise BadInput(f"rank {rank} must be 0 to {world - 1}: the world has {world} {ranks}")
    where = _Where(
        rank=rank,
        world=world,
        host=host.strip("[]"),
        port=int(port),
        interface=check_text("interface", interface) or os.environ.get("THINREDUCE_INTERFACE", ""),
        timeout=seconds("connect_timeout", connect_timeout),
        link=check_text("link", link),
        secret=secret,
    )
    return Comm(where.connect(), options)


def local(
    world: int,
    *,
    timeout: float = 60.0,
    patience: float = 1800.0,
    min_size: int = 1024,
    seed: int = 0,
    check_replicas_every: int = 100,
    threads: int = 1,
    momentum_inside_ok: bool = False,
) -> list[Comm]:
    """Returns ``world`` ranks inside this process, at most 1024. Use each of them from its own
    thread.

    The arguments are those of :func:`connect`.
    """
    arguments = SessionArguments(
        timeout=timeout,
        patience=patience,
        min_size=min_size,
        seed=seed,
        check_replicas_every=check_replicas_every,
        threads=threads,
    )
    options = arguments.options(momentum_inside_ok=momentum_inside_ok)
    world = whole_number("world", world, min=1, max=_MAX_LOCAL_RANKS)
    return _start_all(_core.connect_inside(world), options)


def _start_all(connections: list[_core.Connection], options: _core.SessionOptions) -> list[Comm]:
    """Returns a Comm per connection. Each waits for all others, so each starts in a thread."""
    comms: dict[int, Comm] = {}
    errors: list[BaseException] = []
    all_here = threading.Event()
    threads: list[threading.Thread] = []

    def start(rank: int) -> None:
        all_here.wait()
        if len(threads) < len(connections):
            return  # the rest could not be started
        try:
            comms[rank] = Comm(connections[rank], options)
        except BaseException as error:  # raised below
            errors.append(error)

    try:
        for rank in range(len(connections)):
            thread = threading.Thread(target=start, args=(rank,))
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError) as error:
        raise Unavailable(
            f"local() can't start a thread for rank {len(threads)} of {len(connections)}: {error}; "
            "use fewer ranks, or give the process more memory and threads"
        ) from None
    finally:
        all_here.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [comms[rank] for rank in range(len(connections))]
