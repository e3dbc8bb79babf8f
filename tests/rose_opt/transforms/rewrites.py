"""Before and after, or before and refused, as goldens; every legal golden also runs."""

from __future__ import annotations

import random
from dataclasses import replace

from rose_opt.graph import Graph
from rose_opt.plan import Refusal
from rose_opt.text import graph_text
from rose_opt.transforms import Subject, apply_all, parse_composition
from tests.conftest import Golden
from tests.reference import Interpreter

ROWS = 64


def of_size(graph: Graph, rows: int) -> Graph:
    """The program with a smaller batch, in its results too."""
    nodes = tuple(
        replace(n, structure=n.structure and n.structure.replace(f"[{ROWS}", f"[{rows}"))
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def check(golden: Golden, name: str, subject: Subject, composition: str) -> Subject | Refusal:
    """Compare a rewrite, or its refusal, with the golden file, and run what is legal."""
    transforms = parse_composition(composition)
    outcome = apply_all(transforms, subject)
    text = [composition.replace("},", "},\n"), "", graph_text(subject.graph, data=True), ""]
    if isinstance(outcome, Refusal):
        text += ["refused", str(outcome)]
    else:
        text += ["->", "", graph_text(outcome.graph, data=True)]
        runs_the_same(subject, outcome)
    golden.check(f"transforms/{name}.rose", "\n".join(text) + "\n")
    return outcome


def runs_the_same(subject: Subject, rewritten: Subject, orders: int = 3) -> None:
    """Same results, final states and readers per version, in several orders that the rewrite allows."""
    interpreter = Interpreter(subject.graph, max(subject.rows.values(), default=1))
    native = interpreter.run_native()
    for seed in range(orders):
        shuffled = interpreter.run_shuffled(rewritten.graph, random.Random(seed))
        assert shuffled == native
