"""Trials: a node runs once more on a copy, with something changed that must not matter.

Rows: with other rows in one half of the batch, the other half's outputs must keep their bits; shapes stay
the same, so kernels that depend on the batch size say nothing. Refresh: from another earlier value of the
state, outputs and new value must be the same. The training state is never touched: component and arguments
are copied before the body, and the process-wide generators are put back.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rose_exec.digest import content, digest, is_array, is_tensor
from rose_exec.sanitizer.copies import copied
from rose_exec.sanitizer.look import Leaf, Root
from rose_exec.sanitizer.watch import Watch
from rose_trace import generators, pytree
from rose_trace.node import ExecutionNode

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Inconclusive(Exception):
    """A trial that says nothing: the node cannot be copied or repeated."""


@dataclass(slots=True)
class RowsTrial:
    """One call with other rows in one half of the batch.

    Both sides run on copies: memory of another alignment can give other last bits by itself.

    Attributes:
        batch: Rows.
        kept: Rows that stay.
        controls: Copied arguments, unchanged, twice.
        perturbed: Copied arguments with other rows outside `kept`.
        drawn: Generators before the body.
    """

    batch: int
    kept: slice
    controls: tuple[Arguments, Arguments]
    perturbed: Arguments
    drawn: generators.State

    def outcome(self, run: Run) -> str | None:
        """What differs; ``None`` where nothing does.

        Raises:
            Inconclusive: If the node cannot be repeated.
        """
        found = _repeated(run, self.perturbed, self.drawn)
        control = _repeated(run, self.controls[0], self.drawn)
        differing = self._differs(control, found)
        if differing is None:
            return None
        again = _repeated(run, self.controls[1], self.drawn)
        if self._differs(control, again) is not None:
            raise Inconclusive("the same call gives other bits when repeated")
        return differing

    def _differs(self, result: Any, other: Any) -> str | None:
        leaves, one = pytree.flatten(result)
        others, two = pytree.flatten(other)
        if not one.matches(two):
            return "another structure"
        for index, (a, b) in enumerate(zip(leaves, others, strict=True)):
            shape = getattr(a, "shape", ())
            if shape and shape[0] == self.batch:
                if _bits(a[self.kept]) != _bits(b[self.kept]):
                    return f"other rows {self.kept.start}..{self.kept.stop - 1} in output {index}"
            elif _bits(a) != _bits(b):
                return f"another output {index}, which has no rows"
        return None


@dataclass(slots=True)
class RefreshTrial:
    """One call from another earlier value of the refreshed states.

    Attributes:
        control: Copied arguments, with a copy of the component as it was.
        other: Copied arguments, with a component whose refreshed states have their first value.
        drawn: Generators before the body.
    """

    control: tuple[tuple[Any, ...], dict[str, Any]]
    other: tuple[tuple[Any, ...], dict[str, Any]]
    drawn: generators.State

    def outcome(self, run: Run, result: Any, component: Any) -> str | None:
        """The attribute that inherits, or ``its result``; ``None`` where nothing does.

        Raises:
            Inconclusive: If the node cannot be repeated.
        """
        before = attributes_of(self.other[0][0])
        found = _repeated(run, self.other, self.drawn)
        inherits = self._inherits(result, found, component, self.other[0][0], before)
        if inherits is None:
            return None
        again = _repeated(run, self.control, self.drawn)
        if self._inherits(result, again, component, self.control[0][0], before) is not None:
            raise Inconclusive("the same call gives other bits when repeated")
        return inherits

    @staticmethod
    def _inherits(
        result: Any, other: Any, component: Any, copied: Any, before: Mapping[str, Leaf]
    ) -> str | None:
        real, tried = attributes_of(component), attributes_of(copied)
        for name, leaf in real.items():
            there = tried.get(name)
            exact = leaf.kind != "account"
            unwritten = before.get(name) == there
            if exact and not unwritten and (there is None or there.digest != leaf.digest):
                return name
        a, b = pytree.flatten(result)[0], pytree.flatten(other)[0]
        same = len(a) == len(b) and all(_bits(x) == _bits(y) for x, y in zip(a, b, strict=True))
        return None if same else "its result"


@dataclass(slots=True)
class Trials:
    """Which trials are due.

    Attributes:
        limit: Trials per node and kind.
        first: Copy of each component as it was built, by label.
        notes: Nodes that could not be tried, and why.
    """

    limit: int
    first: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    _done: collections.Counter[tuple[str, str]] = field(
        default_factory=collections.Counter[tuple[str, str]]
    )

    def keep_first(self, label: str, component: Any) -> None:
        """Keep the first value of a component that a node refreshes."""
        nodes = (
            getattr(m, "__rose_node__", None)
            for c in type(component).__mro__
            for m in vars(c).values()
        )
        if self.limit and any(n is not None and n.declaration.refreshes for n in nodes):
            try:
                self.first[label] = copied(component)
            except Exception as error:
                self.notes[label] = f"cannot be copied: {error}"

    def rows(
        self, path: str, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RowsTrial | None:
        """A trial of the rows of this call, if one is due."""
        count = self._done[path, "rows"]
        if not node.declaration.rows or count >= self.limit or path in self.notes:
            return None
        try:
            batch = _batch(_row_values(node, args, kwargs))
            if batch is None:
                return None
            half = batch // 2
            kept = slice(0, half) if count % 2 == 0 else slice(half, batch)
            one, two, other = (copied((args, kwargs)) for _ in range(3))
            perturbed = _perturbed(node, other[0], other[1], batch, kept)
        except Exception as error:
            self.notes[path] = f"cannot be copied: {error}"
            return None
        self._done[path, "rows"] += 1
        return RowsTrial(batch, kept, (one, two), perturbed, generators.capture())

    def refresh(
        self,
        path: str,
        label: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        owned: Iterable[str],
        kept: Iterable[str],
    ) -> RefreshTrial | None:
        """A trial of a refresh, if one is due and the state differs from its first value.

        Args:
            path: The node.
            label: The component.
            args: Arguments, the component first.
            kwargs: Keyword arguments.
            owned: Attributes that belong to the refreshed states.
            kept: Attributes that change, but belong to other states.
        """
        first = self.first.get(label)
        if first is None or self._done[path, "refresh"] >= self.limit or path in self.notes:
            return None
        names = set(owned)
        now, then = attributes_of(args[0]), attributes_of(first)
        if all(now.get(n) is not None and _same(now, then, n) for n in now if _top(n) in names):
            return None
        try:
            control, other = copied((args, kwargs)), copied((args[1:], kwargs))
            base = copied(first)
            for name in kept:
                if name in vars(args[0]):
                    vars(base)[name] = copied(vars(args[0])[name])
        except Exception as error:
            self.notes[path] = f"cannot be copied: {error}"
            return None
        self._done[path, "refresh"] += 1
        return RefreshTrial(control, ((base, *other[0]), other[1]), generators.capture())


def attributes_of(component: Any) -> dict[str, Leaf]:
    """Every watched value of a component, by its path below it."""
    watch = Watch()
    watch.roots["x"] = Root("x", "component", lambda: _own(component), component)
    return {path[2:]: leaf for path, leaf in watch.look().items()}


def _own(component: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = component.__dict__
    return {k: v for k, v in attributes.items() if k != "_rose_instance"}


def _top(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _same(now: Mapping[str, Leaf], then: Mapping[str, Leaf], name: str) -> bool:
    other = then.get(name)
    return other is not None and other.digest == now[name].digest


def _bits(leaf: Any) -> str:
    data = content(leaf)
    return digest(leaf) if data is None else f"{leaf.dtype}{list(leaf.shape)}{data.tobytes()!r}"


def _repeated(
    run: Run, arguments: tuple[tuple[Any, ...], dict[str, Any]], drawn: generators.State
) -> Any:
    """Run a copy with the generators as they were, and leave them as they are.

    Raises:
        Inconclusive: If it raises.
    """
    now = generators.capture()
    generators.restore(drawn)
    try:
        return run(*arguments)
    except Exception as error:
        raise Inconclusive(f"a copy raises {type(error).__name__}: {error}") from error
    finally:
        generators.restore(now)


def _row_values(
    node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    bound = inspect.signature(node.entry).bind(*args, **kwargs).arguments
    rows = node.declaration.rows
    first = next(iter(bound), None) if node.is_method else None
    return {k: v for k, v in bound.items() if k != first and (rows is True or k in (rows or ()))}


def _batch(values: dict[str, Any]) -> int | None:
    """Length of the batch: the commonest first axis; ``None`` where there is none to perturb."""
    lengths = collections.Counter(
        leaf.shape[0]
        for leaf in pytree.flatten(list(values.values()))[0]
        if (is_tensor(leaf) or is_array(leaf)) and leaf.ndim and leaf.shape[0] > 1
    )
    return lengths.most_common(1)[0][0] if lengths else None


def _perturbed(
    node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int, kept: slice
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = inspect.signature(node.entry).bind(*args, **kwargs)
    for name, value in _row_values(node, args, kwargs).items():
        bound.arguments[name] = pytree.map_leaves(lambda leaf: _other(leaf, batch, kept), value)
    return bound.args, bound.kwargs


def _other(leaf: Any, batch: int, kept: slice) -> Any:
    """The leaf with other values in the rows outside `kept`: of the same kind, and within range."""
    if not (is_tensor(leaf) or is_array(leaf)) or not leaf.ndim or len(leaf) != batch:
        return leaf
    rest = slice(kept.stop, batch) if kept.start == 0 else slice(0, kept.start)
    before = leaf.detach().clone() if is_tensor(leaf) else leaf.copy()
    changed = (
        leaf.detach() if is_tensor(leaf) else leaf
    )  # a copy already, with the layout of the control's
    floating = leaf.is_floating_point() if is_tensor(leaf) else leaf.dtype.kind == "f"
    if floating:
        changed[rest] = before[rest] * 0.5 + 0.25
    else:
        rows = [kept.start + k % (kept.stop - kept.start) for k in range(rest.stop - rest.start)]
        changed[rest] = before[rows]
    return changed
