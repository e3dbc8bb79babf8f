"""Buffers that a program fills again and again: values that only look different from call to call.

A simulator that steps into one preallocated observation, or a captured CUDA graph with its static
outputs, hands the same storage out each time. The trace shows it: one reference, several producers,
overlapping bytes. Whoever takes such a value must be done before the storage is filled again, although
no value flows between the two. The storage is therefore a state, ``buffer.<node>``: nodes that hand it
out update it, nodes that take it read it. Only a copy removes the dependency.

Whether a call wrote anything cannot be seen. One that hands out a storage which it was not given, as an
earlier one did, counts as a write; so does one that hands on what it was given, if somebody else had
taken it before. Slices of one storage that do not overlap, such as the rows of a rollout buffer, are
not shared.

Does not handle: storages that only code between nodes writes.

Paper: §4.3.1, "Data dependencies".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rose_opt.facts.store import Store
from rose_opt.graph import GraphNode
from rose_trace.legality import AccessSet
from rose_trace.records import BUFFER, Access, StateAccess


def with_buffers(store: Store, nodes: Sequence[GraphNode]) -> tuple[GraphNode, ...]:
    """The nodes with their accesses to shared storages.

    A storage that belongs to a component built as shards has one instance per shard, so accesses to it
    are by rows where everybody who touches it works by rows.

    Args:
        store: Database with the hierarchy loaded.
        nodes: Nodes of the hierarchy, by `path_id`.

    Returns:
        The same nodes; those that touch a shared storage have more accesses.
    """
    (twice,) = store.run("handed_twice")
    extra: dict[int, list[Access]] = {}
    for producers, consumers in _groups(store.run("buffers") if twice["found"] else ()):
        writers = _leaves(nodes, producers)
        readers = [index for index in _leaves(nodes, consumers) if index not in writers]
        if not writers:
            continue
        state = BUFFER + nodes[writers[0]].name
        owners = {nodes[index].component for index in writers}
        sharded = len(owners) == 1 and all(_by_rows(nodes[index]) for index in writers)
        for index in writers:
            extra.setdefault(index, []).append(Access(state, StateAccess.UPDATE, sharded))
        for index in readers:
            keyed = sharded and bool(nodes[index].declaration.rows)
            extra.setdefault(index, []).append(Access(state, StateAccess.READ, keyed))
    return tuple(
        replace(node, accesses=_joined(node.accesses, extra.get(index, ())))
        for index, node in enumerate(nodes)
    )


def _groups(rows: Sequence[Mapping[str, Sequence[int] | None]]) -> list[tuple[set[int], set[int]]]:
    """Producers and consumers, joined where they have a producer in common."""
    groups: list[tuple[set[int], set[int]]] = []
    for row in rows:
        producers, consumers = set(row["producers"] or ()), set(row["consumers"] or ())
        apart: list[tuple[set[int], set[int]]] = []
        for known in groups:
            if known[0] & producers:
                producers |= known[0]
                consumers |= known[1]
            else:
                apart.append(known)
        groups = [*apart, (producers, consumers)]
    return sorted(groups, key=lambda group: min(group[0]))


def _leaves(nodes: Sequence[GraphNode], touched: set[int]) -> list[int]:
    """Leaf nodes at or below the nodes that touch something; loops only hand values on."""
    paths = [nodes[index].path for index in touched if nodes[index].kind == "exec"]
    return [
        index
        for index, node in enumerate(nodes)
        if node.kind == "exec"
        and not node.composite
        and any(node.path == path or node.path.startswith(f"{path}/") for path in paths)
    ]


def _by_rows(node: GraphNode) -> bool:
    """Whether a split builds the node's component as shards, each with storages of its own."""
    return (
        node.shardable
        and bool(node.declaration.rows)
        and any(access.keyed for access in node.accesses.accesses)
    )


def _joined(accesses: AccessSet, extra: Sequence[Access]) -> AccessSet:
    return replace(accesses, accesses=tuple(dict.fromkeys((*accesses.accesses, *extra))))
