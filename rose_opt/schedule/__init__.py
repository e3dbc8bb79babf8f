"""Schedules with a proven gap: how long a plan takes if the machine behaves as measured.

Only what needs no solver is re-exported here, so that a plan can be rechecked anywhere;
`solve_modulo` and `solve_flat` are imported from their own modules.
"""

from __future__ import annotations

from rose_opt.schedule.capacity import Capacity, Mode
from rose_opt.schedule.checks import ScheduleError, check_schedule
from rose_opt.schedule.model import (
    LoopProblem,
    ModuloSchedule,
    Phase,
    PhaseId,
    Placed,
    serial_modes,
    serial_ns,
)
from rose_opt.schedule.orders import CyclicOrders, OrderEdge, cyclic_orders, least_period_ns, live

__all__ = [
    "Capacity",
    "CyclicOrders",
    "LoopProblem",
    "Mode",
    "ModuloSchedule",
    "OrderEdge",
    "Phase",
    "PhaseId",
    "Placed",
    "ScheduleError",
    "check_schedule",
    "cyclic_orders",
    "least_period_ns",
    "live",
    "serial_modes",
    "serial_ns",
]
