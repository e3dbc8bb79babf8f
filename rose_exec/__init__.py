"""Rose, executor: replays training with a plan's overlap and the native result."""

from rose_exec.fuzz import Difference, Fuzzed, fuzz
from rose_exec.guard import Guard, GuardSettings
from rose_exec.native import UnannouncedAccess
from rose_exec.probe import probe
from rose_exec.readiness import OrderViolation
from rose_exec.replay import NativeOrderWarning, Replay, replay
from rose_exec.sanitizer.check import Checked, check
from rose_exec.sanitizer.findings import Checks, Finding, SanitizerError, SanitizerWarning
from rose_exec.tasks import StructureChanged
from rose_exec.tune import TuneSettings, Tuning, tune
from rose_exec.workers import WorkerDied
from rose_opt.plan import Plan, PlanError, PlanRefused

__all__ = [
    "Checked",
    "Checks",
    "Difference",
    "Finding",
    "Fuzzed",
    "Guard",
    "GuardSettings",
    "NativeOrderWarning",
    "OrderViolation",
    "Plan",
    "PlanError",
    "PlanRefused",
    "Replay",
    "SanitizerError",
    "SanitizerWarning",
    "StructureChanged",
    "TuneSettings",
    "Tuning",
    "UnannouncedAccess",
    "WorkerDied",
    "check",
    "fuzz",
    "probe",
    "replay",
    "tune",
]
