"""What would unlock a refused composition: the transforms that Rose can check but not perform yet.

Paper: §4.3.2; naming what a program would have to do is beyond the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rose_opt.transforms.base import Subject
from rose_opt.transforms.composition import ADVISED, Composition, Unlocking, apply_all


def unlocking(composition: Composition, subject: Subject) -> str | None:
    """The shortest legal preparation of a refused composition, in words.

    Args:
        composition: Transforms that are refused.
        subject: The recorded graph.

    Returns:
        One sentence, or nothing where no such preparation is known.
    """
    known = tuple(dict.fromkeys(_preparations(composition, subject)))
    for length in (1, 2):
        for chosen in itertools.combinations(known, length):
            if isinstance(apply_all((*chosen, *composition), subject), Subject):
                texts = ",".join(str(item.text) for item in chosen)
                advice = ", and ".join(item.advice for item in chosen)
                return f"{texts} would unlock it, which the executor cannot do yet: {advice}."
    return None


def _preparations(composition: Composition, subject: Subject) -> Iterator[Unlocking]:
    """Preparations around the nodes that a composition names."""
    for transform in composition:
        for _, value in transform.text.arguments:
            if value in subject.graph:
                inside = next(subject.graph.leaves(value), None)
                for kind in ADVISED if inside is not None else ():
                    assert inside is not None
                    yield from kind.candidates(subject, inside.path, 2)
