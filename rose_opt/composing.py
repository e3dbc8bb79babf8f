"""Compositions put together: which candidates go with each other, in which order they are legal.

Paper: §4.3.3, Alg. 1, Combine (compatible alternatives).
"""

from __future__ import annotations

from collections.abc import Iterable

from rose_opt.plan import Refusal
from rose_opt.transforms import Composition, Rewire, Subject, apply_all


def joined(compositions: Iterable[Composition], subject: Subject) -> Composition | None:
    """One composition of several.

    Splits come before what moves whole loops, so that the same candidates make the same composition
    whichever order they came in; where that is not legal, the given order or the one from behind may be.

    Args:
        compositions: Compositions, the first ones applied first.
        subject: The recorded program.

    Returns:
        The composition; nothing where two share a transform or no order is legal.
    """
    given = tuple(compositions)
    every = tuple(transform for composition in given for transform in composition)
    if len(set(every)) < len(every):
        return None
    behind = tuple(transform for composition in reversed(given) for transform in composition)
    usual = tuple(sorted(every, key=lambda transform: isinstance(transform, Rewire)))
    for composition in dict.fromkeys((usual, every, behind)):
        if not isinstance(apply_all(composition, subject), Refusal):
            return composition
    return None
