"""What legality does not say: whether a candidate has room, in memory, lanes and SMs.

Paper: §4.3.2 ("resource feasibility").
"""

from __future__ import annotations

from rose_opt.facts import Facts
from rose_opt.placement import Workers
from rose_opt.plan import Hierarchy, Refusal, Transformation, renamed_states, replicated_components
from rose_opt.settings import Memory
from rose_opt.transforms import TemporalSplit


def memory_refusal(hierarchy: Hierarchy, split: TemporalSplit, memory: Memory) -> Refusal | None:
    """Why the instances of a temporal split do not fit, or nothing.

    Args:
        hierarchy: The recorded hierarchy.
        split: A split of a free loop.
        memory: What may be occupied, M.

    Returns:
        The first reason: the number of instances, then each GPU, then the host.
    """
    components = replicated_components(hierarchy, split.loop)
    most = memory.most_instances
    for name in components:
        if most is not None and split.groups > most:
            states = [s for s in renamed_states(hierarchy, split.loop) if s.startswith(f"{name}.")]
            return _refuse(
                split,
                f"expected at most {most} whole instance{'s' if most > 1 else ''} of {name}, got {split.groups} "
                f"(every chain needs its own '{states[0]}')",
                f"Allow them with --max-instances {split.groups} if {split.groups} whole instances of {name} fit in memory.",
            )
    shortage = memory.shortage(dict.fromkeys(components, split.groups))
    if shortage is None:
        return None
    return _refuse(
        split,
        f"{shortage} with {split.groups} instances of {', '.join(components)}",
        "Split into fewer chains, or make a whole instance smaller.",
    )


def lane_refusal(
    facts: Facts, workers: Workers, text: Transformation, target: str, partner: str
) -> Refusal | None:
    """Why a target and its partner in another group cannot run at once: they share a worker.

    Args:
        facts: What is known.
        workers: Where the split puts components.
        text: The split, for the message.
        target: Path of the target, run by group 0.
        partner: Path of the partner, run by group 1.
    """

    def lanes(path: str, group: int) -> set[str]:
        leaves = facts.graph.leaves(path)
        return {workers.worker(leaf.component or "", group, leaf.path) for leaf in leaves}

    shared = lanes(target, 0) & lanes(partner, 1)
    if not shared:
        return None
    return Refusal(
        text.name,
        f"{target} beside {partner}",
        f"expected lanes of their own, got both on worker {min(shared)}",
        "Keep them in components of their own, of which one can be built per group.",
        (target, partner),
    )


def activity_refusal(
    facts: Facts, text: Transformation, target: str, partner: str, slack: float
) -> Refusal | None:
    """Why a target leaves no room on the device for its partner; nothing where activity is unknown.

    Samples of the host's cores say nothing here: cores are a capacity of the schedule, counted there.
    """
    if facts.activity is not None and facts.activity.source == "cpu":
        return None
    first, second = _activity(facts, target), _activity(facts, partner)
    if first is None or second is None or first + second <= 1 + slack:
        return None
    return Refusal(
        text.name,
        f"{target} beside {partner}",
        f"expected SM activities of at most {1 + slack:.2f} together, got {first:.2f} and {second:.2f}",
        "Raise the activity slack to try it anyway: activity is no measure of contention.",
        (target, partner),
    )


def _activity(facts: Facts, path: str) -> float | None:
    """Time-weighted SM activity of a node, of its leaves for loops and composites [fraction]."""
    total, weighted = 0, 0.0
    for leaf in facts.graph.leaves(path):
        window = facts.window(leaf.path)
        if window is None or window.sm_activity is None:
            return None
        total += window.total_ns
        weighted += window.total_ns * window.sm_activity
    return weighted / total if total else None


def _refuse(split: TemporalSplit, reason: str, unlock: str) -> Refusal:
    return Refusal(split.name, split.loop, reason, unlock, (split.loop,))
