from __future__ import annotations

from rose_opt.transforms import Interleave, SpatialSplit
from tests.rose_opt.programs import INTERACT, batch, ppo
from tests.rose_opt.transforms.rewrites import runs_the_same


def test_each_group_may_run_beside_the_earlier_ones() -> None:
    subject = batch(ppo())
    split = SpatialSplit(INTERACT, 3).apply(subject).subject
    rewritten = Interleave(INTERACT).apply(split)
    beside = [rewritten.graph.node(f"{INTERACT}#{g}").beside for g in range(3)]
    assert beside == [(), (f"{INTERACT}#0",), (f"{INTERACT}#0", f"{INTERACT}#1")]
    runs_the_same(subject, rewritten.subject)


def test_candidates_are_loops_that_are_split() -> None:
    split = SpatialSplit(INTERACT, 2).apply(batch(ppo())).subject
    assert list(Interleave.candidates(split, f"{INTERACT}#1/sim.step", 2)) == [Interleave(INTERACT)]
    assert list(Interleave.candidates(split, "iteration/policy.load", 2)) == []
