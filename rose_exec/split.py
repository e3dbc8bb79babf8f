"""Split and Merge on values: which leaves carry rows, their slices, and putting groups together again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rose_exec.refs import Rows, Slice, defer, describe, is_deferred, value_of
from rose_opt.plan import PlanRefused
from rose_trace import pytree
from rose_trace.legality import RowRange
from rose_trace.node import ExecutionNode
from rose_trace.pytree import Leaf


def carries_rows(leaf: Leaf, rows: int) -> bool:
    """Whether a tensor or array has `rows` entries on axis 0."""
    return bool(leaf.shape) and leaf.shape[0] == rows


def slice_leaf(leaf: Any, total: int, rows: RowRange, wait: Any) -> Any:
    """The rows of a branch, where the leaf carries rows; the leaf itself otherwise."""
    described = describe(leaf)
    if not carries_rows(described, total):
        return leaf
    if not is_deferred(leaf):
        return leaf[rows.start : rows.stop]
    assert described.shape is not None
    part = Leaf(described.type, described.dtype, (len(rows), *described.shape[1:]))
    return defer(_narrow(value_of(leaf), rows), part, wait)


def _narrow(value: Any, rows: RowRange) -> Any:
    """A slice; of a merge whose part has just these rows, that part."""
    if isinstance(value, Rows) and value.bounds is not None and rows in value.bounds:
        return value.parts[value.bounds.index(rows)]
    return Slice(value, rows)


def slice_tree(tree: Any, total: int, rows: RowRange, wait: Any) -> Any:
    """`slice_leaf` on every leaf."""
    return pytree.map_leaves(lambda leaf: slice_leaf(leaf, total, rows, wait), tree)


def slice_arguments(
    node: ExecutionNode,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    total: int,
    rows: RowRange,
    wait: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of one shard: row-carrying ones sliced, the rest as they are."""
    if node.declaration.rows is True:
        return slice_tree(args, total, rows, wait), slice_tree(kwargs, total, rows, wait)
    names = node.declaration.rows or ()
    bound = inspect.signature(node.entry).bind(*args, **kwargs)
    for name in names:
        if name in bound.arguments:
            bound.arguments[name] = slice_tree(bound.arguments[name], total, rows, wait)
    return bound.args, bound.kwargs


def merge_trees(subject: str, trees: Sequence[Any], ranges: Sequence[RowRange], wait: Any) -> Any:
    """Put the groups' values together in row order.

    Raises:
        PlanRefused: If the groups' structures differ, or a leaf without rows differs between groups.
    """
    flat = [pytree.flatten(tree, describe) for tree in trees]
    first = flat[0][1]
    for _, structure in flat[1:]:
        if not first.matches(structure):
            raise PlanRefused(
                f"{subject}: expected the same structure from every group, got {first.to_json()} and "
                f"{structure.to_json()}. Return the same containers in every branch."
            )
    leaves = [
        merge_leaves(subject, group, ranges, wait)
        for group in zip(*(f[0] for f in flat), strict=True)
    ]
    return pytree.unflatten(first, iter(leaves))


def merge_leaves(subject: str, leaves: Sequence[Any], ranges: Sequence[RowRange], wait: Any) -> Any:
    """One leaf from its parts.

    Raises:
        PlanRefused: If it carries no rows and differs between groups.
    """
    described = [describe(leaf) for leaf in leaves]
    if all(carries_rows(d, len(r)) for d, r in zip(described, ranges, strict=True)):
        shape = described[0].shape or ()
        whole = Leaf(described[0].type, described[0].dtype, (sum(map(len, ranges)), *shape[1:]))
        value = Rows(tuple(value_of(leaf) for leaf in leaves), tuple(ranges))
        return defer(value, whole, wait)
    first = leaves[0]
    if all(leaf is first for leaf in leaves):
        return first
    plain = not any(map(is_deferred, leaves)) and all(d.shape is None for d in described)
    if plain and all(type(leaf) is type(first) and leaf == first for leaf in leaves):
        return first
    raise PlanRefused(
        f"{subject}: expected every output to carry one entry per row on axis 0, got "
        f"{', '.join(f'{d.type}{list(d.shape or ())}' for d in described)} from the groups. Return per-row "
        "values and reduce them after the loop, or drop the split from the plan."
    )
