"""The daemon: started once, asked, always stopped; and what is said where it is missing or forbidden."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rose_exec.quota.mps import PID_FILE, MpsDaemon, MpsError, daemon

Install = Callable[..., None]
Ended = Callable[[int], None]


def pid_of(running: MpsDaemon) -> int:
    return int((running.pipe / PID_FILE).read_text())


def test_a_daemon_for_a_block_answers_and_is_stopped(control: Install, ended: Ended) -> None:
    control()
    with daemon() as running:
        pid = pid_of(running)
        assert psutil.pid_exists(pid)
        status = running.status()
        assert (status.running, status.servers, status.clients) == (True, (4711,), (10, 11))
        assert running.environment() == {
            "CUDA_MPS_PIPE_DIRECTORY": str(running.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(running.log),
        }
        assert running.environment(79)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "79"
        assert running.pipe.stat().st_mode & 0o077 == 0
    ended(pid)
    assert not running.pipe.exists()


def test_it_is_stopped_when_the_block_fails(control: Install, ended: Ended) -> None:
    control()
    pids: list[int] = []

    def fail() -> None:
        with daemon() as running:
            pids.append(pid_of(running))
            raise KeyError("the block")

    with pytest.raises(KeyError, match="the block"):
        fail()
    ended(pids[0])


def test_one_that_is_deaf_is_ended_by_its_process_id(control: Install, ended: Ended) -> None:
    control(deaf=True)
    with daemon() as running:
        pid = pid_of(running)
    ended(pid)


def test_the_process_id_of_another_program_is_left_alone(control: Install, tmp_path: Path) -> None:
    control(deaf=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        stale = MpsDaemon.at(tmp_path / "stale")
        stale.pipe.mkdir(parents=True)
        (stale.pipe / PID_FILE).write_text(str(other.pid))
        stale.stop()
        assert other.poll() is None
        other.kill()


def test_stopping_twice_does_nothing(control: Install, tmp_path: Path, ended: Ended) -> None:
    control()
    private = MpsDaemon.at(tmp_path / "mps")
    private.start()
    pid = pid_of(private)
    private.stop()
    private.stop()
    ended(pid)
    assert not private.status().running


def test_a_second_daemon_in_one_place_is_refused(control: Install, tmp_path: Path) -> None:
    control()
    private = MpsDaemon.at(tmp_path / "mps")
    private.start()
    try:
        with pytest.raises(MpsError) as refused:
            private.start()
        assert str(refused.value) == (
            f"MPS: expected no daemon in {private.pipe}, got a running one. Use it, or stop it first."
        )
    finally:
        private.stop()


def test_a_machine_without_mps_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError) as refused, daemon():
        pass
    assert str(refused.value) == (
        "MPS: expected nvidia-cuda-mps-control on the PATH, got none. Install the NVIDIA driver's tools."
    )


def test_a_daemon_that_may_not_start_says_why(control: Install) -> None:
    control(refuse="An instance of this daemon is already running")
    with pytest.raises(MpsError) as refused, daemon():
        pass
    assert str(refused.value) == (
        "MPS: expected a daemon, got: An instance of this daemon is already running. "
        "Another user's daemon, or the compute mode, may forbid it."
    )


def test_a_dead_daemon_does_not_answer(control: Install, tmp_path: Path) -> None:
    control()
    dead = MpsDaemon.at(tmp_path / "dead")
    with pytest.raises(MpsError) as refused:
        dead.ask("get_server_list")
    assert str(refused.value) == (
        "MPS: expected an answer to 'get_server_list', got: Cannot find MPS control daemon process. "
        f"Its log is in {dead.log}."
    )
    assert not dead.status().running


def test_a_percentage_is_between_1_and_100(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a percent in 1\.\.100, got 0\. Pass a whole"):
        MpsDaemon.at(tmp_path).environment(0)
