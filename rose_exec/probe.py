"""`rose_exec.probe`: what a split would cost and whether its rows stay bit-identical, on real inputs.

One more native iteration runs. Beside it, nodes that only read are repeated on parts of the batch and
with other thread counts, and components that can be sharded are followed by separately built shards.
The program's own results, states and random generators are untouched.

Paper: §4.3.3 (local measurement on trial copies).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rose_exec.split import slice_arguments
from rose_exec.stopwatch import synchronize
from rose_trace import frames, generators, hooks, pytree
from rose_trace.component import Instance, LocalComponents, rebuild
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, RowRange, partition
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode
from rose_trace.parquet import read_metadata, write_table

MAX_INVOCATIONS = 12  # ours: per node; medians settle by then


@dataclass(slots=True)
class _Probe(LocalComponents):
    """Resolver that runs everything natively and repeats what can be repeated."""

    run: str
    groups: tuple[int, ...]
    threads: tuple[int, ...]
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seen: dict[str, int] = field(default_factory=dict[str, int])
    batch: dict[str, int] = field(default_factory=dict[str, int])
    shards: dict[tuple[str, int], list[Any]] = field(
        default_factory=dict[tuple[str, int], list[Any]]
    )
    fresh: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    quiet: bool = False

    # Resolver -----------------------------------------------------------------------------------

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run natively; repeat the node where that is safe."""
        caller = frames.current.get() or Frame()
        instance = node.instance_of(args)
        frame = replace(caller, path=caller.child_path(node.full_name(instance)), calls={})
        repeat = self._repeatable(node, instance, frame.path)
        if repeat is None:
            with frames.entered(frame):
                return node.entry(*args, **kwargs)
        self.quiet = True
        try:
            with frames.entered(frame):
                result, row = _timed(lambda: node.entry(*args, **kwargs))
                total = _batch_rows(result)
                if total:
                    self.seen[frame.path] = self.seen.get(frame.path, 0) + 1
                    self._note(frame, row, "whole", 1, -1, None)
                    drawn = generators.capture()
                    repeat(node, instance, frame, args, kwargs, result, total)
                    generators.restore(drawn)
        finally:
            self.quiet = False
        return result

    run_iteration = invoke

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run the loop natively, with iteration indices."""
        caller = frames.current.get() or Frame()
        path = caller.child_path(loop.full_name(loop.instance))
        outputs: list[Any] = []
        for index, item in enumerate(items):
            with frames.entered(Frame(path, (*caller.iteration, index))):
                carry, output = loop.body(carry, item)
            outputs.append(output)
        return carry, outputs

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Run the loop natively, with iteration indices."""
        caller = frames.current.get() or Frame()
        for index, item in enumerate(items):
            with frames.entered(Frame(caller.child_path(name), (*caller.iteration, index))):
                yield item

    # Repeating ----------------------------------------------------------------------------------

    def _repeatable(
        self, node: ExecutionNode, instance: Instance | None, path: str
    ) -> Callable[..., None] | None:
        """How to repeat the node, if at all."""
        if self.quiet or not node.declaration.rows or node.kind != "exec":
            return None
        if self.seen.get(path, 0) >= MAX_INVOCATIONS or node.is_async or node.is_generator:
            return None
        accesses = AccessSet() if node.declaration.silent else node.accesses(instance)
        if not any(a.mode.writes for a in accesses.accesses):
            return self._parts
        keyed = all(a.keyed or not a.mode.writes for a in accesses.accesses)
        if instance is not None and instance.declared.shardable and keyed:
            return self._on_shards
        return None

    def _parts(
        self,
        node: ExecutionNode,
        instance: Instance | None,
        frame: Frame,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        total: int,
    ) -> None:
        """Repeat a node that only reads: the whole batch and its parts, at each thread count."""
        for threads in self.threads:
            with _threads(threads):
                again, row = _timed(lambda: node.entry(*args, **kwargs))
                self._note(frame, row, "whole", 1, -1, _same(result, again))
                for count in self.groups:
                    for group, rows in enumerate(partition(total, min(count, total))):
                        part_args, part_kwargs = slice_arguments(
                            node, args, kwargs, total, rows, None
                        )
                        with frames.entered(_branch(frame, group, count, rows)):
                            part, row = _timed(lambda: node.entry(*part_args, **part_kwargs))  # noqa: B023
                        self._note(
                            frame, row, "part", count, group, _same(result, part, total, rows)
                        )

    def _on_shards(
        self,
        node: ExecutionNode,
        instance: Instance | None,
        frame: Frame,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        total: int,
    ) -> None:
        """Let separately built shards do the same; they follow from the first refresh on."""
        assert instance is not None
        renewed = bool(node.declaration.refreshes) and not node.declaration.updates
        for count in self.groups:
            key = (instance.name, count)
            if key not in self.shards:
                self.shards[key] = [rebuild(instance, k, count) for k in range(count)]
            if renewed:
                self.fresh.add(key)
            if key not in self.fresh:
                continue
            for group, rows in enumerate(partition(total, count)):
                part_args, part_kwargs = slice_arguments(node, args, kwargs, total, rows, None)
                copy = self.shards[key][group]
                with frames.entered(_branch(frame, group, count, rows)):
                    part, row = _timed(lambda: node.entry(copy, *part_args[1:], **part_kwargs))  # noqa: B023
                self._note(frame, row, "shard", count, group, _same(result, part, total, rows))

    def _note(
        self,
        frame: Frame,
        spent: dict[str, int],
        variant: str,
        groups: int,
        group: int,
        identical: bool | None,
    ) -> None:
        self.rows.append(
            {
                "run": self.run,
                "path": frame.path,
                "variant": variant,
                "groups": groups,
                "group": group,
                "threads": _current_threads(),
                "identical": identical,
                "iteration": list(frame.iteration),
                **spent,
            }
        )


def probe(
    trace: str | Path,
    iteration: Callable[[], Any],
    *,
    groups: Sequence[int] = (2,),
    threads: Sequence[int] | None = None,
) -> Any:
    """Measure parts, shards and thread counts beside one more native iteration.

    Args:
        trace: The recorded trace; the measurements go into ``<stem>.probes.parquet`` beside it.
        iteration: The program's iteration; it is called once.
        groups: Numbers of groups to measure.
        threads: Intra-op thread counts; 1 and the current one by default.

    Returns:
        What the iteration returned.

    Raises:
        TraceError: If there is no complete trace at `trace`.
        RuntimeError: If a recording or a replay is open.

    Paper: §4.3.3.
    """
    run = read_metadata(trace).run
    counts = threads or dict.fromkeys((1, _current_threads()))
    resolver = _Probe(run, tuple(groups), tuple(counts))
    if hooks.active is not None:
        raise RuntimeError(
            "rose_exec.probe: expected a program that is neither recorded nor replayed, got an open block. "
            "Call probe after it."
        )
    hooks.install_executor(resolver)
    try:
        result = iteration()
    finally:
        hooks.install_executor(None)
    write_table("probes", trace, resolver.rows)
    return result


def _timed(call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    synchronize()
    cpu, start = time.process_time_ns(), time.perf_counter_ns()
    result = call()
    synchronize()  # what it gave a device counts as well
    end = time.perf_counter_ns()
    return result, {"duration_ns": end - start, "cpu_ns": time.process_time_ns() - cpu}


def _batch_rows(result: Any) -> int:
    """Rows of a result: the common first axis of its tensors, 0 where they have none."""
    leaves, _ = pytree.flatten(result)
    sizes = {leaf.shape[0] for leaf in map(pytree.describe_leaf, leaves) if leaf.shape}
    return sizes.pop() if len(sizes) == 1 else 0


def _branch(frame: Frame, group: int, groups: int, rows: RowRange) -> Frame:
    return replace(frame, calls={}, group=group, groups=groups, rows=rows)


def _same(whole: Any, part: Any, total: int = 0, rows: RowRange | None = None) -> bool:
    """Whether a repeated result has the same bits, in its rows."""
    expected, one = pytree.flatten(whole)
    found, two = pytree.flatten(part)
    if not one.matches(two):
        return False
    if rows is not None:
        expected = [
            leaf[rows.start : rows.stop] if _carries(leaf, total) else leaf for leaf in expected
        ]
    return all(_bits(a) == _bits(b) for a, b in zip(expected, found, strict=True))


def _carries(leaf: Any, total: int) -> bool:
    shape = pytree.describe_leaf(leaf).shape
    return bool(shape) and shape[0] == total


def _bits(leaf: Any) -> Any:
    if hasattr(leaf, "untyped_storage"):
        leaf = leaf.detach().cpu()
        return (
            str(leaf.dtype),
            tuple(leaf.shape),
            leaf.contiguous().view(-1).view(_uint8()).numpy().tobytes(),
        )
    if type(leaf).__module__ == "numpy":
        return str(leaf.dtype), leaf.shape, leaf.tobytes()
    return leaf


def _uint8() -> Any:
    return sys.modules["torch"].uint8


def _current_threads() -> int:
    torch = sys.modules.get("torch")
    return 1 if torch is None else torch.get_num_threads()


@contextlib.contextmanager
def _threads(count: int) -> Generator[None]:
    torch = sys.modules.get("torch")
    before = _current_threads()
    if torch is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)
