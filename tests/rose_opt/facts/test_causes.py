from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose_opt.facts import CauseKind, Facts, WindowEvidence, build_facts
from rose_opt.facts.causes import find_cause
from rose_trace.records import NodePath
from tests.rose_opt.facts.factory import Recording

US = 1_000
MS = 1_000_000


def act(recording: Recording, ns: int, name: str = "act", **more: Any) -> dict[str, Any]:
    """One call of a node and its row."""
    recording.node(name, ns=ns, pure=True, **more)
    return recording.rows[-1]


def cause_of(recording: Recording, tmp_path: Path, node: str = "act") -> Any:
    facts: Facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    window = facts.window(f"iteration/{node}")
    assert window is not None
    return window.cause


def fill(recording: Recording, ns: int, activity: float, **more: Any) -> None:
    """Samples of 1 ms over the whole recording."""
    for start in range(0, ns, MS):
        recording.sample(start, min(start + MS, ns), activity, **more)


def test_many_short_kernels_with_gaps_are_launch_bound(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
    for n in range(500):  # every 20 us a kernel of 5 us
        recording.kernel(n * 20 * US, 5 * US, 264, row)
    fill(recording, 10 * MS, 0.25)
    cause = cause_of(recording, tmp_path)
    assert cause.kind is CauseKind.LAUNCH_BOUND
    assert cause.text == (
        "500 kernels a call of 5.0 us, one every 20.0 us; kernels run 25% of the time"
    )
    assert cause.advice.startswith("capture a CUDA graph of it (graph=True in its @rose.node)")
    seen = cause.evidence
    assert (seen.kernels, seen.kernel_ns) == (500, 2_500 * US)
    assert (seen.busy, seen.filled) == (pytest.approx(0.25), pytest.approx(0.25))


def test_kernels_that_fill_few_sms_have_a_small_grid(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
    for n in range(10):  # back to back, 33 blocks on 132 SMs
        recording.kernel(n * MS, MS, 33, row)
    fill(recording, 10 * MS, 0.25)
    cause = cause_of(recording, tmp_path)
    assert cause.kind is CauseKind.SMALL_GRID
    assert cause.text == "kernels run 100% of the time, with blocks for 33 of 132 SMs"
    assert cause.advice.startswith("give it a larger batch")


def test_kernels_side_by_side_share_the_sms(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
    recording.kernel(0, 10 * MS, 66, row)
    recording.kernel(0, 10 * MS, 33, row)
    recording.kernel(4 * MS, 2 * MS, None, row)  # without a grid: fills the device
    fill(recording, 10 * MS, 0.7)
    seen = cause_of(recording, tmp_path).evidence
    assert seen.busy == pytest.approx(1.0)
    assert seen.filled == pytest.approx(0.8 * 0.75 + 0.2, abs=1e-4)


def test_kernels_count_where_they_run_not_where_they_were_launched(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 2 * MS, "issue")
        act(recording, 8 * MS)
    recording.kernel(3 * MS, 6 * MS, 264, row)
    fill(recording, 10 * MS, 0.5)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    by_node = {w.target: w.cause.evidence for w in facts.windows if w.cause}
    issue, later = by_node[NodePath("iteration/issue")], by_node[NodePath("iteration/act")]
    assert (issue.kernels, issue.busy) == (1, 0.0)
    assert (later.kernels, later.busy) == (0, pytest.approx(0.75))


def test_low_activity_with_a_busy_memory_is_memory_bound(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
        act(recording, 10 * MS, "compute")
    recording.kernel(0, 10 * MS, 66, row)
    fill(recording, 20 * MS, 0.5)
    for start in range(20):
        used = 0.9 if start < 10 else 0.1
        recording.sample(start * MS, (start + 1) * MS, used, source="dram")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    window, other = facts.window("iteration/act"), facts.window("iteration/compute")
    assert window is not None
    assert other is not None
    assert facts.activity is not None
    assert facts.activity.source == "pm-sampling"  # bandwidth is no activity
    assert window.cause is not None
    assert window.cause.kind is CauseKind.MEMORY_BOUND
    assert window.cause.text == "90% of the memory bandwidth in use"
    assert window.sm_activity == pytest.approx(0.5)
    assert other.bandwidth == pytest.approx(0.1)


def test_an_item_that_waits_for_the_device_is_a_synchronisation(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS, "aten::item")
    recording.kernel(0, MS, 264, row)
    recording.host_wait(500 * US, 9 * MS, row)
    recording.host_wait(9_600 * US, 100 * US, row, "cudaMemcpyAsync")
    fill(recording, 10 * MS, 0.1)
    cause = cause_of(recording, tmp_path, "aten::item")
    assert cause.kind is CauseKind.WAITING_ON_SYNC
    assert cause.text == "cudaStreamSynchronize takes 91% of it (2 waits a call)"
    assert cause.advice.startswith("remove the .item()")
    assert (cause.evidence.sync_calls, cause.evidence.sync_ns) == (2, 9_100 * US)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("cudaMemcpyAsync", "copy from pinned memory with non_blocking=True, and prefetch"),
        ("cudaDeviceSynchronize", "wait later: launch what does not depend on it before cudaDe"),
    ],
)
def test_advice_names_the_call_that_waits(call: str, advice: str, tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
    recording.host_wait(0, 9 * MS, row, call)
    fill(recording, 10 * MS, 0.1)
    cause = cause_of(recording, tmp_path)
    assert cause.kind is CauseKind.WAITING_ON_SYNC
    assert cause.advice.startswith(advice)
    assert cause.evidence.kernels is None  # no kernels recorded is not none launched


def test_a_computing_host_beside_an_idle_device_is_host_bound(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        act(recording, 8 * MS, "physics", cores=1.0)
        act(recording, 12 * MS, "policy", cores=1.0)
    fill(recording, 8 * MS, 0.01)
    for start in range(8, 20):
        recording.sample(start * MS, (start + 1) * MS, 0.7)
    cause = cause_of(recording, tmp_path, "physics")
    assert cause.kind is CauseKind.HOST_BOUND
    assert cause.text == "1.0 CPU cores busy with 2 threads allowed, device 1% active"
    assert cause.advice == (
        "overlap it with 'policy' (70% active, 12.0 ms an iteration), or spread it over processes"
    )


def test_few_long_gaps_between_kernels_are_the_hosts(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        row = act(recording, 10 * MS)
    for n in range(5):
        recording.kernel(n * 2 * MS, 20 * US, 264, row)
    fill(recording, 10 * MS, 0.01)
    cause = cause_of(recording, tmp_path)
    assert cause.kind is CauseKind.HOST_BOUND
    assert "5 kernels a call of 20.0 us, one every 2000.0 us" in cause.text


def both(recording: Recording, worker_cores: float = 1.0) -> None:
    """The main process waits for 10 ms, for 9 of which a worker steps the simulator."""
    with recording.iteration():
        act(recording, 10 * MS, "gather", cores=0.05)
    recording.process, recording.now_ns = "worker:simulator", 0
    with recording.iteration():
        recording.now_ns = 500 * US
        act(recording, 4 * MS, "simulator.step", cores=worker_cores)
        act(recording, 5 * MS, "simulator.step", cores=worker_cores)
        recording.now_ns = 10 * MS
    fill(recording, 10 * MS, 0.0)


def test_a_node_that_waits_for_another_process_names_it(tmp_path: Path):
    recording = Recording()
    both(recording)
    cause = cause_of(recording, tmp_path, "gather")
    assert cause.kind is CauseKind.WAITING_ON_NODE
    assert cause.text == (
        "0.1 CPU cores busy with 2 threads allowed while 'iteration/simulator.step' runs 90% of "
        "the time"
    )
    assert "'iteration/simulator.step'" in cause.advice


def test_a_node_that_idles_itself_is_nothing_to_wait_for(tmp_path: Path):
    recording = Recording()
    both(recording, worker_cores=0.1)
    cause = cause_of(recording, tmp_path, "gather")
    assert cause.kind is CauseKind.UNKNOWN
    assert cause.advice.startswith("it waits for something that is not recorded")


def test_without_a_gpu_the_cause_is_told_from_cpu_time(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        act(recording, 400 * MS, "single", cores=1.0)
        act(recording, 400 * MS, "asleep", cores=0.1)
        act(recording, 400 * MS, "parallel", cores=2.0)
    for start, activity in ((0, 0.5), (400, 0.05), (800, 1.0)):
        for n in range(0, 400, 50):
            begin = (start + n) * MS
            recording.sample(begin, begin + 50 * MS, activity, source="cpu", device="cpu")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    causes = {w.target.rpartition("/")[2]: w.cause for w in facts.windows}
    assert causes["single"] is not None
    assert causes["single"].kind is CauseKind.HOST_BOUND
    assert causes["single"].text == "1.0 CPU cores busy with 2 threads allowed"
    assert causes["asleep"] is not None
    assert causes["asleep"].kind is CauseKind.UNKNOWN
    assert causes["parallel"] is None  # nothing idles


def test_nothing_is_claimed_without_a_source_that_tells(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        act(recording, 10 * MS, cores=1.0)
    fill(recording, 10 * MS, 0.3)  # something runs, and nobody recorded what
    cause = cause_of(recording, tmp_path)
    assert cause.kind is CauseKind.UNKNOWN
    assert cause.text == "1.0 CPU cores busy with 2 threads allowed, activity 30%"
    assert cause.advice.startswith("record kernels to tell")


def seen(**known: Any) -> WindowEvidence:
    base: dict[str, Any] = {"calls": 1, "duration_ns": 10 * MS, "sm_activity": 0.3}
    return WindowEvidence(target=NodePath("i/act"), **base | known)


def test_the_larger_part_of_the_idle_time_decides():
    launching = {"kernels": 1_000, "kernel_ns": 5 * MS, "sms": 132}
    # 45 % gaps, 25 % of the SMs unfilled, and the other way around.
    assert find_cause(seen(busy=0.55, filled=0.3, **launching)).kind is CauseKind.LAUNCH_BOUND
    assert find_cause(seen(busy=0.75, filled=0.3, **launching)).kind is CauseKind.SMALL_GRID


def test_time_in_a_wait_is_not_time_to_launch():
    # 200 kernels of 20 us in 10 ms, 4 of them waiting: one every 30 us.
    evidence = seen(
        kernels=200, kernel_ns=4 * MS, busy=0.4, filled=0.4, sync_ns=4 * MS, sync_calls=1
    )
    assert evidence.interval_ns == pytest.approx(30 * US)
    assert find_cause(evidence).kind is CauseKind.LAUNCH_BOUND
    # The device keeps up with the host: launches are not what it waits for.
    assert (
        find_cause(seen(kernels=200, kernel_ns=12 * MS, busy=0.4, filled=0.4)).kind
        is CauseKind.HOST_BOUND
    )
