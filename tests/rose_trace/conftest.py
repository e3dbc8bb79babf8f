from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_trace import recorder
from rose_trace.native import BuildError, build
from rose_trace.parquet import read_spans

Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def built() -> None:
    """The native hot path is there; tests that need it are skipped where it cannot be built."""
    try:
        build()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["python", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Record in Python, then natively from the second call of a node on."""
    if request.param == "python":
        monkeypatch.setenv("ROSE_NATIVE", "0")
    else:
        request.getfixturevalue("built")
        monkeypatch.delenv("ROSE_NATIVE", raising=False)
        monkeypatch.setattr(recorder, "WATCHED_CALLS", 0)
    return request.param


@pytest.fixture
def recorded(tmp_path: Path, way: str) -> Callable[[Callable[[], Any]], Rows]:
    """Run a program under a recording and return its rows, in order of start."""

    def run(program: Callable[[], Any]) -> Rows:
        path = tmp_path / "trace.parquet"
        with rose.record(path, activity="none") as recording:
            program()
        assert recording.info is not None
        assert recording.info.complete, recording.info.reasons
        return read_spans(path).to_pylist()

    return run
