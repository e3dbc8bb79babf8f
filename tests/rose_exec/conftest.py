"""Shared by the executor's tests."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator

import pytest

from rose_exec.workers import process

PRELOADED = ["rose_exec.workers.serve", "torch", "tests.rose_exec.worker_requests"]


@pytest.fixture(autouse=True)
def interruptible() -> Generator[None]:
    """Let SIGINT raise KeyboardInterrupt, as in a terminal: in a background job it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="module")
def worker_start() -> Generator[None]:
    """Start workers as copies of one clean process that has imported torch already.

    They begin as spawned ones do, with nothing of this process in them, only sooner. A module that
    tests the start itself has a fixture of this name that does nothing.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "START_METHOD", "forkserver")
        yield
