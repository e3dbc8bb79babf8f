"""The four transforms of the paper's Figure 9 on the program of the documentation, as readable files."""

from __future__ import annotations

import pytest

from rose_opt.drawing.state_edges import state_edges
from rose_opt.graph import Graph
from rose_opt.plan import temporal_refusal
from rose_opt.text import graph_text
from rose_opt.transforms import Subject, apply_all, parse_composition
from tests.conftest import Golden
from tests.rose_opt.programs import INTERACT, batch, ppo
from tests.rose_opt.transforms.rewrites import runs_the_same

ROLLOUT = "iteration/rollout"
HEADER = """\
Figure 9 of the paper shows rewire, spatial split, temporal split, and merge with interleave as four drawings.
The drawings themselves are not available here: these are the same four transforms on the program of the
documentation (4 epochs of 6 steps, 64 environments), before and after, with loop kinds and state edges. Both
sides were executed in several orders and gave the same results, final states and versions behind every read.
"""


def shown(subject: Subject) -> str:
    """Hierarchy with loop kinds, then the state edges."""
    graph: Graph = subject.graph
    kinds: dict[str, object] = {
        loop.path: "free"
        if temporal_refusal(subject.hierarchy, loop.path, 2) is None
        else "dependent"
        for loop in graph.loops()
        if loop.kind == "loop" and loop.turns is None and "#" not in loop.path
    }
    return "\n".join([graph_text(graph, kinds), *map(str, state_edges(graph))])


@pytest.mark.parametrize(
    ("name", "title", "composition"),
    [
        (
            "rewire",
            "Rewire: learning takes each epoch as it finishes, beside the rollout of later ones.",
            f"rewire{{node=iteration/learn beside={ROLLOUT}}}",
        ),
        (
            "spatial-split",
            "Spatial split: the interaction loop runs once per half of the environments.",
            f"split-spatial{{loop={INTERACT} groups=2}}",
        ),
        (
            "temporal-split",
            "Temporal split: even and odd epochs run in chains, each with a simulator of its own.",
            f"split-temporal{{loop={ROLLOUT} groups=2}}",
        ),
        (
            "merge-interleave",
            "Interleave and merge: one half simulates while the other infers; rows go back to their places.",
            f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}",
        ),
    ],
)
def test_figure_9(golden: Golden, name: str, title: str, composition: str) -> None:
    subject = batch(ppo(epochs=4, steps=6))
    outcome = apply_all(parse_composition(composition), subject)
    assert isinstance(outcome, Subject)
    text = [title, "", HEADER, composition, "", "before", "", shown(subject), ""]
    text += ["after", "", shown(outcome)]
    golden.check(f"transforms/figure9/{name}.rose", "\n".join(text) + "\n")
    runs_the_same(subject, outcome)
