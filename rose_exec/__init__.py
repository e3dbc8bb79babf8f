"""Rose, executor: replays training with a plan's overlap and the native result."""

from rose_exec.probe import probe
from rose_exec.replay import NativeOrderWarning, Replay, replay
from rose_exec.workers import WorkerDied
from rose_opt.plan import Plan, PlanError, PlanRefused

__all__ = [
    "NativeOrderWarning",
    "Plan",
    "PlanError",
    "PlanRefused",
    "Replay",
    "WorkerDied",
    "probe",
    "replay",
]
