"""Streams of one worker: nodes in lanes of their own overlap on the device, all else keeps its order.

One thread issues everything. A job in a lane goes to the lane's stream, behind the lane's earlier jobs;
its inputs bring their own events. A job in no lane comes after all that was issued before it and before
all that is issued after it: it may write what lanes read. Plans give lanes to reading nodes only.

Paper: §4.2 (Rewire inside a component); lanes of one process are ours, docs/lanes.md says when they pay.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose_exec.quota import GreenQuota
    from rose_exec.workers.job import Job

logger = logging.getLogger(__name__)

URGENT = (
    -1
)  # blocks of a lane without a limit go first: it is the one that would queue behind the other

_AS_IT_COMES = contextlib.nullcontext()


class Lanes:
    """The lanes of one worker; used by its only thread."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, int], Any] = {}
        self._ends: dict[str, Any] = {}
        self._fence: Any = None
        self._quota: GreenQuota | None = None
        self._warned = False

    def on(self, job: Job, ordered: bool = True) -> contextlib.AbstractContextManager[None]:
        """Issue a job's device work where it belongs.

        Args:
            job: The job.
            ordered: Whether events tell when its inputs are there; else it waits for the current stream.
        """
        if (not job.lane and not self._streams) or not _has_cuda():
            return _AS_IT_COMES
        return self._in_lane(job, ordered) if job.lane else self._alone()

    def built(self) -> None:
        """A component was built on the current stream: lanes wait for that, too."""
        self._fence = None

    @contextlib.contextmanager
    def _in_lane(self, job: Job, ordered: bool) -> Generator[None]:
        import torch

        cuda: Any = torch.cuda
        around = cuda.current_stream()
        stream = self._stream(job.lane, job.sms)
        if self._fence is None:
            self._fence = around.record_event()
        elif not ordered:
            stream.wait_stream(around)
        stream.wait_event(self._fence)
        if job.lane in self._ends:
            stream.wait_event(self._ends[job.lane])  # its last job may have had another limit
        try:
            with cuda.stream(stream):
                yield
        finally:
            self._ends[job.lane] = stream.record_event()

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        import torch

        cuda: Any = torch.cuda
        current = cuda.current_stream()
        for event in self._ends.values():
            current.wait_event(event)
        self._ends.clear()
        try:
            yield
        finally:
            self._fence = current.record_event()

    def _stream(self, lane: str, sms: int) -> Any:
        key = lane, sms
        if key not in self._streams:
            self._streams[key] = self._limited(lane, sms) if sms else self._whole()
        return self._streams[key]

    def _limited(self, lane: str, sms: int) -> Any:
        """A stream of a partition; of the whole device, with a warning, where there is none."""
        from rose_exec.quota import GreenQuota, QuotaError

        try:
            if self._quota is None:
                self._quota = GreenQuota()
            return self._quota.stream(self._quota.level(sms), lane)
        except QuotaError as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s The lane runs without a limit.", error)
            return self._whole()

    @staticmethod
    def _whole() -> Any:
        import torch

        cuda: Any = torch.cuda
        return cuda.Stream(priority=URGENT)


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()
