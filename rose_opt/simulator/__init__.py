"""Execution without the hardware: discrete events over graph, plan, solo times and contention.

`SimulatedExecution` and `SimulatedPair` answer what the searches in `rose_opt.measure` ask; they are
imported from their own modules, since the engine also serves the optimizer.
"""

from rose_opt.simulator.engine import DoesNotFit, Machine, Task, Timeline, simulate
from rose_opt.simulator.rates import Contention, Rates, full_speed

__all__ = [
    "Contention",
    "DoesNotFit",
    "Machine",
    "Rates",
    "Task",
    "Timeline",
    "full_speed",
    "simulate",
]
