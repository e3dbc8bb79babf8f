"""A worker that is a process of its own, spawned, with one slot.

Requests and answers are messages on one pipe, so order is kept and a dead process is seen at once.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rose_exec import wire
from rose_exec.native import Native
from rose_exec.workers.job import Answer, Job, Residence
from rose_trace import generators, hooks, pytree
from rose_trace.component import Instance, rebuild
from rose_trace.record import join, leave

SPAWN_TIMEOUT_S = 120.0  # ours: importing torch on a busy machine takes seconds
EXIT_TIMEOUT_S = 10.0  # ours
LAST_LINES = 20  # ours: how much of a dead worker's output an error shows


class WorkerDied(RuntimeError):
    """A worker process ended while it was needed."""


@dataclass(frozen=True, slots=True)
class _Build:
    resident: str
    instance: Instance
    shard: int
    shards: int
    generators: generators.State


@dataclass(frozen=True, slots=True)
class _Record:
    settings: Any


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class ProcessWorker:
    """One spawned process with one slot.

    Args:
        name: Worker name.
        composites: Definitions that only call other nodes, by key.
    """

    kind = "process"

    def __init__(self, name: str, composites: frozenset[str]) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, remote = context.Pipe()
        output, remote_output = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_serve, args=(remote, remote_output, name, composites), name=f"rose-{name}"
        )
        with _environment(OMP_WAIT_POLICY="PASSIVE"):  # an idle team must not spin on a shared core
            self._process.start()
        remote.close()
        remote_output.close()
        self._pending: dict[int, Future[Any]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._closing = False
        self._output = threading.Thread(target=self._forward, args=(output,), daemon=True)
        self._output.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def build(
        self, resident: str, instance: Instance, shard: int, shards: int
    ) -> Future[generators.State]:
        """Construct a component, or one shard of it, in the process."""
        return self._ask(_Build(resident, instance, shard, shards, generators.capture()))

    def run(self, job: Job) -> Future[Answer]:
        """Start a job."""
        try:
            job.leaves = tuple(wire.for_process(leaf) for leaf in job.leaves)
        except Exception as error:
            failed: Future[Answer] = Future()
            failed.set_exception(_unpicklable(self.name, job, error))
            return failed
        return self._ask(job)

    def record(self, settings: Any) -> Future[None]:
        """Start recording in the process, or end it with ``None``."""
        return self._ask(_Record(settings))

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process; kills it where it does not end by itself."""
        self._closing = True
        with contextlib.suppress(WorkerDied):
            self._ask(_Stop())
        self._process.join(EXIT_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._output.join(EXIT_TIMEOUT_S)
        self._pipe.close()

    def _ask(self, message: object) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            try:
                data = pickle.dumps(message, protocol=5)
            except Exception as error:
                future.set_exception(_unpicklable(self.name, message, error))
                return future
            self._pending[number] = future
            try:
                self._pipe.send_bytes(number.to_bytes(8, "little", signed=True))
                self._pipe.send_bytes(data)
            except OSError:
                self._pending.pop(number, None)
                future.set_exception(self._died())
        return future

    def _read(self) -> None:
        while True:
            try:
                number = int.from_bytes(self._pipe.recv_bytes(), "little", signed=True)
                data = self._pipe.recv_bytes()
            except (EOFError, OSError):
                break
            answer: Any = None
            try:
                answer, error = pickle.loads(data)
            except Exception as problem:  # a class of the worker that this process cannot import
                error = problem
            future = self._pending.pop(number)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)
        self._process.join(EXIT_TIMEOUT_S)
        with self._lock:
            left, self._pending = self._pending, {}
        for future in left.values():
            if self._closing:
                future.set_result(None)
            else:
                self._output.join(1.0)
                future.set_exception(self._died())

    def _died(self) -> WorkerDied:
        self._process.join(1.0)  # its end of the pipe closes a moment before it is gone
        code = self._process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        said = "\n  ".join(self._last) or "(no output)"
        return WorkerDied(
            f"Worker {self.name}: expected a running process, got {how} (pid {self._process.pid}). "
            f"Its last output was:\n  {said}\nTraining can go on without the plan after a restart."
        )

    def _forward(self, output: Connection) -> None:
        """Pass the process's output on, and keep its end for an error message."""
        with output, os.fdopen(os.dup(output.fileno()), errors="replace") as lines:
            for line in lines:
                self._last.append(line.rstrip("\n"))
                sys.stderr.write(line)


def _unpicklable(worker: str, message: object, error: Exception) -> Exception:
    subject = message.path if isinstance(message, Job) else "A component"
    if isinstance(message, _Build):
        subject = f"Component {message.instance.name}"
    return pickle.PicklingError(
        f"{subject}: expected values that can be sent to worker {worker}, got {error}. Define classes at "
        "module level and pass plain data, tensors or arrays."
    )


@contextlib.contextmanager
def _environment(**values: str) -> Any:
    missing = {key: value for key, value in values.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            del os.environ[key]


# In the process ---------------------------------------------------------------------------------


def _serve(pipe: Connection, output: Connection, name: str, composites: frozenset[str]) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    import faulthandler

    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what an interrupt ends
    hooks.install_executor(Native())
    residence = Residence(name, composites)
    while True:
        try:
            number = int.from_bytes(pipe.recv_bytes(), "little", signed=True)
            data = pipe.recv_bytes()
        except EOFError:
            number, data = -1, pickle.dumps(_Stop())
        answer: Any = None
        error: BaseException | None = None
        message: object = None
        try:
            message = pickle.loads(data)
            answer = _handle(residence, message)
        except BaseException as raised:
            error = raised
            trace = "".join(traceback.format_exception(raised)).rstrip()
            error.add_note(f"Raised in worker {name}:\n{trace}")
        if number >= 0:
            _send(pipe, number, answer, error)
        if isinstance(message, _Stop):
            break
    pipe.close()


def _send(pipe: Connection, number: int, answer: Any, error: BaseException | None) -> None:
    try:
        data = pickle.dumps((answer, error), protocol=5)
        pickle.loads(data) if error is not None else None
    except Exception as problem:
        notes = "\n".join(getattr(error, "__notes__", []))
        stand_in = RuntimeError(
            f"{error if error is not None else problem!r} (could not be pickled)\n{notes}"
        )
        data = pickle.dumps((None, stand_in), protocol=5)
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(number.to_bytes(8, "little", signed=True))
        pipe.send_bytes(data)


def _handle(residence: Residence, message: object) -> Any:
    match message:
        case Job():
            leaves, structure = pytree.flatten(residence.execute(message))
            return Answer(structure, tuple(wire.Blob(wire.dumps(leaf)) for leaf in leaves))
        case _Build(resident, instance, shard, shards, state):
            generators.restore(state)
            residence.components[resident] = rebuild(instance, shard, shards)
            return generators.capture()
        case _Record(settings):
            _record(settings, residence.worker)
        case _:
            _record(None, residence.worker)
    return None


def _record(settings: Any, worker: str) -> None:
    if hooks.recorder() is None and settings is None:
        return
    if settings is None:
        leave()
    else:
        join(settings, process=f"worker:{worker}")
