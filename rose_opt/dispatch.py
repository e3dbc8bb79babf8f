"""What the executor makes of a split loop: ready work is handed out at once, earliest in program order first.

A schedule is what would be possible; this is what happens without waiting for anybody: a phase starts as
soon as its group got there, its worker is free and enough cores are, and nothing later in program order
overtakes one that waits for cores.

Paper: §4.2, "Execution".
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from rose_opt.schedule import Mode, Phase

_SIMULATED = 64  # ours: steps; what follows repeats them


def dispatched_ns(
    chains: Sequence[Sequence[Phase]], modes: Mapping[str, Mode], steps: int, cores: float
) -> int:
    """Duration of a split loop under greedy dispatch.

    Args:
        chains: Per group, the phases of one step in order.
        modes: Mode of every phase, by name.
        steps: Steps of the loop [>= 1].
        cores: Cores of the machine.

    Returns:
        Time from the first start to the last end [ns]; steps beyond the first ones are taken to go on
        at their mean pace.
    """
    simulated = min(steps, _SIMULATED)
    half = _simulate(chains, modes, max(simulated // 2, 1), cores)
    whole = _simulate(chains, modes, simulated, cores)
    if steps == simulated:
        return whole
    pace = (whole - half) / (simulated - max(simulated // 2, 1))
    return round(whole + (steps - simulated) * pace)


def _simulate(
    chains: Sequence[Sequence[Phase]], modes: Mapping[str, Mode], steps: int, cores: float
) -> int:
    ready = [(0, 0, group) for group in range(len(chains))]
    running: list[tuple[int, int, int, int]] = []  # end, step, phase, group
    busy: set[str] = set()
    used, now = 0.0, 0
    while ready or running:
        for item in sorted(ready):
            step, index, group = item
            phase = chains[group][index]
            mode = modes[phase.name]
            if phase.engine in busy:
                continue
            if running and used + mode.cores > cores + 1e-9:
                break
            ready.remove(item)
            busy.add(phase.engine)
            used += mode.cores
            heapq.heappush(running, (now + mode.duration_ns, step, index, group))
        now = running[0][0]
        while running and running[0][0] == now:
            _, step, index, group = heapq.heappop(running)
            phase = chains[group][index]
            busy.discard(phase.engine)
            used -= modes[phase.name].cores
            last = index + 1 == len(chains[group])
            step, index = (step + 1, 0) if last else (step, index + 1)
            if step < steps:
                ready.append((step, index, group))
    return now
