"""A private MPS daemon: lets the processes of one program share a GPU instead of taking turns.

Paper: §4.4 (MPS active thread percentages).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from rose_exec.quota.quota import QuotaError

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
START_TIMEOUT_S = 30.0  # ours
STOP_TIMEOUT_S = 20.0  # ours
PID_FILE = f"{CONTROL}.pid"
_MISSING = f"MPS: expected {CONTROL} on the PATH, got none. Install the NVIDIA driver's tools."


class MpsError(QuotaError):
    """The MPS daemon is missing, forbidden or dead, or a client of it is."""


@dataclass(frozen=True, slots=True)
class MpsStatus:
    """What a daemon says of itself.

    Attributes:
        running: Whether it answers.
        servers: Process ids of its servers; none before the first client.
        clients: Process ids of their clients.
        detail: Why it does not answer.
    """

    running: bool
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A daemon, running or not.

    Attributes:
        pipe: Its pipe directory: what its clients are told.
        log: Its log directory.
    """

    pipe: Path
    log: Path

    @classmethod
    def at(cls, directory: Path) -> MpsDaemon:
        """The daemon of a directory."""
        return cls(directory / "pipe", directory / "log")

    def environment(self, percent: int | None = None) -> dict[str, str]:
        """Environment of a client; `percent` limits the SMs that it may use [%, 1..100].

        Raises:
            ValueError: If `percent` is out of range.
        """
        if percent is not None and not 1 <= percent <= 100:
            raise ValueError(
                f"MpsDaemon.environment: expected a percent in 1..100, got {percent}. Pass a whole percent."
            )
        told = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }
        if percent is not None:
            told[PERCENTAGE] = str(percent)
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
                check=False,
            )
        except FileNotFoundError:
            raise MpsError(_MISSING) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise MpsError(
                f"MPS: expected an answer to '{command}', got {error}. Its log is in {self.log}."
            ) from error
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            raise MpsError(
                f"MPS: expected an answer to '{command}', got: {said}. Its log is in {self.log}."
            )
        return done.stdout.strip()

    def start(self) -> None:
        """Start it in its directories.

        Raises:
            MpsError: If there is no MPS here, it may not be started, or it runs already.
        """
        if shutil.which(CONTROL) is None:
            raise MpsError(_MISSING)
        if self.status().running:
            raise MpsError(
                f"MPS: expected no daemon in {self.pipe}, got a running one. Use it, or stop it first."
            )
        for directory in (self.pipe, self.log):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            started = subprocess.run(
                [CONTROL, "-d"],
                env=os.environ | self.environment(),
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(
                f"MPS: expected a daemon within {START_TIMEOUT_S:.0f} s, got none. Its log is in {self.log}."
            ) from error
        if started.returncode:
            raise MpsError(
                f"MPS: expected a daemon, got: {started.stderr.strip() or started.stdout.strip()}. "
                "Another user's daemon, or the compute mode, may forbid it."
            )

    def status(self) -> MpsStatus:
        """Ask whether it runs, and for whom."""
        try:
            servers = _numbers(self.ask("get_server_list"))
            clients = [pid for server in servers for pid in self._clients(server)]
        except MpsError as error:
            return MpsStatus(False, detail=str(error))
        return MpsStatus(True, tuple(servers), tuple(clients))

    def _clients(self, server: int) -> list[int]:
        return _numbers(self.ask(f"get_client_list {server}"))

    def stop(self) -> None:
        """Stop it; one that does not answer is ended by its process id. Stopping twice does nothing."""
        with contextlib.suppress(MpsError):
            self.ask("quit")
            return
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.pipe / PID_FILE).read_text())
            name = Path(f"/proc/{pid}/comm").read_text()
            if name.startswith("nvidia-cuda-mps"):  # its number may have been given to another
                os.kill(pid, signal.SIGTERM)


def client_environment(percent: int) -> dict[str, str]:
    """Environment of a worker process of one percentage, under the daemon that this process is told of.

    Args:
        percent: Active thread percentage [%, 1..100]; 0 for a worker without a limit.

    Raises:
        MpsError: If this process is told of no daemon, or that one does not answer: CUDA would run the
            worker without MPS and without a limit, and say nothing.
    """
    if not percent:
        return {}
    pipe, log = (os.environ.get(f"CUDA_MPS_{name}_DIRECTORY", "") for name in ("PIPE", "LOG"))
    if not pipe:
        raise MpsError(
            f"Worker of {percent} %: expected an MPS daemon (CUDA_MPS_PIPE_DIRECTORY), got none. Start one with "
            "'eval \"$(rose-exec mps start)\"', or set the worker's percent to 0."
        )
    told = MpsDaemon(Path(pipe), Path(log or pipe))
    status = told.status()
    if not status.running:
        raise MpsError(f"Worker of {percent} %: expected a running daemon. {status.detail}")
    return told.environment(percent)


def _numbers(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]


@contextlib.contextmanager
def daemon() -> Generator[MpsDaemon]:
    """Run a private daemon for a block; it is always stopped.

    Yields:
        The daemon, with directories of its own.

    Raises:
        MpsError: If there is no MPS here, or it may not be started.
    """
    with tempfile.TemporaryDirectory(prefix="rose-mps-", ignore_cleanup_errors=True) as directory:
        running = MpsDaemon.at(Path(directory))
        try:
            running.start()
            yield running
        finally:
            running.stop()
