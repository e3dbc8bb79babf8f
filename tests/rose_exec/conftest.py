"""Shared by the executor's tests."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def interruptible() -> Generator[None]:
    """Let SIGINT raise KeyboardInterrupt, as in a terminal: in a background job it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="module")
def fast_workers(workers_from_a_clean_process: None) -> None:
    """Every module here starts workers."""
