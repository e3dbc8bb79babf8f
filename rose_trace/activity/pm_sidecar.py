"""The sampler process of PM sampling: counters in, records on standard output, until standard input ends.

Runs as a script in an environment of its own; it imports nothing of Rose.
"""

from __future__ import annotations

import importlib
import select
import struct
import sys
from typing import Any

METRIC = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"  # what Nsight calls SM active
DRAIN_SECONDS = 0.25  # well before the decode limit of 10,000 samples
RECORD = struct.Struct("<iqqf")
BUFFER_BYTES = 64 * 1024 * 1024


def collectors(interval_ns: int) -> list[Any]:
    """A configured collector per visible GPU."""
    count = open_driver()
    pm: Any = importlib.import_module("cupti.pm_sampling")
    made: list[Any] = []
    for index in range(count):
        collector: Any = pm.Collector(index)
        collector.enable()
        settings: dict[str, Any] = {
            "metrics": [METRIC],
            "hardware_buffer_size": BUFFER_BYTES,
            "sampling_interval": interval_ns,
        }
        try:
            collector.configure(**settings, trigger_mode=pm.TriggerMode.GPU_TIME_INTERVAL)
        except ValueError:  # Turing and GA100 count system clock cycles, about one a nanosecond
            collector.configure(**settings, trigger_mode=pm.TriggerMode.GPU_SYSCLK_INTERVAL)
        made.append(collector)
    return made


def open_driver() -> int:
    """Initialise the driver through torch; no context is made.

    Where nothing but CUPTI is loaded, ``profiler_initialize`` crashes (CUPTI 13.4 on driver 580), even
    with a context; after torch's own start-up it does not.

    Returns:
        Number of visible GPUs.
    """
    torch: Any = importlib.import_module("torch")
    torch.cuda.init()
    return int(torch.cuda.device_count())


def drain(device: int, collector: Any) -> None:
    """Write the samples that have come in; the first of a session is empty."""
    out = bytearray()
    for sample in collector.decode():
        if sample.start_timestamp:
            value = sample.metric_values[0] / 100.0
            out += RECORD.pack(device, sample.start_timestamp, sample.end_timestamp, value)
    sys.stdout.buffer.write(out)
    sys.stdout.buffer.flush()


def main() -> None:
    """Sample until standard input ends; with ``--check`` only try to."""
    trial = sys.argv[1] == "--check"
    made = collectors(1_000_000 if trial else int(sys.argv[1]))
    try:
        if trial:
            return
        for collector in made:
            collector.start()
        sys.stdout.buffer.write(RECORD.pack(-1, 0, 0, 0.0))  # ready
        sys.stdout.buffer.flush()
        ended = False
        while not ended:
            ended = bool(select.select([sys.stdin], [], [], DRAIN_SECONDS)[0])
            if ended:
                for collector in made:
                    collector.stop()
            for device, collector in enumerate(made):
                drain(device, collector)
    finally:
        for collector in made:
            collector.disable()


if __name__ == "__main__":
    main()
