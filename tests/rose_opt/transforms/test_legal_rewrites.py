"""Random programs: whatever the transforms allow computes the same, and each rule is needed for it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.graph import Graph
from rose_opt.plan import (
    AccessesOf,
    PlanNode,
    Refusal,
    copy_rules,
    own_accesses,
    private_rules,
    rewire_rules,
    split_rules,
    temporal_rules,
)
from rose_opt.transforms import (
    Composition,
    CopyOnBind,
    Interleave,
    Merge,
    Privatise,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
    apply_all,
)
from rose_trace.records import Access, StateAccess
from tests.properties import examples
from tests.reference import Interpreter
from tests.rose_opt.programs import Author, batch

ROWS = 4
STATES = ("a.x", "a.y", "b.x", "b.k")
"""State ``k`` of component ``b`` has one row per row of the batch."""


def random_program(rnd: random.Random) -> Subject:
    """A root with two or three loops, one of them with a loop inside, and a few plain nodes."""
    author = Author({"b": ("k",)}, ("b",))
    author.add("it", "iteration")
    leaves: list[str] = []
    counts: dict[str, int] = {}

    def leaf(parent: str) -> None:
        component = rnd.choice("ab")
        path = f"{parent}/{component}.n{len(leaves)}"
        chosen = rnd.sample(("x", "k" if component == "b" else "y"), rnd.choice((0, 1, 1, 1)))
        foreign = ["a.x"] if component == "b" and rnd.random() < 0.15 else []
        declared: dict[str, object] = {}
        for state in chosen + foreign:
            mode = rnd.choices(("reads", "updates", "refreshes"), (5, 2, 1))[0]
            if state == "k" and rnd.random() < 0.5:
                mode = "updates"
            declared[mode] = (*tuple(declared.get(mode, ())), state)  # pyright: ignore
        if not declared and rnd.random() < 0.9:
            declared["pure"] = True
        author.add(path, rows=rnd.random() < 0.85, **declared)  # pyright: ignore
        leaves.append(path)

    def called(parent: str) -> None:
        """A leaf, or a composite that calls some and may touch states itself."""
        if rnd.random() < 0.75:
            leaf(parent)
            return
        path = f"{parent}/{rnd.choice('ab')}.c{len(author.nodes)}"
        declared: dict[str, object] = {}
        if rnd.random() < 0.7:
            mode = rnd.choices(("reads", "updates", "refreshes"), (5, 2, 1))[0]
            declared[mode] = rnd.choice(STATES)
        author.add(path, composite=True, rows=rnd.random() < 0.5, **declared)  # pyright: ignore
        for _ in range(rnd.choice((1, 2))):
            leaf(path)

    def loop(parent: str, name: str, inner: bool) -> None:
        path = f"{parent}/{name}"
        counts[path] = rnd.choice((2, 3))
        structure = '["none",[],"",[]]' if rnd.random() < 0.8 else None
        author.add(path, "loop", count=counts[path], structure=structure)
        for _ in range(rnd.choice((1, 2))):
            called(path)
        if inner:
            loop(path, f"{name}i", inner=False)
            if rnd.random() < 0.5:
                called(path)

    for number in range(rnd.choice((2, 3))):
        loop("it", f"l{number}", inner=number == 0)
        if rnd.random() < 0.3:
            called("it")
    _flow(author, leaves, counts, rnd)
    _storage(author, leaves, rnd)
    return batch(author.graph(), ROWS)


def _flow(author: Author, leaves: list[str], counts: dict[str, int], rnd: random.Random) -> None:
    graph = author.graph()
    for _ in range(rnd.choice((1, 2, 3, 4))):
        first, second = sorted(rnd.sample(range(len(leaves)), 2))
        producer, consumer = leaves[first], leaves[second]
        common = graph.common_loop(producer, consumer)
        sides = [
            next(
                (
                    p
                    for p in counts
                    if path.startswith(f"{p}/") and graph.node(p).parent == common.path
                ),
                None,
            )
            for path in (producer, consumer)
        ]
        if common.path in counts and rnd.random() < 0.3:
            author.flow(consumer, producer, common.path, distance=1)
        elif all(sides) and rnd.random() < 0.7:
            author.flow(producer, consumer, common.path, alignment=0)
        else:
            author.flow(producer, consumer, common.path, all_iterations=rnd.random() < 0.5)


def _storage(author: Author, leaves: list[str], rnd: random.Random) -> None:
    """Some nodes fill one storage again and again, and others read what they handed out."""
    producers = [edge.producer for edge in author.edges]
    if rnd.random() < 0.4:
        return
    writers = {rnd.choice(producers), *([rnd.choice(leaves)] if rnd.random() < 0.6 else [])}
    readers = {e.consumer for e in author.edges if e.producer in writers} - writers
    for index, node in enumerate(author.nodes):
        if node.path not in writers | readers or node.accesses.opaque:
            continue
        mode = StateAccess.UPDATE if node.path in writers else StateAccess.READ
        more = (*node.accesses.accesses, Access("buffer.it", mode))
        author.nodes[index] = replace(node, accesses=replace(node.accesses, accesses=more))


def preparations(subject: Subject) -> Iterator[Composition]:
    """A copy of the storage, and private copies for each loop."""
    leaf = next(iter(subject.graph.leaves("it"))).path
    yield from ((item,) for item in CopyOnBind.candidates(subject, leaf, 2))
    private = (
        item
        for loop in subject.graph.loops()
        for inside in list(subject.graph.leaves(loop.path))[:1]
        for item in Privatise.candidates(subject, inside.path, 2)
    )
    yield from ((item,) for item in dict.fromkeys(private))


def compositions(subject: Subject) -> Iterator[Composition]:
    """Every split of a loop by rows or by iterations, every rewire, and pairs of both."""
    loops = [n.path for n in subject.graph.loops() if n.kind == "loop"]
    splits: list[Composition] = [
        (SpatialSplit(path, groups), Interleave(path), Merge(path))
        for path in loops
        for groups in (2, 3)
    ]
    splits += [
        (TemporalSplit(path, groups), Interleave(path), Merge(path))
        for path in loops
        for groups in (2, 3)
    ]
    rewires: list[Composition] = [
        (Rewire(later.path, earlier),)
        for earlier in loops
        for later in subject.graph.children(subject.graph.node(earlier).parent or "")
    ]
    yield from splits
    yield from rewires
    for split in splits:
        for rewire in rewires:
            yield (*split, *rewire)
    for first in preparations(subject):
        for later in (*splits, *rewires):
            if isinstance(apply_all(later, subject), Refusal):  # else nothing is to be made way for
                yield (*first, *later)


def mismatches(seed: int, orders: int = 2) -> tuple[int, int]:
    """Legal rewrites of one random program, and executions of them that differ from the native one."""
    subject = random_program(random.Random(seed))
    interpreter = Interpreter(subject.graph, ROWS)
    native = interpreter.run_native()
    legal = wrong = 0
    for composition in compositions(subject):
        rewritten = apply_all(composition, subject)
        if isinstance(rewritten, Refusal):
            continue
        legal += 1
        for order in range(orders):
            shuffled = interpreter.run_shuffled(rewritten.graph, random.Random(f"{seed} {order}"))
            wrong += shuffled != native
    return legal, wrong


@given(st.integers(0, 2**32))
@examples(40, 15)
def test_legal_rewrites_compute_the_same(seed: int) -> None:
    assert mismatches(seed)[1] == 0


@pytest.mark.slow
def test_random_programs_have_legal_rewrites_of_every_kind() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in range(120):
        subject = random_program(random.Random(seed))
        for composition in compositions(subject):
            if not isinstance(apply_all(composition, subject), Refusal):
                seen.add(tuple(t.name for t in composition))
    split = ("split-spatial", "interleave", "merge")
    chains = ("split-temporal", "interleave", "merge")
    assert seen == {
        split,
        chains,
        ("rewire",),
        (*split, "rewire"),
        (*chains, "rewire"),
        ("privatise", "rewire"),
        ("copy-on-bind", "rewire"),
        ("copy-on-bind", *chains),
        ("copy-on-bind", *split),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    ["groups", "conflicts", "rows", "inheriting", "instances", "composites", "storages", "copies"],
)
def test_without_a_rule_wrong_rewrites_get_through(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> Iterator[Refusal]:
        return iter(())

    def no_conflict(*_: object) -> None:
        return None

    def always(*_: object) -> bool:
        return True

    def leaves_alone(nodes: Iterable[PlanNode], of: AccessesOf = own_accesses) -> object:
        return tuple((n, of(n)) for n in nodes if n.is_leaf)

    name, lenient = {
        "groups": ("_against_groups", nothing),
        "conflicts": ("first_conflict", no_conflict),
        "rows": ("_in_rows", always),
        "inheriting": ("_against_inheriting", nothing),
        "instances": ("_against_instances", nothing),
        "composites": ("touching", leaves_alone),
        "storages": ("_filled_between", no_conflict),
        "copies": ("_against_instance", nothing),
    }[rule]
    monkeypatch.setattr(Interleave, "_against_conflicts", no_conflict)  # a second line of defence
    for module in (split_rules, rewire_rules, temporal_rules, copy_rules, private_rules):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lenient)
    assert any(mismatches(seed)[1] for seed in range(200))


def test_without_the_order_of_values_executions_differ() -> None:
    """The interpreter notices when a rewritten graph loses its data edges."""

    def differs(seed: int) -> bool:
        subject = random_program(random.Random(seed))
        interpreter = Interpreter(subject.graph, ROWS)
        native = interpreter.run_native()
        for composition in compositions(subject):
            rewritten = apply_all(composition, subject)
            if isinstance(rewritten, Subject):
                bare = Graph(rewritten.graph.nodes, ())
                if interpreter.run_shuffled(bare, random.Random(seed)) != native:
                    return True
        return False

    assert any(differs(seed) for seed in range(40))
