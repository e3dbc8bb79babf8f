"""A log of every trial of a tuning run, and where its time went.

Paper: §5.4 (tuning overhead: total, retained, net).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

What = Literal[
    "traced",
    "probed",
    "iteration",
    "warm-up",
    "repeated",
    "local",
    "quota",
    "quota trial",
    "round",
    "result",
]


@dataclass(slots=True)
class TrialLog:
    """Writes one JSON object per line, each as soon as it is known.

    Attributes:
        path: The file; ``None`` for no file.
        told: Called with every entry.
        clock: What tells the time [ns].
        retained_ns: Time spent in iterations that are training [ns].
        retained: Number of these.
        trials: Number of local trials.
    """

    path: Path | None
    told: Callable[[dict[str, Any]], None] = lambda entry: None
    clock: Callable[[], int] = time.perf_counter_ns
    retained_ns: int = 0
    retained: int = 0
    trials: int = 0
    _start_ns: int = field(default=0)
    _end_ns: int | None = None

    def __post_init__(self) -> None:
        self._start_ns = self.clock()
        if self.path is not None:
            self.path.write_text("", encoding="utf-8")

    def iteration(self, what: What, plan: str, duration_ns: int, decision: str) -> None:
        """A complete iteration that is kept."""
        self.retained += 1
        self.retained_ns += duration_ns
        self.write(what, plan, duration_ns, decision, retained=True)

    def write(
        self, what: What, plan: str, duration_ns: int | None, decision: str, **more: Any
    ) -> None:
        """Anything else.

        Args:
            what: What was done.
            plan: Transforms of the plan it was done with.
            duration_ns: What was measured [ns]; ``None`` for nothing.
            decision: What follows from it.
            more: Further fields.
        """
        entry = {
            "at_s": round((self.clock() - self._start_ns) * 1e-9, 6),
            "what": what,
            "plan": plan,
            "seconds": None if duration_ns is None else round(duration_ns * 1e-9, 9),
            "decision": decision,
            **more,
        }
        if what == "local":
            self.trials += 1
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self.told(entry)

    def close(self) -> None:
        """Tuning has ended."""
        self._end_ns = self.clock()

    @property
    def total_ns(self) -> int:
        """Wall-clock time of the whole [ns]."""
        return (self.clock() if self._end_ns is None else self._end_ns) - self._start_ns

    @property
    def net_ns(self) -> int:
        """What tuning cost beyond the training it did [ns]."""
        return self.total_ns - self.retained_ns
