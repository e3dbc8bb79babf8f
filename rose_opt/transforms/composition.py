"""An alternative: transforms applied one after the other, each checked on what the last one left."""

from __future__ import annotations

from collections.abc import Sequence

from rose_opt.plan import PlanError, Refusal, Transformation
from rose_opt.transforms.base import Subject, Transform
from rose_opt.transforms.copy_on_bind import CopyOnBind
from rose_opt.transforms.hoist_rng import HoistRNG
from rose_opt.transforms.interleave import Interleave
from rose_opt.transforms.merge import Merge
from rose_opt.transforms.privatise import Privatise
from rose_opt.transforms.rewire import Rewire
from rose_opt.transforms.spatial_split import SpatialSplit
from rose_opt.transforms.temporal_split import TemporalSplit

PREPARING: tuple[type[Privatise] | type[CopyOnBind], ...] = (Privatise, CopyOnBind)
"""Transforms that make way for others, and gain nothing by themselves."""

TRANSFORMS: tuple[type[Transform], ...] = (
    *PREPARING,
    SpatialSplit,
    TemporalSplit,
    Interleave,
    Merge,
    Rewire,
)
"""All transforms that the executor performs: what prepares first, then in search order."""

ADVISED: tuple[type[HoistRNG], ...] = (HoistRNG,)
"""Transforms that are checked and named, but that nobody performs: a plan must not ask for them."""

_PATHS = ("loop", "node", "beside", "readers")
"""Arguments that are paths."""

Composition = tuple[Transform, ...]
"""An alternative; the empty one is the native order."""


def essence(composition: Composition) -> Composition:
    """A composition without what only makes way for the rest of it."""
    return tuple(item for item in composition if not isinstance(item, PREPARING))


def parse_composition(text: str | Sequence[Transformation]) -> Composition:
    """Transforms from their text form.

    Args:
        text: Text forms separated by commas, or parsed ones.

    Returns:
        The transforms.

    Raises:
        PlanError: If one is unknown or lacks an argument.
    """
    known: dict[str, type[Transform]] = {kind.name: kind for kind in (*TRANSFORMS, *ADVISED)}
    result: list[Transform] = []
    for item in Transformation.parse_all(text) if isinstance(text, str) else text:
        if item.name not in known:
            raise PlanError(
                f"{item}: expected one of {', '.join(t.name for t in TRANSFORMS)}, got '{item.name}'. Use a transform of this version."
            )
        result.append(known[item.name].parse(item))
    return tuple(result)


def apply_all(composition: Composition, subject: Subject) -> Subject | Refusal:
    """Check and apply transforms in order.

    Args:
        composition: The transforms.
        subject: The recorded graph.

    Returns:
        The rewritten graph, or the first refusal.
    """
    for transform in composition:
        named = [value for key, value in transform.text.arguments if key in _PATHS]
        missing = next((path for path in named if _is_path(path, subject)), None)
        if missing is not None:
            return Refusal(
                transform.name,
                missing,
                f"expected a node of the recorded graph, got '{missing}'",
                f"Its nodes are {', '.join(node.path for node in subject.graph.nodes)}.",
            )
        refusal = transform.check(subject)
        if refusal is not None:
            return refusal
        subject = transform.apply(subject).subject
        subject.graph.verify()
    return subject


def _is_path(value: str, subject: Subject) -> bool:
    """Whether an argument names a node that is not there (numbers and split loops are)."""
    return not value.isdecimal() and value not in subject.graph and value not in subject.splits
