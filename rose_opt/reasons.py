"""Why a plan was chosen or the native order kept, in words with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rose_opt.kernel import Kernel
from rose_opt.plan import Refusal
from rose_opt.settings import PlanSettings


def gained(native_ns: int, planned_ns: int) -> str:
    """What the plan is expected to gain, given both iterations [ns]."""
    return (
        f"predicted {milliseconds(planned_ns)} per iteration against "
        f"{milliseconds(native_ns)} natively, {native_ns / planned_ns:.2f} times as fast"
    )


def keeping(
    native_ns: int,
    best_ns: int | None,
    kernel: Kernel | None,
    refusals: Sequence[Refusal],
    settings: PlanSettings,
    cores: float,
) -> str:
    """Why the native order was kept.

    Args:
        native_ns: Native iteration [ns].
        best_ns: Iteration of the best legal overlap [ns]; ``None`` where there is none.
        kernel: The best split loop; ``None`` where none is legal.
        refusals: What was refused.
        settings: Settings of the search.
        cores: Cores of the machine.

    Returns:
        One sentence.
    """
    if best_ns is None:
        if not refusals:
            return "nothing to overlap: the program has no loop to split and no loops to rewire"
        return f"nothing may overlap: {refusals[0]}"
    told = (
        f"the best overlap is predicted to take {milliseconds(best_ns)} per iteration against "
        f"{milliseconds(native_ns)} natively, less than the {settings.min_gain:.0%} gain asked for"
    )
    if kernel is None:
        return told
    enough = (1 - settings.min_gain) * kernel.native_step_ns
    groups = f"{kernel.groups} groups of {kernel.loop}"
    native = f"native takes {milliseconds(kernel.native_step_ns)}"
    if kernel.core_ns / cores >= enough:
        return (
            f"cores are full: {groups} need {milliseconds(kernel.core_ns)} of core time per step on "
            f"{cores:g} cores, {native}; {told}"
        )
    if kernel.step_bound_ns >= enough:
        return (
            f"workers and cores are busy: {groups} take at least "
            f"{milliseconds(kernel.step_bound_ns)} per step in any order on {cores:g} cores, "
            f"{native}; {told}"
        )
    return told


def milliseconds(duration_ns: float) -> str:
    """A duration for people.

    >>> milliseconds(1_500_000)
    '1.5 ms'
    """
    return f"{duration_ns / 1e6:.1f} ms"
