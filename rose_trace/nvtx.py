"""NVTX ranges around invocations: their payload is the span id, an exact key into other tools' traces.

Off by default; a recorder without ranges does not know of them.
"""

from __future__ import annotations

from typing import Any

import nvtx

from rose_trace.invocation import Invocation
from rose_trace.recorder import Recorder

ranges: Any = nvtx  # it has no type stubs


class RangedRecorder(Recorder):
    """A recorder whose invocations are ranges of the domain ``rose`` as well.

    A plain call or a step of a generator is a push/pop range of its thread; a coroutine, which others
    interrupt, is a start/end range.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._domain: Any = ranges.get_domain("rose")
        self._started: dict[int, Any] = {}

    def attach(self, inv: Invocation) -> None:
        """Begin the range of an invocation, then attach it."""
        payload = (
            inv.span_id if inv.span_id < 2**63 else inv.span_id - 2**64
        )  # NVTX holds it as int64
        attributes = self._domain.get_event_attributes(message=inv.site.node, payload=payload)
        if inv.site.is_async:
            self._started[inv.span_id] = self._domain.start_range(attributes)
        else:
            self._domain.push_range(attributes)
        super().attach(inv)

    def leave(self, inv: Invocation) -> None:
        """Detach an invocation, then end its range."""
        super().leave(inv)
        if inv.site.is_async:
            self._domain.end_range(self._started.pop(inv.span_id, 0))
        else:
            self._domain.pop_range()
