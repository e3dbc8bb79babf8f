"""Compositions put together: which candidates go with each other, in which order they are legal.

Paper: §4.3.3, Alg. 1, Combine (compatible alternatives).
"""

from __future__ import annotations

from collections.abc import Iterable

from rose_opt.plan import Refusal
from rose_opt.transforms import PREPARING, Composition, Rewire, Subject, apply_all, essence


def joined(compositions: Iterable[Composition], subject: Subject) -> Composition | None:
    """One composition of several.

    Copies come first, and splits before what moves whole loops, so that the same candidates make the same composition
    whichever order they came in; where that is not legal, the given order or the one from behind may be.

    Args:
        compositions: Compositions, the first ones applied first.
        subject: The recorded program.

    Returns:
        The composition; nothing where two share a transform or no order is legal.
    """
    given = tuple(compositions)
    copies = tuple(dict.fromkeys(t for item in given for t in item if isinstance(t, PREPARING)))
    rest = [essence(item) for item in given]
    every = tuple(transform for composition in rest for transform in composition)
    if len(set(every)) < len(every):
        return None
    behind = tuple(transform for composition in reversed(rest) for transform in composition)
    usual = tuple(sorted(every, key=lambda transform: isinstance(transform, Rewire)))
    for composition in dict.fromkeys((usual, every, behind)):
        made = (*copies, *composition)
        if not isinstance(apply_all(made, subject), Refusal):
            return made
    return None
