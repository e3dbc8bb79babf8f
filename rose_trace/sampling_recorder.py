"""The recorder that samples: invocations that only count, beside those that are recorded in full.

An invocation in an iteration that is left out is counted and timed, advances the versions of what it
writes, and leaves no row. Its loop's row has the sums, by path below the loop. What it returns is
known by an id that all such invocations of its node in that loop share, so that no edge is lost.

Paper: App. A ("the first and last steps of inner loops").
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable
from contextvars import Token
from dataclasses import dataclass, replace
from typing import Any

from rose_trace import otel
from rose_trace.component import Instance
from rose_trace.dataref import describe_result
from rose_trace.frames import Frame, current
from rose_trace.invocation import Invocation
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode
from rose_trace.otel import SPAN_KEY
from rose_trace.recorder import Recorder
from rose_trace.sampling import Sampling, Unsampled, between, sums
from rose_trace.suspended import drive

_now = time.time_ns
_frame, _set_frame, _reset_frame = current.get, current.set, current.reset


class SamplingRecorder(Recorder):
    """A recorder of the first and last `steps` iterations of every loop inside an RL iteration.

    Attributes:
        steps: Iterations at each end.
    """

    steps: int = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._summing = _Summing(self)

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one invocation natively; record it, or only add it to the sums."""
        caller = _frame()
        if caller.__class__ is not Unsampled:
            return super().invoke(node, args, kwargs)
        if node.is_async or node.is_generator:
            return drive(self._summing, node, args, kwargs)  # type: ignore[arg-type]
        instance = getattr(args[0], "_rose_instance", None) if node.is_method and args else None
        frame = self._below(caller, node, instance)  # type: ignore[arg-type]
        token = _set_frame(frame)
        start = _now()
        try:
            result = node.entry(*args, **kwargs)
        except BaseException:
            self.add(frame, start)
            raise
        finally:
            _reset_frame(token)
        self.add(frame, start, result)
        return result

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run all iterations of a loop natively; record the first and the last ones."""
        caller = _frame()
        if isinstance(caller, Unsampled):
            return self._summed_loop(caller, loop, carry, items)
        sampling = Sampling(self.steps, items)
        if caller is None or not caller.iteration or sampling.everything:
            return super().run_loop(loop, carry, items)
        given = (carry, items) if isinstance(items, (list, tuple)) else (carry,)
        try:
            inv = self.opened(loop, given, {}, loop.instance)
            left_out = between(inv)
        except Exception as failure:
            self.fail(failure)
            return loop.run(carry, items)
        outputs: list[Any] = []
        error: BaseException | None = None
        try:
            for index, item in enumerate(items):
                if index in sampling:
                    token = current.set(inv.inside(index))
                else:
                    token = current.set(left_out)
                try:
                    carry, output = loop.body(carry, item)
                finally:
                    current.reset(token)
                outputs.append(output)
        except BaseException as problem:
            error = problem
            raise
        finally:
            inv.count = len(outputs)
            self._tell_sums(inv, left_out, sampling, len(outputs))
            self.closed(inv, (carry, outputs), error)
        return carry, outputs

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Record a loop that cannot be rewritten: the first and the last blocks between two items."""
        caller = _frame()
        if isinstance(caller, Unsampled):
            return self._summed_iterate(caller, name, items)
        sampling = Sampling(self.steps, items)
        if caller is None or not caller.iteration or sampling.everything:
            return super().iterate(name, items)
        return self._sampled_iterate(name, items, sampling)

    def add(self, frame: Unsampled, start_ns: int, result: Any = None) -> None:
        """Add an invocation that ends now to the sums; never raises.

        Args:
            frame: Where it ran.
            start_ns: When it started [Unix ns].
            result: What it returned.
        """
        now = _now()
        try:
            with self._lock:
                frame.count += 1
                frame.total_ns += now - start_ns
                for cell in frame.written:
                    cell[0] += 1
            if result is not None:
                describe_result(result, (frame.alias, start_ns, now))
        except Exception as failure:
            self.fail(failure)

    def _below(
        self, caller: Unsampled, node: ExecutionNode, instance: Instance | None
    ) -> Unsampled:
        """The frame of a node's invocations below `caller`."""
        key = node.entry, node.name, None if instance is None else instance.name
        frame = caller.inner.get(key)
        if frame is None:
            path = caller.child_path(node.full_name(instance))
            accesses = node.accesses(instance).accesses
            with self._lock:
                written = tuple(
                    self._states.setdefault(a.state, [0]) for a in accesses if a.mode.writes
                )
            frame = caller.inner[key] = self._lower(caller, path, written)
        return frame

    def _lower(
        self, caller: Unsampled, path: str, written: tuple[list[int], ...] = ()
    ) -> Unsampled:
        return Unsampled(
            path,
            caller.iteration,
            caller.span_id,
            caller.trace_id,
            {},
            caller.group,
            caller.groups,
            caller.rows,
            written,
            self._span_id() or 1,
        )

    def _summed_loop(
        self, caller: Unsampled, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        frame = self._below(caller, loop, loop.instance)
        start = _now()
        token = _set_frame(frame)
        outputs: list[Any] = []
        try:
            for item in items:
                carry, output = loop.body(carry, item)
                outputs.append(output)
        finally:
            _reset_frame(token)
            frame.bodies += len(outputs)
            self.add(frame, start, (carry, outputs))
        return carry, outputs

    def _summed_iterate(self, caller: Unsampled, name: str, items: Iterable[Any]) -> Generator[Any]:
        frame = caller.inner.get(name)
        if frame is None:
            frame = caller.inner[name] = self._lower(caller, caller.child_path(name))
        start = _now()
        try:
            for item in items:
                frame.bodies += 1
                yield from _within(frame, item)
        finally:
            self.add(frame, start)

    def _sampled_iterate(
        self, name: str, items: Iterable[Any], sampling: Sampling
    ) -> Generator[Any]:
        left_out: Unsampled | None = None
        inv: Any = None
        count = 0

        def watched() -> Generator[Any]:
            try:
                yield from items
            finally:  # the row has its sums before the loop ends
                if left_out is not None:
                    self._tell_sums(inv, left_out, sampling, count)

        source = watched()
        blocks: Any = super().iterate(name, source)
        try:
            for index, item in enumerate(blocks):
                count = index + 1
                if index in sampling:
                    yield item
                    continue
                if left_out is None:
                    inv = otel.current_context().get(SPAN_KEY)
                    if not isinstance(inv, Invocation) or inv.site.node != name:
                        yield item  # recording has stopped
                        continue
                    left_out = between(inv)
                yield from _within(left_out, item)
        finally:
            source.close()
            blocks.close()

    def _tell_sums(self, inv: Invocation, frame: Unsampled, sampling: Sampling, count: int) -> None:
        """Put the sums into the row of a loop that has run `count` iterations; never raises."""
        left_out = sampling.left_out(count)
        if not left_out:
            return
        try:
            below = sums(frame, f"{frame.path}/")
            told = (
                ("sampled", str(count - len(left_out))),
                ("unsampled", f"{left_out.start} {left_out.stop}"),
            )
            inv.site = replace(inv.site, attributes=(*inv.site.attributes, *told, *below))
        except Exception as failure:
            self.fail(failure)


def sampled(kind: type[Recorder], steps: int) -> type[Recorder]:
    """The recorder `kind` that records `steps` iterations at each end of inner loops in full."""
    return type(f"Sampling{kind.__name__}", (SamplingRecorder, kind), {"steps": steps})


@dataclass(slots=True)
class _Summed:
    """A coroutine or generator that runs and leaves no row.

    Attributes:
        frame: Where it runs.
        start_ns: Its start [Unix ns].
        span_id: What its values are known by.
        token: Of the context, while it is attached.
    """

    frame: Unsampled
    start_ns: int
    span_id: int
    token: Token[Frame | None] | None = None


class _Summing:
    """What `drive` needs of a recorder, for invocations that only count."""

    def __init__(self, recorder: SamplingRecorder) -> None:
        self._recorder = recorder
        self.fail = recorder.fail

    def opened(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any], caller: Unsampled
    ) -> _Summed:
        instance = node.instance_of(args)
        frame = self._recorder._below(caller, node, instance)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        call = _Summed(frame, _now(), frame.alias)
        self.attach(call)
        return call

    def closed(self, call: _Summed, result: Any = None, error: BaseException | None = None) -> None:
        self.leave(call)
        self._recorder.add(call.frame, call.start_ns, result)

    def attach(self, call: _Summed) -> None:
        call.token = _set_frame(call.frame)

    def leave(self, call: _Summed) -> None:
        token, call.token = call.token, None
        if token is not None:
            # Finalised in another context, nothing of it is attached there.
            with contextlib.suppress(ValueError):
                _reset_frame(token)


def _within(frame: Unsampled, item: Any) -> Generator[Any]:
    """Hand out one item with `frame` around the block that uses it."""
    token = _set_frame(frame)
    try:
        yield item
    finally:
        if _frame() is frame:
            _reset_frame(token)
