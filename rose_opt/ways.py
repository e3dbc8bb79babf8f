"""In which ways nodes can run, natively and on a part of the rows: durations and cores.

A way of running, a mode, comes from a probe where there is one: its measured duration and cores at a
thread count. Without probes the recorded invocation is all that is known, and a part of the rows is
taken to cost the midpoint between its share and the whole.

Paper: §4.3.2 (estimates of split nodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rose_opt.facts import Facts, Probe
from rose_opt.phases import calls_per_run, recorded_ns, steps
from rose_opt.plan import Refusal
from rose_opt.schedule import Mode
from rose_opt.settings import Bits

WAITING_CORES = 0.2  # ours: below this share of one core a phase waits for something
ROUNDING_CORES = 0.1  # ours: precision of CPU times over short phases


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways of running a unit on a part of the rows.

    Attributes:
        modes: The modes; none where every measured one changes bits and bits count.
        identical: Per mode, whether its rows were bit-identical to the whole batch's; ``None`` where
            they were not compared.
        estimated: Whether nothing was measured.
    """

    modes: tuple[Mode, ...]
    identical: tuple[bool | None, ...]
    estimated: bool = False


def native_mode(facts: Facts, path: str, cores: float) -> Mode:
    """A node as it runs natively: its duration and the cores it keeps busy.

    Where the node was probed whole, the probe counts, so that it compares with the probes of its parts;
    loops and composites around it are taken to change by as much.

    Args:
        facts: What is known.
        path: Node path.
        cores: Cores of the machine.

    Returns:
        The mode; one core where CPU time is unknown.
    """
    timing = facts.timings[path]
    probed = whole_probe(facts, path)
    if probed is not None:
        busy = _cores(_used(probed), probed.threads, cores)
        return Mode(max(probed.duration_ns, 1), busy, label="native")
    change = steps(facts, path) * sum(
        calls_per_run(facts, child.path, path)
        * (native_mode(facts, child.path, cores).duration_ns - recorded_ns(facts, child.path))
        for child in facts.graph.children(path)
    )
    used = 1.0 if timing.cores_used is None else timing.cores_used
    duration = max(round(timing.mean_ns + change), 1)
    return Mode(duration, _cores(used, timing.threads, cores), label="native")


def native_iteration_ns(facts: Facts, cores: float) -> int:
    """One native iteration: the median recorded, corrected by the probes [ns]."""
    root = facts.graph.root.path
    change = native_mode(facts, root, cores).duration_ns - recorded_ns(facts, root)
    return max(facts.iteration.iteration_ns + change, 1)


def whole_probe(facts: Facts, path: str) -> Probe | None:
    """The probe of a node on the whole batch with the threads it was recorded with, if there is one."""
    if facts.graph.node(path).is_loop:
        return None
    threads = facts.timings[path].threads
    found = _part_probes(facts, path, 1, "whole")
    return next((probe for probe in found if probe.threads == threads), None)


def grouped_ways(
    facts: Facts, path: str, groups: int, sharded: bool, cores: float, bits: Bits
) -> Ways:
    """Ways of running a unit on one of `groups` parts of the rows.

    A part costs at least its share of the whole with as many threads: a split makes overlap possible, not
    rows cheaper, and what measures otherwise is mostly chance.

    Args:
        facts: What is known.
        path: The unit.
        groups: Parts.
        sharded: Whether each part has a shard of the component of its own.
        cores: Cores of the machine.
        bits: Whether modes whose rows were seen to differ may be used.

    Returns:
        Modes by thread count, fewest threads first.
    """
    probes = _part_probes(facts, path, groups, "shard" if sharded else "part")
    if not probes:
        modes = _estimated(facts, path, groups, cores)
        return Ways(modes, (None,) * len(modes), estimated=True)
    least = {p.threads: p.duration_ns // groups for p in _part_probes(facts, path, 1, "whole")}
    allowed = [probe for probe in probes if bits == "any" or probe.identical is not False]
    modes = tuple(
        Mode(
            max(probe.duration_ns, least.get(probe.threads, 1), 1),
            _cores(_used(probe), probe.threads, cores),
            threads=probe.threads,
            label=f"{probe.threads} thread{'s' if probe.threads > 1 else ''}",
        )
        for probe in allowed
    )
    return Ways(modes, tuple(probe.identical for probe in allowed))


def shard_mode(facts: Facts, path: str, shards: int, cores: float) -> Mode:
    """The fastest way of running a node on one shard of its component, outside any split."""
    modes = grouped_ways(facts, path, shards, True, cores, "any").modes
    return min(modes, key=lambda mode: (mode.duration_ns, mode.cores))


def measured_ns(
    facts: Facts, path: str, groups: int, variant: str, threads: int | None
) -> int | None:
    """Probed duration of one way of running a node [ns]; ``None`` where it was not probed."""
    found = _part_probes(facts, path, groups, variant)
    return next((p.duration_ns for p in found if p.threads == threads), None)


def _part_probes(facts: Facts, path: str, groups: int, variant: str) -> list[Probe]:
    """Probes of a unit by thread count; those of a composite may be put together from its children."""
    own = [p for p in facts.probes_of(path) if p.variant == variant and p.groups == groups]
    if own:
        return sorted(own, key=lambda probe: probe.threads)
    node = facts.graph.node(path)
    if not node.composite:
        return []
    parts = [
        {probe.threads: probe for probe in _part_probes(facts, child.path, groups, variant)}
        for child in facts.graph.children(path)
    ]
    shared = [threads for threads in parts[0] if all(threads in part for part in parts)]
    return [_together(path, [part[threads] for part in parts]) for threads in shared]


def _together(path: str, parts: Iterable[Probe]) -> Probe:
    """Children one after the other."""
    parts = list(parts)
    cpu = [probe.cpu_ns for probe in parts if probe.cpu_ns is not None]
    same = [probe.identical for probe in parts]
    return Probe(
        path=parts[0].path.__class__(path),
        variant=parts[0].variant,
        groups=parts[0].groups,
        threads=parts[0].threads,
        count=min(probe.count for probe in parts),
        duration_ns=sum(probe.duration_ns for probe in parts),
        cpu_ns=sum(cpu) if len(cpu) == len(parts) else None,
        identical=False if False in same else None if None in same else True,
    )


def _estimated(facts: Facts, path: str, groups: int, cores: float) -> tuple[Mode, ...]:
    native = native_mode(facts, path, cores)
    modes = [
        Mode(
            part_ns(native.duration_ns, groups),
            native.cores,
            threads=facts.timings[path].threads,
            label="estimated, native threads",
        )
    ]
    if native.cores > 1.05:  # ours: more than one core's noise
        one = part_ns(round(native.duration_ns * native.cores), groups)
        modes.insert(0, Mode(one, 1.0, threads=1, label="estimated, 1 thread"))
    return tuple(modes)


def part_ns(whole_ns: int, groups: int) -> int:
    """Duration of one part of the rows: midpoint of its share and the whole [ns].

    >>> part_ns(100, 2)
    75
    """
    return max((whole_ns // groups + whole_ns) // 2, 1)


def not_probed(facts: Facts, paths: Iterable[str], loop: str, groups: int) -> Refusal | None:
    """Why `groups` groups cannot be priced where other numbers of groups were measured.

    A guess beside measurements would win or lose by being a guess.
    """
    parts = [p for path in paths for p in _below(facts, path) if p.variant != "whole"]
    measured = sorted({probe.groups for probe in parts})
    if not measured or groups in measured:
        return None
    return Refusal(
        "split-spatial",
        loop,
        f"expected probes of {groups} groups, got those of {', '.join(map(str, measured))}",
        f"Run rose_exec.probe with groups={(*measured, groups)}.",
        (loop,),
    )


def _below(facts: Facts, path: str) -> Iterator[Probe]:
    for node in facts.graph.subtree(path):
        yield from facts.probes_of(node.path)


def rows_differ(path: str, loop: str, groups: int) -> Refusal:
    """The refusal for rows that are not bit-identical in any measured way."""
    return Refusal(
        "split-spatial",
        loop,
        f"expected rows of {groups} groups bit-identical to those of the whole batch, got {path} that "
        "differs at every thread count measured",
        "Accept results that are equal up to floating-point reassociation with --bits any, or use a "
        "batch whose groups have more rows.",
        (path,),
    )


def _used(probe: Probe) -> float:
    used = probe.cores_used
    return 1.0 if used is None else used


def _cores(used: float, threads: int | None, cores: float) -> float:
    """Cores of a mode, without the noise of a measurement.

    A phase that computes occupies a core even where other programs kept it from running; only a phase
    that mostly waits occupies less. Nearly whole numbers are whole, so that two phases of one core each
    fit on two.
    """
    most = cores if threads is None else min(float(threads), cores)
    busy = max(used, 1.0) if used >= WAITING_CORES else used
    whole = round(busy)
    return round(
        max(min(float(whole) if abs(busy - whole) <= ROUNDING_CORES else busy, most), 0.0), 2
    )
