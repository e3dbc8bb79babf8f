"""The sampler process of PM sampling, one per GPU: counters in, records on standard output, until standard input ends.

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
RECORD = struct.Struct("<qqf")
BUFFER_BYTES = 64 * 1024 * 1024


def configured(device: int, interval_ns: int) -> Any:
    """The configured collector of one visible GPU."""
    open_driver()
    pm: Any = importlib.import_module("cupti.pm_sampling")
    collector: Any = pm.Collector(device)
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
    return collector


def open_driver() -> None:
    """Initialise the driver through torch; no context is made.

    Where nothing but CUPTI is loaded, ``profiler_initialize`` crashes (CUPTI 13.4 on driver 580), even
    with a context; after torch's own start-up it does not.
    """
    torch: Any = importlib.import_module("torch")
    torch.cuda.init()


def drain(collector: Any) -> None:
    """Write the samples that have come in; the first of a session is empty."""
    out = bytearray()
    for sample in collector.decode():
        if sample.start_timestamp:
            value = sample.metric_values[0] / 100.0
            out += RECORD.pack(sample.start_timestamp, sample.end_timestamp, value)
    sys.stdout.buffer.write(out)
    sys.stdout.buffer.flush()


def main() -> None:
    """Sample a GPU until standard input ends; with ``--check`` only try to."""
    what, device = sys.argv[1], int(sys.argv[2])
    collector = configured(device, 1_000_000 if what == "--check" else int(what))
    try:
        if what == "--check":
            return
        collector.start()
        sys.stdout.buffer.write(RECORD.pack(0, 0, 0.0))  # ready
        sys.stdout.buffer.flush()
        ended = False
        while not ended:
            ended = bool(select.select([sys.stdin], [], [], DRAIN_SECONDS)[0])
            if ended:
                collector.stop()
            drain(collector)
    finally:
        collector.disable()


if __name__ == "__main__":
    main()
