"""Ray beside the workers of `executor_overhead`: actors with the same bodies, and every way to hand them a tensor.

Ray is given what serves it best: tensors without copies where it can, an object store that is large enough,
actors that wait for nothing else, and references instead of values wherever the value need not travel.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from typing import Any

import psutil
import torch

from benchmarks import overhead_program

START_S = 120.0
STOP_S = 20.0
STORE_BYTES = 2 << 30
LEAST_STORE_BYTES = 512 << 20
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

Call = Callable[[], Any]


class RayMissing(RuntimeError):
    """Ray is not installed, or does not start."""


class Actor:
    """The bodies, and a tensor that stays."""

    def __init__(self) -> None:
        self.kept = torch.zeros(0)

    def count(self, value: torch.Tensor) -> int:
        """Takes a tensor, returns a number."""
        return overhead_program.count(value)

    def count_own(self, value: torch.Tensor) -> int:
        """Takes a tensor that it may write to, as consumers of Rose may."""
        return overhead_program.count(overhead_program.copied(value))

    def copied(self, value: torch.Tensor) -> torch.Tensor:
        """Takes a tensor, returns one of its size."""
        return overhead_program.copied(value)

    def keep(self, value: torch.Tensor) -> int:
        """Takes a tensor and keeps a copy."""
        self.kept = overhead_program.copied(value)
        return os.getpid()

    def count_kept(self) -> int:
        """Takes nothing: the tensor is there."""
        return overhead_program.count(self.kept)


class RayActors:
    """A Ray of this benchmark's own.

    Args:
        shm_bytes: Free bytes where the object store goes.

    Attributes:
        start_s: Time until the first actor has answered [s].
        left: Processes that had to be killed after its shutdown.

    Raises:
        RayMissing: If there is none, or it does not start in time.
    """

    def __init__(self, shm_bytes: int) -> None:
        self.start_s = 0.0
        self._answers = False
        self.left = 0
        self._own: list[psutil.Process] = []
        if importlib.util.find_spec("ray") is None:
            raise RayMissing("ray is not installed")
        store = min(STORE_BYTES, shm_bytes // 2)
        if store < LEAST_STORE_BYTES:
            raise RayMissing(f"only {shm_bytes} bytes free in /dev/shm for its object store")
        self._directory = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        before = psutil.Process().children()
        os.environ.update(SETTINGS)
        begin = time.monotonic()
        try:
            with _within(START_S):
                self._ray = self._started(store)
                self.actor("cpu")
        except RayMissing:
            raise
        except Exception as error:
            raise RayMissing(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        finally:
            self._own = [p for p in psutil.Process().children() if p not in before]
            if not self._answers:
                self.close()
        self.start_s = round(time.monotonic() - begin, 1)

    @property
    def about(self) -> dict[str, Any]:
        """Its version and how it came and went."""
        return {
            "version": importlib.metadata.version("ray"),
            "start_s": self.start_s,
            "settings": SETTINGS,
            "killed_after_shutdown": self.left,
        }

    def actor(self, device: str) -> Any:
        """A new actor, once it answers.

        Raises:
            RayMissing: If it does not, in time: Ray may see no such device.
        """
        gpus = 0.1 if device != "cpu" else 0
        made = self._ray.remote(num_cpus=0, num_gpus=gpus)(Actor).remote()
        try:
            self._ray.get(made.count_kept.remote(), timeout=START_S)
        except Exception as error:
            raise RayMissing(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        self._answers = True
        return made

    def variants(self, value: torch.Tensor, first: Any, second: Any) -> dict[str, Call]:
        """Ways to hand a tensor to an actor.

        Args:
            value: The tensor.
            first: The actor.
            second: Another one, which has made what the first one is given.
        """
        ray = self._ray
        mine, other = first.copied.remote(value), second.copied.remote(value)
        ray.wait([mine, other], num_returns=2, timeout=START_S, fetch_local=False)
        ray.get(first.keep.remote(value), timeout=START_S)

        def returned() -> Any:  # the result stays in the object store
            return ray.wait([first.copied.remote(mine)], fetch_local=False)

        return {
            "ray_sent": lambda: ray.get(first.count.remote(value)),
            "ray_resident": lambda: ray.get(first.count.remote(mine)),
            "ray_resident_own": lambda: ray.get(first.count_own.remote(mine)),
            "ray_kept": lambda: ray.get(first.count_kept.remote()),
            "ray_resident_returned": returned,
            "ray_peer": lambda: ray.get(first.count.remote(other)),
            "ray_fetched": lambda: ray.get(mine),
        }

    def close(self) -> None:
        """End all of its processes; those that do not end by themselves are killed and counted."""
        ended = [process for own in self._own for process in _with_children(own)]
        ray: Any = importlib.import_module("ray")
        with contextlib.suppress(Exception), _within(STOP_S):
            ray.shutdown()
        _, alive = psutil.wait_procs(ended, timeout=STOP_S)
        self.left = len(alive)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=STOP_S)
        self._directory.cleanup()

    def _started(self, store_bytes: int) -> Any:
        ray: Any = importlib.import_module("ray")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=store_bytes,
            logging_level="ERROR",
            log_to_driver=False,
            _temp_dir=self._directory.name,
        )
        return ray


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def _within(seconds: float) -> Generator[None]:
    """Raise where a block takes longer [s]; for the main thread."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"expected an answer within {seconds:.0f} s, got none")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
