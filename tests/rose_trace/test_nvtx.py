from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_trace import nvtx
from rose_trace.parquet import read_spans


class _Domain:
    """Stands for a domain with a tool attached: without one, the library's calls do nothing."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.finished: list[tuple[str, int]] = []
        self.open: dict[int, Any] = {}

    def get_event_attributes(self, *, message: str, payload: int) -> tuple[str, int]:
        assert -(2**63) <= payload < 2**63
        return message, payload

    def push_range(self, attributes: Any) -> None:
        self.stack.append(attributes)

    def pop_range(self) -> None:
        self.finished.append(self.stack.pop())

    def start_range(self, attributes: Any) -> int:
        self.open[len(self.finished) + len(self.open) + 1] = attributes
        return len(self.finished) + len(self.open)

    def end_range(self, handle: int) -> None:
        self.finished.append(self.open.pop(handle))


def test_ranges_carry_the_span_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = _Domain()

    class Library:
        @staticmethod
        def get_domain(name: str) -> _Domain:
            assert name == "rose"
            return domain

    monkeypatch.setattr(nvtx, "ranges", Library)

    @rose.node(pure=True)
    def work() -> None: ...

    @rose.node
    def fails() -> None:
        work()
        raise KeyError

    @rose.node
    def steps() -> Any:
        yield 1
        yield 2

    @rose.node
    async def waits() -> None:
        await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(waits(), waits())

    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", nvtx=True):
        with pytest.raises(KeyError):
            fails()
        list(steps())
        asyncio.run(both())
    rows = read_spans(path).to_pylist()
    ids = {(r["node"], r["span_id"]) for r in rows}
    assert {(name, payload % 2**64) for name, payload in domain.finished} == ids
    assert domain.stack == []
    assert domain.open == {}
    assert [name for name, _ in domain.finished].count("steps") == 4  # opening and three steps


def test_the_real_library_is_called_as_it_expects(tmp_path: Path) -> None:
    @rose.node(pure=True)
    def work() -> int:
        return 3

    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", nvtx=True) as recording:
        assert work() == 3
    assert recording.info is not None
    assert recording.info.complete
    assert recording.info.rows["spans"] == 1
