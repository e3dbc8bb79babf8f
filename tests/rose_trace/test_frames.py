from __future__ import annotations

import asyncio
import contextvars
import threading

from rose_trace.frames import Frame, current, current_rows, entered
from rose_trace.legality import RowRange


def test_paths_and_ordinals() -> None:
    frame = Frame()
    assert frame.child_path("a") == "a"
    assert Frame("it/loop").child_path("policy.act") == "it/loop/policy.act"
    assert [frame.next_ordinal(name) for name in ("a", "b", "a", "a")] == [0, 0, 1, 2]
    assert Frame().next_ordinal("a") == 0


def test_rows_follow_the_context() -> None:
    seen: list[RowRange | None] = []

    def look() -> None:
        seen.append(current_rows())

    async def task() -> None:
        await asyncio.sleep(0)
        look()

    async def main() -> None:
        await asyncio.gather(task(), task())

    look()
    with entered(Frame(rows=RowRange(0, 2))):
        look()
        with entered(Frame()):
            look()
        asyncio.run(main())
        thread = threading.Thread(target=contextvars.copy_context().run, args=(look,))
        thread.start()
        thread.join()
    look()
    rows = RowRange(0, 2)
    assert seen == [None, rows, None, rows, rows, rows, None]
    assert current.get() is None
