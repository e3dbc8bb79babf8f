"""What a profiler file holds, whoever wrote it: ranges on threads, kernels on devices, samples.

Paper: §4.2, "SM activity"; files of profilers are a source beside Rose's own recording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rose_trace.activity import Sample

BLOCKING = "blocking"
"""Category of ranges that are CUDA calls in which the host waits for the device."""

BLOCKING_COPY_NS = 100_000  # ours: a copy that is only enqueued returns within some 10 us
DRAM = "dram"
"""Source of samples that tell the share of the memory bandwidth in use, not SM activity."""

_WAITS = re.compile(r"cu(?:da)?\w*Synchronize")
_COPIES = re.compile(r"cu(?:da)?Memcpy")
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def blocking_call(name: str, duration_ns: int) -> str | None:
    """The name of a CUDA call in which the host waited for the device, without its version.

    A copy counts where it took so long that it was not only enqueued: it waits for earlier work, or
    goes through pageable memory.

    Args:
        name: Name of a call of the CUDA runtime or driver.
        duration_ns: How long it took [ns].

    Returns:
        Its name; ``None`` for a call that does not wait.

    >>> blocking_call("cudaStreamSynchronize_v3020", 5)
    'cudaStreamSynchronize'
    >>> blocking_call("cudaMemcpyAsync", 5_000) is None
    True
    """
    waits = _WAITS.match(name) is not None
    if waits or (_COPIES.match(name) is not None and duration_ns >= BLOCKING_COPY_NS):
        return _VERSION.sub("", name)
    return None


@dataclass(slots=True)
class ThreadRange:
    """A named stretch of time on one thread: an NVTX range, an annotation, an operator.

    Attributes:
        pid: Process.
        tid: Thread.
        start_ns: Its start [Unix ns where the file tells, else ns of the file's own clock].
        end_ns: Its end, same clock [ns].
        name: Name without what differs from call to call (``aten::view``).
        text: Name as in the file.
        category: Where it is from: ``nvtx``, ``cpu_op``, ``user_annotation``, …
        payload: Integer payload of an NVTX range; ``None`` without one.
        unfinished: Whether the file ends before it does.
    """

    pid: int
    tid: int
    start_ns: int
    end_ns: int
    name: str
    text: str
    category: str
    payload: int | None = None
    unfinished: bool = False


@dataclass(slots=True)
class Kernel:
    """One execution of a kernel.

    Attributes:
        pid: Process that launched it.
        device: CUDA device.
        stream: CUDA stream.
        start_ns: Start on the device, clock as in `ThreadRange` [ns].
        end_ns: End on the device [ns].
        name: Demangled name.
        grid: Blocks by axis; ``None`` where the file does not tell.
        block: Threads of a block by axis; ``None`` where the file does not tell.
        launch: Thread and start of the launching call [ns]; ``None`` where the file does not tell.
    """

    pid: int
    device: int
    stream: int
    start_ns: int
    end_ns: int
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    launch: tuple[int, int] | None

    @property
    def blocks(self) -> int | None:
        """Blocks of the grid; ``None`` where the file does not tell."""
        if self.grid is None:
            return None
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(slots=True)
class Profile:
    """The contents of a profiler file.

    Attributes:
        producer: What wrote the file, e.g. ``Nsight Systems 2026.2.1.210``.
        ranges: Ranges of all threads.
        kernels: Kernels of all devices.
        samples: Measured activity, where the profiler sampled it.
        sm_count: SMs by CUDA device, where the file tells [SMs].
        processes: Names of processes by pid, where the file tells.
        notes: What a reader of the trace should know about the import.
        slack_ns: How far rounding may make a range outlast the one around it [ns].
    """

    producer: str
    ranges: list[ThreadRange] = field(default_factory=list[ThreadRange])
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    samples: list[Sample] = field(default_factory=list[Sample])
    sm_count: dict[int, int] = field(default_factory=dict[int, int])
    processes: dict[int, str] = field(default_factory=dict[int, str])
    notes: list[str] = field(default_factory=list[str])
    slack_ns: int = 0

    @property
    def bounds_ns(self) -> tuple[int, int]:
        """First start and last end of anything in it [ns]; zeros for an empty one."""
        timed = (self.ranges, self.kernels)
        starts = [item.start_ns for items in timed for item in items]
        ends = [item.end_ns for items in timed for item in items]
        starts += [sample[2] for sample in self.samples]
        ends += [sample[3] for sample in self.samples]
        return (min(starts), max(ends)) if starts else (0, 0)
