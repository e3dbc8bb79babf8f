"""Failures on a device: one clear error in bounded time, no process left, and the next native iteration works."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from rose_exec.quota.mps import PID_FILE, daemon
from rose_exec.replay import Replay, replay
from rose_exec.workers.process import WorkerDied
from rose_trace.component import program
from tests.gpu.failing_programs import ROWS, Broken, Program
from tests.rose_exec.observe import observed_plan

pytestmark = pytest.mark.filterwarnings("default")

BOUND_S = 60.0  # far above what a session takes to notice and to close, far below a hang
SPLIT = ("split-spatial{loop=iteration/rollout/interact groups=2}", "interleave", "merge")
REWIRE = ("rewire{node=iteration/learn beside=iteration/rollout}",)
STEP = "iteration/rollout/interact/sim.step"
LEARN = "iteration/learn/learner.learn"
WAYS = {
    "inline": ((), ()),
    "processes": ((), ("sim", "learner")),
    "split": (SPLIT, ("learner",)),
    "rewired": (REWIRE, ("sim", "learner")),
    "rewired inline": (REWIRE, ()),
}


class Pair(NamedTuple):
    """The same program in a session and native."""

    session: Replay
    planned: Program
    native: Program

    def order(self, orders: dict[Any, str], row: int = 0) -> None:
        for side in (self.planned, self.native):
            side.orders, side.row = dict(orders), row

    def natively(self) -> Any:
        with self.session.paused():
            return self.native.iteration()

    def overlap(self) -> None:
        """Go on with the plan after a failure."""
        assert self.session._driver is not None
        self.session._driver.serial = False


@contextlib.contextmanager
def session(way: str) -> Generator[Pair]:
    transforms, processes = WAYS[way]
    with program():
        native = Program()
    plan = observed_plan(lambda: Program().iteration, *transforms, rows=ROWS, processes=processes)
    with replay(plan, build=Program, strict=True) as opened:
        yield Pair(opened, opened.built, native)


@pytest.fixture(autouse=True)
def bounded() -> Generator[None]:
    """Nothing takes longer than its bound, and no process is left."""
    before = set(children())
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 3 * BOUND_S
    assert set(children()) <= before


def children() -> list[int]:
    """Processes below this one, without the one that Python starts beside all that are spawned."""
    below = psutil.Process().children(recursive=True)
    return [child.pid for child in below if "resource_tracker" not in " ".join(child.cmdline())]


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.device == b.device and torch.equal(a, b)
    if isinstance(a, list | tuple):
        others: Any = b
        return len(a) == len(others) and all(map(same, a, others))  # pyright: ignore[reportUnknownArgumentType]
    return a == b


def said(error: BaseException) -> str:
    return "\n".join([str(error), *error.__notes__])


def within_bound(act: Callable[[], Any]) -> Any:
    """What `act` returns or raises, which it must do in bounded time."""
    begin = time.monotonic()
    try:
        return act()
    finally:
        assert time.monotonic() - begin < BOUND_S


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_too_little_memory_in_a_node(way: str) -> None:
    with session(way) as both:
        assert same(both.planned.iteration()[1], both.natively()[1])
        both.order({(0, 1): "oom"})
        with pytest.raises(torch.OutOfMemoryError) as caught:
            within_bound(both.planned.iteration)
        text = said(caught.value)
        assert "Tried to allocate 1000.00 GiB" in text
        assert f"Raised by {STEP}, iteration [" in text
        assert (
            f"{STEP}: expected device memory for what it allocates, got too little. Plan with"
            in text
        )
        with pytest.raises(torch.OutOfMemoryError):
            both.natively()
        both.order({})
        natively = both.natively()
        assert same(both.planned.iteration()[1], natively[1])  # in native order
        both.overlap()
        assert same(both.planned.iteration()[1], both.natively()[1])


@pytest.mark.gpu
def test_memory_that_a_failed_node_had_is_free_again() -> None:
    with session("inline") as both:
        both.planned.iteration()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            both.order({(0, 1): "oom"})
            with pytest.raises(torch.OutOfMemoryError):
                both.planned.iteration()
            both.order({})
            both.planned.iteration()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < 1 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("row", [0, ROWS - 1], ids=["first group", "second group"])
def test_a_group_raises_while_others_compute(row: int) -> None:
    with session("split") as both:
        both.order({(1, 1): "raise"}, row)
        with pytest.raises(Broken) as caught:
            within_bound(both.planned.iteration)
        assert caught.value.args == ("no contact", 17)
        assert f"Raised by {STEP}, iteration [" in said(caught.value)
        assert f"Raised in worker sim-{0 if row == 0 else 1}:" in said(caught.value)
        with pytest.raises(Broken):
            both.natively()
        both.order({})
        assert same(both.planned.iteration(), both.natively())
        both.overlap()
        assert same(both.planned.iteration(), both.natively())


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["rewired", "rewired inline"])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), 0], ids=["first", "last", "beside"])
def test_a_branch_raises_while_another_computes(way: str, place: Any) -> None:
    with session(way) as both:
        both.order({place: "raise"})
        with pytest.raises(Broken) as caught:
            within_bound(both.planned.iteration)
        assert f"Raised by {LEARN if place == 0 else STEP}, iteration [" in said(caught.value)
        both.order({})
        data = both.natively()[1]
        assert same(both.planned.iteration()[1], data)
        both.overlap()
        assert same(both.planned.iteration()[1], data)


@pytest.mark.gpu
def test_the_earliest_of_several_failures_on_the_device_is_raised() -> None:
    with session("rewired") as both:
        both.order({(0, 1): "oom", (1, 0): "raise", 1: "raise"})
        with pytest.raises(torch.OutOfMemoryError):
            within_bound(both.planned.iteration)
        both.order({})
        assert same(both.planned.iteration()[1], both.natively()[1])


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["kill", "lose"], ids=["killed", "context lost"])
def test_a_process_that_is_lost_with_values_on_the_device(order: str) -> None:
    with session("rewired") as both:
        both.planned.iteration()
        pid = both.planned.learner.pid()
        both.order({1: order})
        with pytest.raises(Exception, match=r"Worker learner|CUDA error|device-side") as caught:
            within_bound(both.planned.iteration)
        text = said(caught.value)
        assert f"Raised by {LEARN}, iteration [" in text
        if order == "kill":
            assert isinstance(caught.value, WorkerDied)
            assert f"got signal {signal.SIGKILL.value} (pid {pid})" in text
        else:
            assert "expected a working CUDA context, got one that no longer works" in text
        both.order({})
        both.natively()
    assert not psutil.pid_exists(pid)


# A daemon that dies ---------------------------------------------------------------------------------


def watch_lines(lines: Iterable[str], told: threading.Event, read: list[str]) -> None:
    for line in lines:
        read.append(line.rstrip("\n"))
        if line.startswith("ready"):
            told.set()
    told.set()  # nothing more will be told


def end(pids: Iterable[int]) -> None:
    """Kill processes that this test started, and no others."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.mps
@pytest.mark.parametrize("which", ["server", "daemon and server"])
def test_a_daemon_that_dies_under_a_running_client(which: str) -> None:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with daemon() as running:
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.mps_client"],
            cwd=root,
            env=os.environ | running.environment() | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stderr is not None
        printed: list[str] = []
        told = threading.Event()
        reading = threading.Thread(target=watch_lines, args=(client.stdout, told, printed))
        reading.start()
        errors: list[str] = []
        logging = threading.Thread(
            target=watch_lines, args=(client.stderr, threading.Event(), errors)
        )
        logging.start()
        pids = [client.pid]
        try:
            assert told.wait(2 * BOUND_S), "\n".join(errors)
            assert printed, "\n".join(errors)
            assert printed[-1].startswith("ready")
            pids = list(map(int, printed[-1].split()[1:]))
            status = running.status()
            assert status.servers
            assert len(status.clients) >= len(pids)  # they are what this is about
            victims = list(status.servers)
            if which != "server":
                victims.insert(0, int((running.pipe / PID_FILE).read_text()))
            end(victims)
            begin = time.monotonic()
            client.wait(BOUND_S)
            print(f"ended {time.monotonic() - begin:.1f} s after the {which}")
        finally:
            end(pids)
            client.wait(BOUND_S)
            reading.join(BOUND_S)
            logging.join(BOUND_S)
            client.stdout.close()
            client.stderr.close()
    outcome = json.loads(printed[-1])
    print(outcome)
    assert outcome["error"], "the training went on without its server"
    assert outcome["left"] == []
    assert "expected a working CUDA context" in outcome["text"] or "Worker " in outcome["text"]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with program():
        native = Program()
    losses, _ = native.iteration()  # this process is no client of that daemon
    assert torch.isfinite(losses[-1]).all()
