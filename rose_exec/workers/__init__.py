"""Workers: where components live and invocations run."""

from rose_exec.workers.inline import InlineWorker
from rose_exec.workers.job import Answer, Job
from rose_exec.workers.process import ProcessWorker, WorkerDied

Worker = InlineWorker | ProcessWorker

__all__ = ["Answer", "InlineWorker", "Job", "ProcessWorker", "Worker", "WorkerDied"]
