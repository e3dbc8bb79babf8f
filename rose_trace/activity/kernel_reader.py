"""The process that reads kernel records: jobs on standard input, samples on standard output.

A job is a line of JSON: ``file`` (deleted when read), ``bounds_ns`` and ``sms`` by device. Reading the
records here keeps the program's interpreter free.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rose_trace.activity import Sample
from rose_trace.activity.kernels import RECORD
from rose_trace.interop.kernel_activity import estimate_activity
from rose_trace.interop.kineto import read_kineto
from rose_trace.parquet import TraceError


def samples(
    file: Path, bounds_ns: tuple[int, int], sms: Mapping[int, int], resolution_ns: int
) -> Iterator[Sample]:
    """Activity of all devices in one window.

    Args:
        file: Kernel records as Kineto writes them.
        bounds_ns: The window [Unix ns].
        sms: SMs of every visible device.
        resolution_ns: Length of a sample [ns].

    Yields:
        Samples without gaps, those of a device without kernels too.
    """
    kernels = [
        kernel
        for kernel in read_kineto(file).kernels
        if kernel.end_ns > bounds_ns[0] and kernel.start_ns < bounds_ns[1] and kernel.device in sms
    ]
    yield from estimate_activity(kernels, sms, bounds_ns, resolution_ns)
    for device in sorted(set(sms) - {kernel.device for kernel in kernels}):
        for start in range(bounds_ns[0], bounds_ns[1], resolution_ns):
            end = min(start + resolution_ns, bounds_ns[1])
            yield "kernels", f"cuda:{device}", start, end, 0.0, True


def main() -> None:
    """Read jobs until standard input ends."""
    resolution_ns = int(sys.argv[1])
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        file = Path(job["file"])
        first_ns, last_ns = job["bounds_ns"]
        sms = {int(device): int(count) for device, count in job["sms"].items()}
        out = bytearray()
        try:
            for _, device, start, end, activity, _ in samples(
                file, (first_ns, last_ns), sms, resolution_ns
            ):
                out += RECORD.pack(int(device.partition(":")[2]), start, end, activity)
        except TraceError as error:
            print(f"rose_trace: kernels: {error}", file=sys.stderr)  # noqa: T201
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
