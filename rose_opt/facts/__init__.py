"""Facts: what a trace says about a program, with evidence (DuckDB over the Parquet files)."""

from rose_opt.facts.activity import Activity
from rose_opt.facts.build import Facts, FactsSettings, build_facts
from rose_opt.facts.causes import Cause, CauseKind, WindowEvidence
from rose_opt.facts.hierarchy import FactsError
from rose_opt.facts.loops import Evidence, LoopFact, LoopKind
from rose_opt.facts.probes import Probe
from rose_opt.facts.sampled import Sampled
from rose_opt.facts.timings import IterationTiming, Timing
from rose_opt.facts.windows import LowActivityWindow, SampleWindow, window_score

__all__ = [
    "Activity",
    "Cause",
    "CauseKind",
    "Evidence",
    "Facts",
    "FactsError",
    "FactsSettings",
    "IterationTiming",
    "LoopFact",
    "LoopKind",
    "LowActivityWindow",
    "Probe",
    "SampleWindow",
    "Sampled",
    "Timing",
    "WindowEvidence",
    "build_facts",
    "window_score",
]
