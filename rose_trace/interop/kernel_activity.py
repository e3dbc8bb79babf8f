"""SM activity estimated from the grids of kernels.

At any moment ``min(1, blocks of all running kernels / SMs)``: one block keeps one SM active, blocks
spread over SMs before they share one. Waves, tails and blocks that end early are not modelled, so the
result is an estimate and is labelled as one.

Paper: §4.2, "SM activity".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy

from rose_trace.activity import Sample
from rose_trace.interop.profile import Kernel

np: Any = numpy  # its type stubs leave results of mixed arrays unknown

SOURCE = "kernels"
RESOLUTION_NS = 1_000_000  # ours: as fine as PM sampling is by default
SM_COUNT = 132  # ours: H100 and H200 SXM, where the file does not tell
CHUNK = 1_000_000  # ours: samples worked on at once


def estimate_activity(
    kernels: Sequence[Kernel],
    sm_count: Mapping[int, int],
    bounds_ns: tuple[int, int],
    resolution_ns: int = RESOLUTION_NS,
) -> Iterator[Sample]:
    """Estimated SM activity of every device that ran kernels.

    Args:
        kernels: Kernels of all devices; one without a grid counts as filling its device.
        sm_count: SMs by device, for every device that ran kernels [SMs].
        bounds_ns: What the file covers; a device without a kernel in it is inactive [ns].
        resolution_ns: Length of a sample [ns].

    Yields:
        Samples that cover the bounds without gaps, one device after another; the last one of a device
        ends with the bounds.
    """
    first_ns, last_ns = bounds_ns
    for device in sorted({kernel.device for kernel in kernels}):
        mine = [kernel for kernel in kernels if kernel.device == device]
        times, busy = _integral(mine, sm_count[device], first_ns)
        count = -(-(last_ns - first_ns) // resolution_ns)
        for begin in range(0, count, CHUNK):
            steps = np.arange(begin, min(begin + CHUNK, count) + 1, dtype=np.int64)
            edges = np.minimum(steps * resolution_ns, last_ns - first_ns)
            done: Any = np.interp(edges, times, busy)
            level = np.clip(np.diff(done) / np.diff(edges), 0.0, 1.0)
            activities: list[float] = level.tolist()
            for start, end, activity in zip(
                edges[:-1].tolist(), edges[1:].tolist(), activities, strict=True
            ):
                yield SOURCE, f"cuda:{device}", first_ns + start, first_ns + end, activity, True


def _integral(kernels: Sequence[Kernel], sms: int, first_ns: int) -> tuple[Any, Any]:
    """Integral of activity up to the moments at which it changes.

    Args:
        kernels: Kernels of one device.
        sms: Its SMs.
        first_ns: Moment that counts as zero [ns].

    Returns:
        Moments [ns since `first_ns`] and the integral up to each [ns]. Shape: one entry per start and
        per end of a kernel, in order of time.
    """
    blocks = np.array([sms if k.blocks is None else k.blocks for k in kernels], dtype=np.int64)
    times = np.array(
        [k.start_ns - first_ns for k in kernels] + [k.end_ns - first_ns for k in kernels],
        dtype=np.int64,
    )
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([blocks, -blocks])[order])  # integers: no residue
    times = times[order]
    level = np.minimum(running / sms, 1.0)
    return times, np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
