"""Invocations that were open when a recording ended: they have no row, and the trace says so.

They are looked for once, at the end, among the live objects of the process, so that opening and closing
an invocation costs nothing for it.

Paper: none.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable

from rose_trace.invocation import Invocation, Site


def unfinished(
    sites: Iterable[Site], unwritten: Collection[Invocation], since_ns: int
) -> dict[str, int]:
    """Count what a recorder opened and did not write.

    Args:
        sites: The places that it recorded at.
        unwritten: Invocations that finished too late to be written.
        since_ns: Earlier ones belong to the parent of a forked process [Unix ns].

    Returns:
        Invocations by node path, in the order in which they began.
    """
    mine = {id(site) for site in sites}
    # Not isinstance: it may run code of the objects that it asks.
    live: list[Invocation] = [item for item in gc.get_objects() if type(item) is Invocation]
    still_open = [inv for inv in live if not inv.end_ns]
    found = sorted(
        (inv.start_ns, inv.path)
        for inv in (*still_open, *unwritten)
        if id(inv.site) in mine and inv.start_ns >= max(since_ns, 1)
    )
    counts: dict[str, int] = {}
    for _, path in found:
        counts[path] = counts.get(path, 0) + 1
    return counts
