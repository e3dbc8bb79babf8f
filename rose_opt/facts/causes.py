"""Why the device idles during a node, and what helps: causes told from evidence, or none claimed.

The idle part of a window is split in two: time without any kernel (gaps), and SMs that running kernels
leave free (unfilled). The larger part decides. Gaps belong to whoever should have launched: a host that
waits for the device, one that launches many short kernels, one that computes, or one that waits for
another node. Where a trace lacks what a cause needs, the cause is `UNKNOWN` and says what to record.

Paper: §4.3.2 (windows); causes and their cures are ours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rose_trace.records import NodePath

MEMORY_BOUND_FROM = 0.6  # ours: share of the memory bandwidth in use
SYNC_FROM = 0.5  # ours: share of a node's time that the host spends in calls that wait
LAUNCH_INTERVAL_NS = (
    100_000  # ours: an eager operator is issued every 5 to 50 us, Python in between
)
BUSY_HOST_FROM = 0.5  # ours: cores in use below which a process mostly waits
WAITING_FROM = 0.8  # ours: share of a node's time during which the node it waits for runs
IDLE_BELOW = 0.05  # ours: activity of a device on which nothing runs


class CauseKind(enum.StrEnum):
    """Why a device idles during a node."""

    LAUNCH_BOUND = "launch-bound"
    SMALL_GRID = "small grid"
    MEMORY_BOUND = "memory-bound"
    HOST_BOUND = "host-bound"
    WAITING_ON_NODE = "waiting on another node"
    WAITING_ON_SYNC = "waiting on a synchronisation"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """What is known about the time of one node; ``None`` where no source tells.

    Attributes:
        target: The node.
        calls: Its invocations that count.
        duration_ns: Their summed duration [ns].
        sm_activity: Mean activity meanwhile [fraction].
        on_cpu: Whether activity is that of CPU cores, with no device at all.
        kernels: Kernels that it launched.
        kernel_ns: Their summed duration [ns].
        busy: Share of its time during which any kernel runs on its device [fraction].
        filled: Share of its time times SMs that running kernels have blocks for [fraction].
        sms: SMs of its device.
        bandwidth: Share of the memory bandwidth in use [fraction].
        sync_calls: CUDA calls in it in which the host waited.
        sync_ns: Their summed duration [ns].
        sync_name: The call that took most of it; empty without one.
        cores_used: CPU time of the process over duration [cores].
        threads: Intra-op threads it ran with.
        other: Node that runs during most of its time in another thread or process.
        other_share: Share of its time during which `other` runs [fraction].
    """

    target: NodePath
    calls: int
    duration_ns: int
    sm_activity: float
    on_cpu: bool = False
    kernels: int | None = None
    kernel_ns: int | None = None
    busy: float | None = None
    filled: float | None = None
    sms: int | None = None
    bandwidth: float | None = None
    sync_calls: int | None = None
    sync_ns: int | None = None
    sync_name: str = ""
    cores_used: float | None = None
    threads: int | None = None
    other: NodePath | None = None
    other_share: float | None = None

    @property
    def sync_share(self) -> float:
        """Share of its time that the host spends in calls that wait [fraction]."""
        return (self.sync_ns or 0) / max(self.duration_ns, 1)

    @property
    def interval_ns(self) -> float | None:
        """Host time per launched kernel, without calls that wait [ns]; ``None`` without kernels."""
        if not self.kernels:
            return None
        return max(self.duration_ns - (self.sync_ns or 0), 0) / self.kernels

    @property
    def host_waits(self) -> bool:
        """Whether the process is known to compute little."""
        return self.cores_used is not None and self.cores_used < BUSY_HOST_FROM


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a window is there.

    Attributes:
        kind: The cause.
        text: The evidence in numbers.
        advice: What helps.
        evidence: The numbers themselves.
    """

    kind: CauseKind
    text: str
    advice: str
    evidence: WindowEvidence


def find_cause(evidence: WindowEvidence, partner: str = "") -> Cause:
    """The cause that the evidence supports.

    Args:
        evidence: What is known about the node's time.
        partner: Other work that could run meanwhile, in words; empty where none is known.

    Returns:
        The cause; `CauseKind.UNKNOWN` where the evidence supports none.

    >>> spent = dict(target=NodePath("i/act"), calls=1, duration_ns=2_000_000, sm_activity=0.1)
    >>> seen = WindowEvidence(**spent, kernels=100, kernel_ns=400_000, busy=0.2, filled=0.1)
    >>> find_cause(seen).kind
    <CauseKind.LAUNCH_BOUND: 'launch-bound'>
    """
    kind = _kind(evidence)
    return Cause(kind, _text(kind, evidence), _advice(kind, evidence, partner), evidence)


def _kind(seen: WindowEvidence) -> CauseKind:
    if seen.bandwidth is not None and seen.bandwidth >= MEMORY_BOUND_FROM:
        return CauseKind.MEMORY_BOUND
    if seen.busy is not None and seen.filled is not None:
        gaps, unfilled = 1.0 - seen.busy, seen.busy - seen.filled
        if unfilled > gaps:
            return CauseKind.SMALL_GRID
    elif seen.sm_activity >= IDLE_BELOW and not (
        seen.on_cpu or seen.host_waits or seen.sync_share >= SYNC_FROM
    ):
        return CauseKind.UNKNOWN  # something runs, and only kernels would tell what
    return _why_nothing_is_launched(seen)


def _why_nothing_is_launched(seen: WindowEvidence) -> CauseKind:
    if seen.sync_share >= SYNC_FROM:
        return CauseKind.WAITING_ON_SYNC
    interval_ns = seen.interval_ns
    if interval_ns is not None and seen.kernels and seen.kernel_ns is not None:
        short = seen.kernel_ns / seen.kernels < interval_ns
        if short and interval_ns <= LAUNCH_INTERVAL_NS:
            return CauseKind.LAUNCH_BOUND
    if seen.host_waits:
        waits = seen.other is not None and (seen.other_share or 0.0) >= WAITING_FROM
        return CauseKind.WAITING_ON_NODE if waits else CauseKind.UNKNOWN
    if seen.cores_used is None and seen.kernels is None:
        return CauseKind.UNKNOWN
    return CauseKind.HOST_BOUND


def _text(kind: CauseKind, seen: WindowEvidence) -> str:
    host = _host(seen)
    match kind:
        case CauseKind.SMALL_GRID:
            return f"kernels run {_percent(seen.busy)} of the time, with {_blocks(seen)}"
        case CauseKind.MEMORY_BOUND:
            return f"{_percent(seen.bandwidth)} of the memory bandwidth in use"
        case CauseKind.LAUNCH_BOUND:
            return f"{_kernels(seen)}; kernels run {_percent(seen.busy)} of the time"
        case CauseKind.WAITING_ON_SYNC:
            calls = (seen.sync_calls or 0) / max(seen.calls, 1)
            return f"{seen.sync_name} takes {_percent(seen.sync_share)} of it ({_count(calls)} waits a call)"
        case CauseKind.WAITING_ON_NODE:
            return f"{host} while '{seen.other}' runs {_percent(seen.other_share)} of the time"
        case CauseKind.HOST_BOUND if seen.on_cpu:
            return host
        case CauseKind.HOST_BOUND:
            launches = "" if seen.kernels is None else f"; {_kernels(seen)}"
            return f"{host or 'CPU time unknown'}, device {_percent(seen.sm_activity)} active{launches}"
        case CauseKind.UNKNOWN:
            known = host or "CPU time unknown"
            return f"{known}, activity {_percent(seen.sm_activity)}"


def _advice(kind: CauseKind, seen: WindowEvidence, partner: str) -> str:
    beside = f"overlap it with {partner}" if partner else "overlap it with work for the device"
    match kind:
        case CauseKind.LAUNCH_BOUND:
            return f"capture a CUDA graph of it (graph=True in its @rose.node) or fuse its kernels; then {beside}"
        case CauseKind.SMALL_GRID:
            return f"give it a larger batch, or {beside}"
        case CauseKind.MEMORY_BOUND:
            return f"move less data (fused kernels, smaller types); {beside} if that computes"
        case CauseKind.WAITING_ON_SYNC:
            return _sync_advice(seen)
        case CauseKind.WAITING_ON_NODE:
            return f"split the batch so that one group waits for '{seen.other}' while another works"
        case CauseKind.HOST_BOUND:
            one_thread = seen.cores_used is not None and seen.cores_used < 1.5
            return f"{beside}{', or spread it over processes' if one_thread else ''}"
        case CauseKind.UNKNOWN if seen.host_waits:
            return "it waits for something that is not recorded (input, a lock, a service): make that a node"
        case CauseKind.UNKNOWN:
            return (
                "record kernels to tell: profile with Nsight Systems or torch.profiler and import"
            )


def _sync_advice(seen: WindowEvidence) -> str:
    path = seen.target
    if "item" in path or "_local_scalar_dense" in path or "is_nonzero" in path:
        return "remove the .item() (or bool(), float()) of a device tensor, or read it an iteration later"
    if "emcpy" in seen.sync_name:
        return "copy from pinned memory with non_blocking=True, and prefetch the next batch"
    return f"wait later: launch what does not depend on it before {seen.sync_name}"


def _kernels(seen: WindowEvidence) -> str:
    if not seen.kernels:
        return "no kernels launched"
    mean_us = (seen.kernel_ns or 0) / seen.kernels / 1e3
    every_us = (seen.interval_ns or 0.0) / 1e3
    count = seen.kernels / max(seen.calls, 1)
    return f"{_count(count)} kernels a call of {mean_us:.1f} us, one every {every_us:.1f} us"


def _blocks(seen: WindowEvidence) -> str:
    sms = seen.sms or 0
    return f"blocks for {sms * (seen.filled or 0.0) / (seen.busy or 1.0):.0f} of {sms} SMs"


def _host(seen: WindowEvidence) -> str:
    if seen.cores_used is None:
        return ""
    threads = f" with {seen.threads} threads allowed" if seen.threads is not None else ""
    return f"{seen.cores_used:.1f} CPU cores busy{threads}"


def _count(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 10 else f"{mean:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
