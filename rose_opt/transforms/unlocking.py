"""What would unlock a refused composition: copies that the executor makes, and draws that the program must move.

Paper: §4.3.2; preparations are beyond the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rose_opt.transforms.base import Subject, Transform
from rose_opt.transforms.composition import ADVISED, PREPARING, Composition, apply_all
from rose_opt.transforms.hoist_rng import HoistRNG

T = TypeVar("T", bound=Transform)

_MOST = 2  # ours: preparations of one composition


def unlocked(composition: Composition, subject: Subject) -> Composition | None:
    """The shortest legal form of a refused composition with preparations that the executor performs.

    Args:
        composition: Transforms that are refused.
        subject: The recorded graph.

    Returns:
        The preparations, then the composition; nothing where none make it legal.
    """
    return next(_legal(_around(PREPARING, composition, subject), composition, subject), None)


def unlocking(composition: Composition, subject: Subject) -> str | None:
    """What a program would have to do for a refused composition, where nobody else does it.

    Args:
        composition: Transforms that are refused, with whatever the executor can prepare.
        subject: The recorded graph.

    Returns:
        One sentence, or nothing where no such preparation is known.
    """
    known = _around((*PREPARING, *ADVISED), composition, subject)
    for made in _legal(known, composition, subject):
        chosen = made[: len(made) - len(composition)]
        texts = ",".join(str(item.text) for item in chosen)
        advice = ", and ".join(item.advice for item in chosen if isinstance(item, HoistRNG))
        if advice:
            return f"{texts} would unlock it, which the executor cannot do: {advice}."
    return None


def _legal(
    known: Iterable[Transform], composition: Composition, subject: Subject
) -> Iterator[Composition]:
    every = tuple(dict.fromkeys(known))
    for length in range(1, _MOST + 1):
        for chosen in itertools.combinations(every, length):
            made = (*chosen, *composition)
            if isinstance(apply_all(made, subject), Subject):
                yield made


def _around(kinds: Iterable[type[T]], composition: Composition, subject: Subject) -> Iterator[T]:
    """Preparations around the nodes that a composition names."""
    kinds = tuple(kinds)
    for transform in composition:
        for _, value in transform.text.arguments:
            inside = next(subject.graph.leaves(value), None) if value in subject.graph else None
            for kind in kinds if inside is not None else ():
                assert inside is not None
                yield from kind.candidates(subject, inside.path, 2)
