"""What runs in a worker process: takes requests one after the other and answers them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from rose_exec import wire
from rose_exec.device_errors import LOST, is_lost
from rose_exec.memory import Memory, enter
from rose_exec.native import Native
from rose_exec.workers.channel import NOTHING, SILENCE, Channel, News
from rose_exec.workers.job import Answer, Job, Residence
from rose_exec.workers.lanes import Lanes
from rose_exec.workers.message import AnswerWriter, RequestReader, node_of
from rose_trace import generators, hooks, pytree
from rose_trace.component import Instance, rebuild
from rose_trace.record import join, leave

POLL_S = 0.002  # ours: how often a worker without work looks whether its device has read what it was given


@dataclass(frozen=True, slots=True)
class Build:
    """Construct a component, or one shard of it."""

    resident: str
    instance: Instance
    shard: int
    shards: int
    generators: generators.State


@dataclass(frozen=True, slots=True)
class Record:
    """Start recording, or end it with ``None``."""

    settings: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


def serve(
    pipe: Connection,
    output: Connection,
    name: str,
    owner: str,
    composites: frozenset[str],
    environment: Mapping[str, str],
) -> None:
    """Answer requests until told to stop, or until the program is gone.

    Args:
        pipe: Where requests come from.
        output: Takes the place of standard output and error.
        name: Worker name.
        owner: Name of this process for shared memory.
        composites: Definitions that only call other nodes, by key.
        environment: Variables that the device's driver reads at its first use.
    """
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what an interrupt ends
    hooks.install_executor(Native())
    server = _Server(Channel(pipe), enter(Memory(owner)), Residence(name, composites))
    try:
        while server.turn():
            pass
    finally:
        server.close()


@dataclass(slots=True)
class _Server:
    channel: Channel
    memory: Memory
    residence: Residence
    lanes: Lanes = field(default_factory=Lanes)
    requests: RequestReader = field(default_factory=RequestReader)
    answers: AnswerWriter = field(default_factory=AnswerWriter)
    node: object = None
    closed: bool = False

    def turn(self) -> bool:
        """Take one message; returns whether more may come."""
        self._wait()
        try:
            number, news, data = self.channel.receive()
        except (EOFError, OSError):
            return False
        told = self._learn(news)
        if number == NOTHING:
            if told:
                self._send(NOTHING, told, b"")
            return True
        message, answer, error = self._do(number, data)
        self._answer(number, told, answer, error)
        return not isinstance(message, Stop)

    def _wait(self) -> None:
        """Wait for a message, and report meanwhile what the device has read."""
        inbox = self.memory.inbox
        while inbox.reading and not self.channel.waits(POLL_S):
            finished = inbox.finished()
            if finished:
                self._send(NOTHING, News(finished=finished), b"")

    def _learn(self, news: News) -> News:
        if news is SILENCE:
            return news
        for chunk in news.chunks:
            self.memory.inbox.learn(chunk)
        for place in news.freed:
            self.memory.outbox.free(place)
        for chunk in news.closed:
            self.memory.outbox.release(chunk.number)
        for chunk in news.retired:
            self.memory.inbox.close(chunk)
        return News(closed=news.retired) if news.retired else SILENCE

    def _do(self, number: int, data: memoryview) -> tuple[object, Any, BaseException | None]:
        message: object = None
        try:
            message = self.requests.loads(data)
            if isinstance(message, Job):
                message.tag, self.node = number, node_of(message)
            return message, self._handle(message), None
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)).rstrip()
            error.add_note(f"Raised in worker {self.residence.worker}:\n{trace}")
            if is_lost(error):
                error.add_note(
                    f"Worker {self.residence.worker}: {LOST}, got one that no longer "
                    "works after this error. Close the session and start it again."
                )
            # What the failed call had on a device is free again for the next one.
            traceback.clear_frames(error.__traceback__)
            return message, None, error

    def _answer(self, number: int, news: News, answer: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # of a device that no longer works
            self.memory.fence(number)  # a call that failed before it could say so
        try:
            data = self.answers.dumps(self.node, answer, error)
            pickle.loads(data) if error is not None else None
        except Exception as problem:
            notes = "\n".join(getattr(error, "__notes__", []))
            stand_in = RuntimeError(
                f"{error if error is not None else problem!r} (could not be pickled)\n{notes}"
            )
            data = self.answers.dumps(self.node, None, stand_in)
        finished: list[Any] = []
        with contextlib.suppress(RuntimeError):  # of a device that no longer works
            finished = self.memory.inbox.finished()
        chunks, retired = self.memory.outbox.news()
        if chunks or retired or finished:
            news = News(chunks, retired, news.closed, finished=finished)
        self._send(number, news, data)
        self.answers.written()

    def _send(self, number: int, news: News, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(number, news, data)

    def _handle(self, message: object) -> Any:
        residence = self.residence
        match message:
            case Job():
                with self.lanes.on(message):
                    leaves, structure = pytree.flatten(residence.execute(message))
                    return Answer(structure, wire.pack(leaves))
            case Build(resident, instance, shard, shards, state):
                generators.restore(state)
                residence.components[resident] = rebuild(instance, shard, shards)
                self.lanes.built()
                return generators.capture()
            case Record(settings):
                _record(settings, residence.worker)
            case _:
                _record(None, residence.worker)
                self.close()
        return None

    def close(self) -> None:
        """Let go of everything, while all that it needs for that is still there."""
        if not self.closed:
            self.closed = True
            self.residence.components.clear()
            with contextlib.suppress(RuntimeError):  # of a device that no longer works
                self.memory.close()


def _record(settings: Any, worker: str) -> None:
    if hooks.recorder() is None and settings is None:
        return
    if settings is None:
        leave()
    else:
        join(settings, process=f"worker:{worker}")
