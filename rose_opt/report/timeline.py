"""One iteration as a timeline: lanes, rows and blocks in seconds since it began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rose_opt.report.detail import Blocks
from rose_opt.report.lanes import Lane, lay_out
from rose_opt.report.palette import Palette, make_palette
from rose_opt.report.recorded import Recorded


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn of one recording.

    Attributes:
        lanes: Lanes from top to bottom.
        blocks: All invocations of the shown iteration.
        merged_lanes: Lanes that were put together into the last one.
    """

    lanes: tuple[Lane, ...]
    blocks: Blocks
    merged_lanes: int

    @property
    def rows(self) -> int:
        """Rows of all lanes together."""
        return sum(lane.rows for lane in self.lanes)


def node_colours(recordings: Sequence[Recorded]) -> Palette:
    """One palette for all recordings of a page.

    Args:
        recordings: What is shown, the first one deciding which nodes get colours first.

    Returns:
        The palette of every node in the timelines.
    """
    kinds: dict[str, str] = {}
    leaf_ns: dict[str, int] = {}
    for recorded in recordings:
        callers = {span.path.rpartition("/")[0] for span in recorded.spans}
        for span in recorded.spans:
            kinds.setdefault(span.path, span.kind)
            if span.kind in ("exec", "kernel") and span.path not in callers:
                leaf_ns[span.path] = leaf_ns.get(span.path, 0) + span.end_ns - span.start_ns
    return make_palette(kinds, leaf_ns)


def timeline(recorded: Recorded, palette: Palette) -> Timeline:
    """Lay out the shown iteration of a recording.

    Args:
        recorded: The recording.
        palette: Numbers of the nodes.

    Returns:
        Its timeline; invocations are cut at the iteration's start and end.
    """
    spans, shown = recorded.spans, recorded.shown
    laid = lay_out(spans)
    number = palette.numbers
    start = np.array([span.start_ns for span in spans], dtype=np.int64)
    end = np.array([span.end_ns for span in spans], dtype=np.int64)
    waits = [np.nan if span.wait_ns is None else span.wait_ns / 1e9 for span in spans]
    blocks = Blocks(
        left_s=(np.maximum(start, shown.start_ns) - shown.start_ns) / 1e9,
        right_s=(np.minimum(end, shown.end_ns) - shown.start_ns) / 1e9,
        row=np.array(laid.rows, dtype=np.int64),
        node=np.array([number[span.path] for span in spans], dtype=np.int64),
        step=np.array([span.step for span in spans], dtype=np.int64),
        group=np.array([span.group for span in spans], dtype=np.int64),
        wait_s=np.array(waits, dtype=np.float64),
    )
    return Timeline(laid.lanes, blocks, laid.merged)
