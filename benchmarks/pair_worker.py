"""A process that holds the backbone, the head or both, and runs what it is told.

Processes start together on a moment of the system's monotonic clock. Every wait has a limit: a process
that dies or hangs ends in an error that names it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from benchmarks.pair_model import PairSize
    from rose_opt.measure import QuotaLevel

START_TIMEOUT_S = 90.0
RUN_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
WARM_UP = 4  # runs; the third of a captured node is its capture

What = Literal["V", "D", "serial", "pair"]
"""The backbone; the head; one after the other; both at once from this one thread."""


class WorkerGone(RuntimeError):
    """A process died, hung or failed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process is.

    Attributes:
        name: For messages.
        holds: Which of V and D.
        size: Their shapes.
        device: ``cuda`` or ``cpu``.
        reference: Path of outputs to compare with.
        captured: Whether D is one captured node, which asks the device for nothing on the way.
    """

    name: str
    holds: str
    size: PairSize
    device: str
    reference: str
    captured: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        what: What to run.
        start_ns: When, on the monotonic clock [ns].
        level: Limit of V; ``None`` for none.
        urgent: Whether D's blocks go before others that wait.
    """

    what: What
    start_ns: int
    level: QuotaLevel | None = None
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the last outputs with the reference, or make them the reference."""

    save: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of memory that levels no longer used hold."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Ask for the levels of partitions."""


class PairWorker:
    """A process, from the outside.

    Args:
        setup: What it is.
        environment: Variables of its own.
    """

    def __init__(self, setup: Setup, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.setup = setup
        self._pipe, remote = context.Pipe()
        self._process = context.Process(
            target=serve, args=(remote, setup), name=setup.name, daemon=True
        )
        with _environment(environment):
            self._process.start()
        remote.close()
        self.sms = 0

    def ready(self) -> PairWorker:
        """Wait until it has built its models and warmed up."""
        if not self.sms:
            self.sms = self._receive(START_TIMEOUT_S)
        return self

    def send(self, message: object) -> None:
        """Tell it something; `receive` has the answer."""
        try:
            self._pipe.send(message)
        except OSError:
            raise self._gone("closed its pipe") from None

    def receive(self) -> Any:
        """Its answer."""
        return self._receive(RUN_TIMEOUT_S)

    def ask(self, message: object) -> Any:
        """Tell it something and wait for the answer."""
        self.send(message)
        return self.receive()

    def stop(self) -> None:
        """End it; one that does not end by itself is killed."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _receive(self, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise self._gone(f"said nothing for {timeout_s:.0f} s")
            fine, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            raise self._gone(f"ended with exit code {self._process.exitcode}") from None
        if not fine:
            raise self._gone(f"failed:\n{answer}")
        return answer

    def _gone(self, how: str) -> WorkerGone:
        return WorkerGone(
            f"Process {self.setup.name}: expected an answer, but it {how}. Its output is above."
        )


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def largest_difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference of two floating-point tensors, as `Compare` tells it.

    Returns:
        0.0 only for equal bits; the largest float32 where there is a NaN.
    """
    import torch

    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (mine, theirs)]
    if torch.equal(*bits):
        return 0.0
    largest = torch.finfo(torch.float32).max
    apart = (mine.float() - theirs.float()).abs().nan_to_num(nan=largest, posinf=largest)
    return max(float(apart.max()), 1e-45)  # zeros of both signs: equal values, other bits


# In the process ---------------------------------------------------------------------------------


def serve(pipe: Connection, setup: Setup) -> None:
    """Answer messages until told to end, or until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resident: Resident | None = None
    message: object = Levels()
    while message is not None:
        try:
            if resident is None:
                resident = Resident(setup)
                answer: object = resident.sms
            else:
                answer = resident.handle(message)
            pipe.send((True, answer))
        except Exception:
            pipe.send((False, traceback.format_exc()))
            break
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            break
    if resident is not None:
        resident.close()


class Resident:
    """Models and streams of a process."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from benchmarks.pair_captured import CapturedHead
        from benchmarks.pair_machine import machine
        from benchmarks.pair_model import Backbone, Head

        self.torch: Any = torch
        self.setup = setup
        self.machine = machine(setup.device)
        self.sms = self.machine.sms()
        self.backbone = Backbone(setup.size, setup.device) if "V" in setup.holds else None
        self.head: Callable[[], list[torch.Tensor]] | None = None
        if "D" in setup.holds:
            head = Head(setup.size, setup.device)
            self.head = CapturedHead(head) if setup.captured else head
        self.outputs: dict[str, list[torch.Tensor]] = {}
        self.warm: set[int] = set()
        self.aside = self.machine.stream()
        self.urgent = self.machine.stream(urgent=True)
        for _ in range(WARM_UP):
            for what in setup.holds:
                self.run_alone(what, None)
            self.machine.synchronize()

    def handle(self, message: object) -> Any:
        """Answer a message.

        Raises:
            TypeError: If it is none.
        """
        match message:
            case Levels():
                return self.machine.quota().levels
            case Compare(save):
                return self.save() if save else self.compare()
            case Forget():
                self.outputs.clear()
                self.warm.clear()
                return self.machine.release()
            case Run():
                self.prepare(message.level)
                while time.monotonic_ns() < message.start_ns:
                    pass
                return self.run(message)
            case _:
                raise TypeError(f"Process {self.setup.name}: expected a message, got {message!r}.")

    def prepare(self, level: QuotaLevel | None) -> None:
        """Open a level and run V on it, so that memory and handles of its stream are there."""
        if level is not None and level.sms not in self.warm:
            self.warm.add(level.sms)
            self.run_alone("V", level)
            self.machine.synchronize()

    def run(self, told: Run) -> tuple[int, dict[str, int]]:
        """Run; when all is done, and when each was, on the monotonic clock [ns]."""
        ends: dict[str, int] = {}
        aside = self.urgent if told.urgent else self.aside
        match told.what:
            case "pair":
                self.run_alone("V", told.level)  # few big launches: the thread is free at once
                with self.machine.on(aside):
                    self.run_alone("D", None)
                self.machine.wait(aside)
                ends["D"] = time.monotonic_ns()
            case "serial":
                self.run_alone("V", None)
                self.run_alone("D", None)
            case "V":
                self.run_alone("V", told.level)
            case "D":
                with self.machine.on(aside):
                    self.run_alone("D", None)
        self.machine.synchronize()
        ends["V" if told.what == "pair" else told.what] = time.monotonic_ns()
        return max(ends.values()), ends

    def run_alone(self, name: str, level: QuotaLevel | None) -> None:
        """Submit V or D."""
        model = self.backbone if name == "V" else self.head
        assert model is not None
        if level is None:
            self.outputs[name] = model()
            return
        with self.machine.quota().limit(level):
            self.outputs[name] = model()

    def save(self) -> dict[str, float]:
        """Keep the last outputs; their magnitudes."""
        kept = {name: [x.cpu() for x in tensors] for name, tensors in self.outputs.items()}
        self.torch.save(kept, self.setup.reference)
        return {name: float(t[0].float().std()) for name, t in kept.items()}

    def compare(self) -> dict[str, float]:
        """Largest difference of each last output from the reference, as `largest_difference` says it."""
        kept: dict[str, list[torch.Tensor]] = self.torch.load(self.setup.reference, mmap=True)
        return {
            name: max(
                largest_difference(mine, reference.to(mine.device))
                for mine, reference in zip(tensors, kept[name], strict=True)
            )
            for name, tensors in self.outputs.items()
        }

    def close(self) -> None:
        """Let go of the device."""
        self.machine.synchronize()
        self.outputs.clear()
        self.machine.close()
