"""A private MPS daemon: lets the processes of one program share a GPU instead of taking turns.

Paper: §4.4 (MPS active thread percentages).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
STOP_TIMEOUT_S = 20.0  # ours


class MpsError(RuntimeError):
    """The MPS daemon is missing, forbidden or dead."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A running daemon.

    Attributes:
        pipe: Its pipe directory: what its clients are told.
        log: Its log directory.
    """

    pipe: Path
    log: Path

    def environment(self, percent: int | None = None) -> dict[str, str]:
        """Environment of a client; `percent` limits the SMs that it may use [%]."""
        told = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }
        if percent is not None:
            told["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
        return told

    def ask(self, command: str) -> str:
        """Answer of the daemon to a control command, e.g. ``get_server_list``.

        Raises:
            MpsError: If it does not answer.
        """
        try:
            done = subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env=os.environ | self.environment(),
                capture_output=True,
                text=True,
                timeout=STOP_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MpsError(
                f"MPS: expected an answer to '{command}', got {error}. Its log is in {self.log}."
            ) from error
        return done.stdout.strip()


@contextlib.contextmanager
def daemon() -> Generator[MpsDaemon]:
    """Run a private daemon for a block; it is always stopped.

    Yields:
        The daemon, with directories of its own.

    Raises:
        MpsError: If there is no MPS here, or it may not be started.
    """
    if shutil.which(CONTROL) is None:
        raise MpsError(
            f"MPS: expected {CONTROL} on the PATH, got none. Install the NVIDIA driver's tools."
        )
    with tempfile.TemporaryDirectory(prefix="rose-mps-") as directory:
        running = MpsDaemon(Path(directory) / "pipe", Path(directory) / "log")
        running.pipe.mkdir()
        running.log.mkdir()
        started = subprocess.run(
            [CONTROL, "-d"],
            env=os.environ | running.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if started.returncode:
            raise MpsError(
                f"MPS: expected a daemon, got: {started.stderr.strip() or started.stdout.strip()}. "
                "Another user's daemon, or the compute mode, may forbid it."
            )
        try:
            yield running
        finally:
            with contextlib.suppress(MpsError):
                running.ask("quit")
