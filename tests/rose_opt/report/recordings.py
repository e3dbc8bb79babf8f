"""Recordings for the report: written by hand, with lanes, samples and as many spans as wanted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from rose_opt.report.recorded import Recorded, RecordedIteration, Span
from tests.rose_opt.facts.factory import START_NS, Recording
from tests.rose_opt.facts.programs import ppo

STRETCH = 10_000
"""Times of the factory's programs, in hundreds of nanoseconds, become milliseconds."""


def native(path: Path, epochs: int = 3, steps: int = 4, iterations: int = 2) -> Path:
    """A native run with activity that alternates between 90 % and 20 % every 5 ms."""
    recording = stretched(ppo(Recording(), iterations=iterations, epochs=epochs, steps=steps))
    step_ns = 5_000_000
    for number in range(-(-last_ns(recording) // step_ns)):
        start = number * step_ns
        recording.sample(start, start + step_ns, 0.2 if number % 2 else 0.9)
    return recording.write(path)


def planned(path: Path) -> Path:
    """The same program as a plan would run it: simulator shards in two processes, twice as fast."""
    recording = stretched(ppo(Recording()), STRETCH // 2)
    for row in list(recording.rows):
        if row["node"].startswith("policy"):
            row |= {"worker": "inline", "thread": 2}
        if row["node"].startswith("sim."):
            middle = (row["start_ns"] + row["end_ns"]) // 2
            for group in range(2):
                name = f"simulator[{group}/2]"
                part = {
                    "worker": name,
                    "process": f"worker:{name}",
                    "pid": 2 + group,
                    "group": group,
                    "groups": 2,
                    "row_start": 2 * group,
                    "row_stop": 2 * group + 2,
                    "wait_ns": 1_000,
                }
                if group:
                    copy = row | part | {"span_id": row["span_id"] + 1, "end_ns": middle}
                    recording.rows.append(copy)
                else:
                    recording.rows[recording.rows.index(row)] = row | part
    recording.rows.sort(key=lambda row: row["start_ns"])
    recording.sample(0, last_ns(recording), 0.75, source="kernels")
    return recording.write(path)


def crowded(recorded: Recorded, steps: int, seed: int = 0) -> Recorded:
    """The recording with another iteration: 4 spans a step, lasting 100 us and more at random."""
    vary = random.Random(seed)
    template = recorded.spans[0]
    spans: list[Span] = []
    now_ns = START_NS

    def run(path: str, kind: str, parent: int, step: int, *children: str) -> None:
        nonlocal now_ns
        start_ns, span_id = now_ns, len(spans) + 1
        spans.append(template)  # the place of the caller, filled below
        for child in children:
            run(f"{path}/{child}", "exec", span_id, step)
        now_ns += round(1e5 * (1 + vary.expovariate(1)))
        spans[span_id - 1] = template._replace(
            span_id=span_id,
            parent_id=parent,
            kind=kind,
            node=path.rpartition("/")[2],
            path=path,
            step=step,
            start_ns=start_ns,
            end_ns=now_ns,
        )

    for step in range(steps):
        run("iteration/interact/policy.act", "exec", 0, step, "policy.encode", "policy.denoise")
        run("iteration/interact/sim.step", "exec", 0, step)
    shown = RecordedIteration(0, START_NS, now_ns, used=True)
    return replace(recorded, spans=tuple(spans), shown=shown)


def stretched(recording: Recording, factor: int = STRETCH) -> Recording:
    """The recording with all times multiplied."""
    for row in recording.rows:
        for name in ("start_ns", "end_ns", "cpu_ns"):
            base = 0 if name == "cpu_ns" else START_NS
            row[name] = base + (row[name] - base) * factor
    return recording


def last_ns(recording: Recording) -> int:
    """End of the last invocation since the recording began."""
    return max(row["end_ns"] for row in recording.rows) - START_NS
