"""A worker that is a process of its own, spawned, with one slot.

Requests and answers are messages on one pipe, so order is kept and a dead process is seen at once. Large
values stay in the process that made them: this side keeps them alive there for as long as anything
refers to them, and until the devices of their readers have read them.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rose_exec import wire
from rose_exec.memory import HOST, Chunk, ChunkId, Held, here
from rose_exec.memory.arena import Place
from rose_exec.workers.channel import NOTHING, SILENCE, Channel, News
from rose_exec.workers.directory import directory
from rose_exec.workers.job import Answer, Job
from rose_exec.workers.message import AnswerReader, RequestWriter
from rose_exec.workers.serve import Build, Record, Stop, serve
from rose_trace import generators
from rose_trace.component import Instance

START_METHOD = "spawn"  # CUDA does not survive a fork of a process that uses it
EXIT_TIMEOUT_S = 10.0  # ours
LAST_LINES = 20  # ours: how much of a dead worker's output an error shows

_numbers = itertools.count()


class WorkerDied(RuntimeError):
    """A worker process ended while it was needed."""


@dataclass(slots=True)
class _Asked:
    """A request without an answer, or with one whose arguments a device still reads.

    Attributes:
        future: Its answer.
        given: Values of other processes among its arguments.
        later: Whether the worker says by itself when it has read them.
    """

    future: Future[Any]
    given: Sequence[Held]
    later: bool


class ProcessWorker:
    """One spawned process with one slot.

    Args:
        name: Worker name.
        composites: Definitions that only call other nodes, by key.
        environment: Variables that it sets before it uses a device.
    """

    kind = "process"
    _closing = False
    _gone = False

    def __init__(
        self,
        name: str,
        composites: frozenset[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.owner = f"{name}#{next(_numbers)}"
        context = multiprocessing.get_context(START_METHOD)
        pipe, remote = context.Pipe()
        self._channel = Channel(pipe)
        self._requests = RequestWriter()
        self._answers = AnswerReader()
        output, remote_output = context.Pipe(duplex=False)
        self._process = context.Process(
            target=serve,
            args=(remote, remote_output, name, self.owner, composites, dict(environment or {})),
            name=f"rose-{name}",
        )
        with _environment(OMP_WAIT_POLICY="PASSIVE"):  # an idle team must not spin on a shared core
            self._process.start()
        remote.close()
        remote_output.close()
        self._pending: dict[int, _Asked] = {}
        self._reading: dict[int, Sequence[Held]] = {}
        self._read_changed = threading.Condition()
        self._held: dict[weakref.ref[Held], Place] = {}
        self._freed: collections.deque[Place] = collections.deque()
        self._closed_chunks: collections.deque[ChunkId] = collections.deque()
        self._released: collections.deque[ChunkId] = collections.deque()
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        directory.join(self)
        self._output = threading.Thread(target=self._forward, args=(output,), daemon=True)
        self._output.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def build(
        self, resident: str, instance: Instance, shard: int, shards: int
    ) -> Future[generators.State]:
        """Construct a component, or one shard of it, in the process."""
        return self.build_again(resident, instance, shard, shards, generators.capture())

    def build_again(
        self, resident: str, instance: Instance, shard: int, shards: int, drawn: generators.State
    ) -> Future[generators.State]:
        """The same with the generators as they were then."""
        return self._ask(Build(resident, instance, shard, shards, drawn))

    def run(self, job: Job) -> Future[Answer]:
        """Start a job."""
        job.stream = None
        here().settle()
        try:
            job.leaves = tuple(map(wire.for_process, job.leaves))
        except Exception as error:
            failed: Future[Answer] = Future()
            failed.set_exception(_unpicklable(self.name, job, error))
            return failed
        given = [held for leaf in job.leaves for held in wire.held_in(leaf)]
        answer = self._ask(job, given)
        directory.retire_own()
        return answer

    def record(self, settings: Any) -> Future[None]:
        """Start recording in the process, or end it with ``None``."""
        return self._ask(Record(settings))

    @property
    def ended(self) -> bool:
        """Whether the process is gone although nobody ended it."""
        return self._gone and not self._closing

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process; kills it where it does not end by itself."""
        self._save()
        directory.wait_until_read(self)
        self._closing = True
        with contextlib.suppress(WorkerDied):
            self._ask(Stop())
        self._process.join(EXIT_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._output.join(EXIT_TIMEOUT_S)
        self._channel.close()

    def close_chunk(self, chunk: ChunkId) -> None:
        """Tell the process to close another one's chunk."""
        self._closed_chunks.append(chunk)
        self._flush()

    def wait_until_read(self, owner: str) -> None:
        """Wait, a bounded time, until the process has read what it was given of process `owner`."""

        def done() -> bool:
            given = [held for values in list(self._reading.values()) for held in values]
            return not any(held.chunk.owner == owner for held in given)

        with self._read_changed:
            self._read_changed.wait_for(done, EXIT_TIMEOUT_S)

    def _outstanding(self) -> list[Held]:
        return [held for held in (known() for known in self._held.copy()) if held is not None]

    def _save(self) -> None:
        """Copy what the program still refers to: a value outlives its worker."""
        torch = sys.modules.get("torch")
        for held in self._outstanding():
            on_host = held.device == HOST or (torch is not None and torch.cuda.is_initialized())
            if on_host and held.saved is None:
                with contextlib.suppress(RuntimeError):
                    here().save(held)

    def _free(self, held: weakref.ref[Held]) -> None:
        self._freed.append(self._held.pop(held))
        if not sys.is_finalizing():  # modules go, and with them what sending takes
            self._flush()

    def _flush(self) -> None:
        """Send what has to be said about memory, unless something else will soon be sent anyway.

        Finalizers come here, in any thread and at any moment: this never waits for the lock.
        """
        while not self._pending and (self._freed or self._closed_chunks or self._released):
            if not self._lock.acquire(blocking=False):
                return  # whoever has it comes here afterwards
            try:
                self._channel.send(NOTHING, self._news([]), b"")
            except OSError:
                return
            finally:
                self._lock.release()

    def _news(self, chunks: Sequence[Chunk]) -> News:
        if not (chunks or self._closed_chunks or self._released or self._freed):
            return SILENCE
        return News(
            chunks,
            retired=_taken(self._closed_chunks),
            closed=_taken(self._released),
            freed=_taken(self._freed),
        )

    def _ask(self, message: object, given: Sequence[Held] = ()) -> Future[Any]:
        later = any(h.device != HOST and h.chunk.owner != self.owner for h in given)
        asked = _Asked(Future(), given, later)
        with self._lock:
            number = next(self._ids)
            try:
                data = self._requests.dumps(message)
            except Exception as error:
                asked.future.set_exception(_unpicklable(self.name, message, error))
                return asked.future
            others = {h.chunk for h in given if h.saved is None and h.chunk.owner != self.owner}
            news = self._news([c for c in (directory.tell(self, chunk) for chunk in others) if c])
            self._pending[number] = asked
            try:
                self._channel.send(number, news, data)
                self._requests.written()
            except OSError:
                self._pending.pop(number, None)
                asked.future.set_exception(self._died())
        return asked.future

    def _read(self) -> None:
        while True:
            try:
                number, news, data = self._channel.receive()
            except (EOFError, OSError):
                break
            self._learn(news)
            if number != NOTHING:
                self._answered(number, news, data)
            self._flush()
        self._process.join(EXIT_TIMEOUT_S)
        with self._lock:
            left, self._pending = self._pending, {}
        with self._read_changed:
            self._reading.clear()
            self._read_changed.notify_all()
        self._gone = True
        self._ended()
        for asked in left.values():
            if self._closing:
                asked.future.set_result(None)
            else:
                self._output.join(1.0)
                asked.future.set_exception(self._died())

    def _answered(self, number: int, news: News, data: memoryview) -> None:
        answer: Any = None
        try:
            answer, error = self._answers.loads(data)
        except Exception as problem:  # a class of the worker that this process cannot import
            error = problem
        if isinstance(answer, Answer):
            for leaf in answer.leaves:
                for held in wire.held_in(leaf):
                    self._held[weakref.ref(held, self._free)] = held.place
        asked = self._pending.pop(number)
        if asked.later and number not in news.finished:
            self._reading[number] = asked.given
        if error is not None:
            asked.future.set_exception(error)
        else:
            asked.future.set_result(answer)

    def _learn(self, news: News) -> None:
        if news is SILENCE:
            return
        for chunk in news.chunks:
            directory.add(chunk)
        if news.finished:
            with self._read_changed:
                for number in news.finished:
                    self._reading.pop(number, None)
                self._read_changed.notify_all()
        for chunk in news.closed:
            directory.closed(chunk, self.owner)
        for chunk in news.retired:
            directory.retire(chunk, lambda chunk=chunk: self._release(chunk))

    def _release(self, chunk: ChunkId) -> None:
        self._released.append(chunk)
        self._flush()

    def _ended(self) -> None:
        """The process is gone: what it held on the host is still there, the rest is not."""
        for held in self._outstanding():
            if held.saved is None and held.device == HOST:
                with contextlib.suppress(OSError, RuntimeError):
                    here().save(held)
            held.lost = "" if held.saved is not None else "a worker that has ended"
        directory.leave(self)
        for left in glob.glob(f"/dev/shm/torch_{self._process.pid}_*"):
            with contextlib.suppress(OSError):  # torch's counters, where the process was killed
                os.unlink(left)

    def _died(self) -> WorkerDied:
        self._process.join(1.0)  # its end of the pipe closes a moment before it is gone
        code = self._process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        said = "\n  ".join(self._last) or "(no output)"
        return WorkerDied(
            f"Worker {self.name}: expected a running process, got {how} (pid {self._process.pid}). "
            f"Its last output was:\n  {said}\nThe next iteration runs in native order with its components built again; what only they knew is lost."
        )

    def _forward(self, output: Connection) -> None:
        """Pass the process's output on, and keep its end for an error message."""
        with output, os.fdopen(os.dup(output.fileno()), errors="replace") as lines:
            for line in lines:
                self._last.append(line.rstrip("\n"))
                sys.stderr.write(line)


def _unpicklable(worker: str, message: object, error: Exception) -> Exception:
    subject = message.path if isinstance(message, Job) else "A component"
    if isinstance(message, Build):
        subject = f"Component {message.instance.name}"
    return pickle.PicklingError(
        f"{subject}: expected values that can be sent to worker {worker}, got {error}. Define classes at "
        "module level and pass plain data, tensors or arrays."
    )


def _taken(items: collections.deque[Any]) -> list[Any]:
    return [items.popleft() for _ in range(len(items))]


@contextlib.contextmanager
def _environment(**values: str) -> Generator[None]:
    missing = {key: value for key, value in values.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            del os.environ[key]
