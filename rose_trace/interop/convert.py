"""`import_trace`: a profiler's file as a trace, in the same tables as a recorded one.

Ranges become spans of kind ``foreign``. Those in an iteration become ``exec`` spans below it, which
declare nothing, so that they are measured and never moved. Kernels become spans of kind ``kernel`` and
samples of estimated SM activity; CUDA calls in which the host waits become spans of kind ``sync``.

Spans of OpenTelemetry are rows already; `otlp_import` writes them.

Does not handle: memory copies on the device and CUDA calls that do not wait, which only serve to find
out what launched a kernel.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from rose_trace.interop.kernel_activity import RESOLUTION_NS, SM_COUNT, SOURCE, estimate_activity
from rose_trace.interop.kineto import read_kineto
from rose_trace.interop.nesting import CAPTURE, STEP, capture_ranges, nest
from rose_trace.interop.nsys import MAGIC, read_nsys
from rose_trace.interop.otlp_import import import_otlp, is_otlp
from rose_trace.interop.profile import Profile
from rose_trace.interop.span_rows import Origin, activity_batches, span_batches
from rose_trace.parquet import ProcessRows, TraceError, TraceInfo, beside, producer, write_sorted
from rose_trace.schema import SCHEMA_VERSION

MOST_SAMPLES = 20_000_000  # ours: by device, 5.5 hours at 1 ms


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """How to import a profiler's file.

    Attributes:
        iteration: Shell pattern for the names of ranges that are one iteration each; by default the
            steps of torch.profiler, or all that a process did where there are none.
        resolution_ns: Length of a sample of estimated activity [ns].
        sm_count: SMs of a device where the file does not tell [SMs].
    """

    iteration: str | None = None
    resolution_ns: int = RESOLUTION_NS
    sm_count: int = SM_COUNT

    def __post_init__(self) -> None:
        if self.resolution_ns < 1 or self.sm_count < 1:
            raise ValueError(
                "ImportSettings: expected a resolution and an SM count of at least 1, got "
                f"{self.resolution_ns} ns and {self.sm_count} SMs. Give positive numbers."
            )


def read_profile(file: Path) -> Profile:
    """Read a profiler's file, told by its contents rather than its name.

    Args:
        file: SQLite export of Nsight Systems, or JSON of Kineto or Chrome, gzipped or not.

    Returns:
        What it holds.

    Raises:
        TraceError: If it is missing, empty, truncated, corrupt or of another kind.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(64)
    except OSError as error:
        raise TraceError(
            f"{file}: expected a profiler's file, got {error.strerror}. Check the path."
        ) from error
    if not head:
        raise TraceError(
            f"{file}: expected a profiler's file, got an empty one. Export it from the profiler again."
        )
    if head.startswith(MAGIC):
        return read_nsys(file)
    if head.startswith(b"\x1f\x8b") or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return read_kineto(file)
    raise TraceError(
        f"{file}: expected SQLite from 'nsys export --type sqlite' or JSON of Kineto or Chrome, got a "
        "file that is neither. Export it in one of these formats."
    )


def import_trace(
    file: str | Path, trace: str | Path, settings: ImportSettings | None = None
) -> TraceInfo:
    """Write a profiler's or OpenTelemetry's file as a trace. The same file gives the same trace.

    Args:
        file: What the profiler, or an exporter of OpenTelemetry, wrote.
        trace: Where the spans go, e.g. ``trace.parquet``; activity goes beside.
        settings: How to import.

    Returns:
        What was written; its ``activity`` holds the notes of the import and the SMs of every device.

    Raises:
        TraceError: If the file cannot be read, holds nothing to import or no such iteration, or the
            trace cannot be written.
    """
    with _uncollected():
        if is_otlp(Path(file)):
            if settings is not None and settings.iteration is not None:
                raise TraceError(
                    f"{file}: expected no pattern for iterations, got {settings.iteration!r}: spans say themselves "
                    "what they are part of. Leave it out."
                )
            return import_otlp(Path(file), Path(trace))
        return _convert(Path(file), Path(trace), settings or ImportSettings())


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Keep the garbage collector from walking millions of objects, none of which is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _convert(file: Path, trace: Path, settings: ImportSettings) -> TraceInfo:
    """`import_trace`.

    Raises:
        TraceError: As there.
    """
    profile = read_profile(file)
    bounds_ns = _check(file, profile, settings)
    pattern = _choose_iteration(file, profile, settings.iteration)
    sms = _sm_counts(profile, settings.sm_count)
    nested, launched = nest(profile.ranges, profile.kernels, pattern, profile.slack_ns)
    with file.open("rb") as opened:
        origin = Origin(hashlib.file_digest(opened, "sha256").hexdigest(), profile.processes)
    try:
        spans = span_batches(nested, profile.kernels, launched, origin)
        estimated = estimate_activity(profile.kernels, sms, bounds_ns, settings.resolution_ns)
        activity = activity_batches((*profile.samples, *estimated), origin)
    except (OverflowError, pyarrow.ArrowException) as error:
        raise TraceError(
            f"{file}: expected ids and times of at most 64 bits, got others ({error}). It is corrupt; "
            "export it again."
        ) from error
    info = _info(profile, settings, sms, spans, activity, origin)
    try:
        for table, batches in (("activity", activity), ("spans", spans)):
            write_sorted(beside(trace, table), table, batches, info)
    except (OSError, pyarrow.ArrowException) as error:
        raise TraceError(
            f"{trace}: expected to write the trace there, got {error}. Choose another place."
        ) from error
    return info


def _check(file: Path, profile: Profile, settings: ImportSettings) -> tuple[int, int]:
    """Refuse what no trace can be made of.

    Returns:
        What the file covers [ns].

    Raises:
        TraceError: If it holds nothing, ends before it starts, or covers too much for the resolution.
    """
    first_ns, last_ns = profile.bounds_ns
    if not (profile.ranges or profile.kernels or profile.samples):
        raise TraceError(
            f"{file}: expected ranges, kernels or samples of activity, got none. Profile with NVTX and "
            "CUDA tracing, or with torch.profiler."
        )
    for item in (*profile.ranges, *profile.kernels):
        if item.end_ns < item.start_ns:
            raise TraceError(
                f"{file}: expected ends after starts, got {item.name} that ends "
                f"{item.start_ns - item.end_ns} ns before it starts. It is corrupt; export it again."
            )
    count = (last_ns - first_ns) // settings.resolution_ns
    if profile.kernels and count > MOST_SAMPLES:
        raise TraceError(
            f"{file}: expected at most {MOST_SAMPLES} samples by device, got {count}: it covers "
            f"{(last_ns - first_ns) / 1e9:.0f} s. Choose a coarser resolution, or profile less."
        )
    return first_ns, last_ns


def _choose_iteration(file: Path, profile: Profile, wanted: str | None) -> str:
    """The pattern for iterations; adds one range per process where nothing in the file is one.

    Raises:
        TraceError: If no range has the wanted name.
    """
    names = Counter(item.name for item in profile.ranges)
    if wanted is not None:
        matching = nest(profile.ranges, (), wanted, profile.slack_ns)[0]
        if not any(item.kind == "iteration" for item in matching):
            common = ", ".join(name for name, _ in names.most_common(5)) or "no ranges at all"
            raise TraceError(
                f"{file}: expected ranges named {wanted!r} as iterations, got {common}. "
                "Name another range, or leave it to the default."
            )
        return wanted
    if STEP in names:
        return STEP
    profile.ranges += capture_ranges(profile.ranges, profile.kernels)
    profile.notes.append(
        f"no range is an iteration, so all that a process did is one, named {CAPTURE}"
    )
    return CAPTURE


def _sm_counts(profile: Profile, default: int) -> dict[int, int]:
    """SMs of every device that ran kernels."""
    devices = sorted({kernel.device for kernel in profile.kernels})
    unknown = [f"cuda:{device}" for device in devices if device not in profile.sm_count]
    if unknown:
        profile.notes.append(
            f"the file does not tell how many SMs {', '.join(unknown)} has; {default} are assumed"
        )
    blind = sum(kernel.grid is None for kernel in profile.kernels)
    if blind:
        profile.notes.append(f"{blind} kernels without a grid count as filling their device")
    return {device: profile.sm_count.get(device, default) for device in devices}


def _info(
    profile: Profile,
    settings: ImportSettings,
    sms: dict[int, int],
    spans: list[pyarrow.RecordBatch],
    activity: list[pyarrow.RecordBatch],
    origin: Origin,
) -> TraceInfo:
    rows = {
        "spans": sum(batch.num_rows for batch in spans),
        "activity": sum(batch.num_rows for batch in activity),
    }
    per_pid = Counter(item.pid for items in (profile.ranges, profile.kernels) for item in items)
    processes: list[ProcessRows] = []
    for pid, count in sorted(per_pid.items()):
        mine = {"spans": count, "activity": 0}  # samples are of devices, not of a process
        processes.append(ProcessRows(origin.process(pid), pid, mine, mine, 0, [], None))
    about: dict[str, object] = {"source": "none", "rejected": {}}
    if profile.samples:
        source = profile.samples[0][0]
        lengths = sorted(sample[3] - sample[2] for sample in profile.samples)
        about = {
            "source": source,
            "resolution_ns": lengths[len(lengths) // 2],
            "estimate": False,
            "rejected": {},
        }
    elif profile.kernels:
        about = {
            "source": SOURCE,
            "resolution_ns": settings.resolution_ns,
            "estimate": True,
            "rejected": {"pm-sampling": "the file holds no samples of SM activity"},
        }
    about |= {
        "notes": profile.notes,
        "sm_count": {f"cuda:{device}": count for device, count in sms.items()},
    }
    made_by = {**producer(), "imported_from": profile.producer}
    return TraceInfo(origin.run, SCHEMA_VERSION, made_by, True, [], rows, processes, about)
