"""Whatever a transform makes, its inverse takes back, alone and at the end of any composition."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.graph import Graph
from rose_opt.plan import Refusal, Transformation
from rose_opt.transforms import (
    ADVISED,
    TRANSFORMS,
    Composition,
    CopyOnBind,
    HoistRNG,
    Interleave,
    Merge,
    Privatise,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
    apply_all,
    parse_composition,
)
from tests.properties import examples
from tests.rose_opt.programs import INTERACT, batch, ppo
from tests.rose_opt.transforms.test_counterexamples import bootstrap, declaring
from tests.rose_opt.transforms.test_legal_rewrites import compositions, random_program

ROLLOUT = "iteration/rollout"


def plainly(subject: Subject) -> Subject:
    """The subject with edges and accesses in an order of their own: they mean the same in any."""
    nodes = tuple(
        replace(
            node,
            accesses=replace(
                node.accesses, accesses=tuple(sorted(node.accesses.accesses, key=str))
            ),
        )
        for node in subject.graph.nodes
    )
    return replace(subject, graph=Graph(nodes, tuple(sorted(set(subject.graph.edges), key=str))))


def taken_back(composition: Composition, subject: Subject) -> bool:
    """Whether the composition is legal; fails where an inverse does not give back what there was."""
    if isinstance(apply_all(composition, subject), Refusal):
        return False
    at = subject
    for transform in composition:
        rewritten = transform.apply(at)
        rewritten.graph.verify()
        back = transform.inverse(rewritten)
        assert plainly(back) == plainly(at), transform.text
        at = rewritten.subject
    assert plainly(at) != plainly(subject)
    return True


def prepared() -> Iterator[tuple[Composition, Subject]]:
    """Compositions that begin with a preparation."""
    shared = batch(ppo(shared_module=True))
    yield (Privatise("policy.weights", ROLLOUT), Rewire("iteration/learn", ROLLOUT)), shared
    drawing = batch(ppo(extra={"updates": "generator.torch", "rows": True}))
    rows: Composition = (SpatialSplit(INTERACT, 2), Interleave(INTERACT), Merge(INTERACT))
    yield (HoistRNG(INTERACT, "torch"), *rows), drawing
    seeded = declaring(
        batch(ppo()),
        f"{ROLLOUT}/sim.reset",
        refreshes="episode",
        updates="generator.numpy",
        rows=True,
    )
    chains: Composition = (TemporalSplit(ROLLOUT, 2), Interleave(ROLLOUT), Merge(ROLLOUT))
    yield (HoistRNG(ROLLOUT, "numpy"), *chains), seeded
    early = Rewire("it/sim.reset", "it/policy.value")
    yield (CopyOnBind("buffer.sim.step"), early), bootstrap()


def test_preparations_and_what_they_make_way_for_are_taken_back() -> None:
    for composition, subject in prepared():
        assert taken_back(composition, subject), composition


@given(st.integers(0, 2**32))
@examples(40, 15)
def test_legal_rewrites_of_random_programs_are_taken_back(seed: int) -> None:
    subject = random_program(random.Random(seed))
    for composition in compositions(subject):
        taken_back(composition, subject)


@pytest.mark.slow
def test_the_random_programs_reach_every_transform() -> None:
    seen: set[str] = set()
    for seed in range(120):
        subject = random_program(random.Random(seed))
        for composition in compositions(subject):
            if taken_back(composition, subject):
                seen.update(transform.name for transform in composition)
    assert seen == {transform.name for transform in TRANSFORMS}


@pytest.mark.parametrize("kind", [*TRANSFORMS, *ADVISED], ids=lambda kind: kind.name)
def test_text_forms_read_back(kind: type) -> None:
    examples = [item for composition, _ in prepared() for item in composition]
    found = [item for item in examples if isinstance(item, kind)]
    assert found
    for item in found:
        assert kind.parse(item.text) == item  # pyright: ignore
        assert Transformation.parse(str(item.text)) == item.text
        assert parse_composition(str(item.text)) == (item,)
