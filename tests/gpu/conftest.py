"""What the tests on a CUDA device share. Each file marks itself `gpu`: the default run skips them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_trace.parquet import read_spans

Rows = list[dict[str, Any]]


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Callable[[], Any]], Rows]:
    """Run a program under a recording and return its rows, in order of start."""

    def run(program: Callable[[], Any]) -> Rows:
        path = tmp_path / "trace.parquet"
        with rose.record(path, activity="none") as recording:
            program()
        assert recording.info is not None
        assert recording.info.complete, recording.info.reasons
        return read_spans(path).to_pylist()

    return run
