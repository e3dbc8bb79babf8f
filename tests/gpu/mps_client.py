"""A training whose processes are all clients of an MPS daemon that somebody else ends.

Prints ``ready`` after its first iteration, goes on until an error comes, closes the session, and prints what
came as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time

import psutil

from rose_exec.replay import replay
from tests.gpu.failing_programs import Program
from tests.rose_exec.observe import observed_plan

LONGEST_S = 60.0


def works(child: psutil.Process) -> bool:
    """Whether it is a worker, and not what Python starts beside all spawned processes."""
    return "resource_tracker" not in " ".join(child.cmdline())


def main() -> None:
    """Train until it fails."""
    plan = observed_plan(lambda: Program().iteration, processes=("sim", "learner"))
    told: dict[str, object] = {"error": ""}
    pids: list[int] = []
    try:
        with replay(plan, build=Program, strict=True) as session:
            session.built.iteration()
            pids = [child.pid for child in psutil.Process().children() if works(child)]
            print(f"ready {os.getpid()} {' '.join(map(str, pids))}", flush=True)
            begin = time.monotonic()
            while time.monotonic() - begin < LONGEST_S:
                losses, _ = session.built.iteration()
                float(losses[-1].sum())
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        told = {"error": type(error).__name__, "text": "\n".join([str(error), *notes])}
    told["left"] = [pid for pid in pids if psutil.pid_exists(pid)]
    print(json.dumps(told), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
