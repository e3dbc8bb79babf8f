"""The executor can run the searches: nothing in them needs a solver or a database."""

from __future__ import annotations

import subprocess
import sys

from rose_opt.alternatives import PlanSearch
from rose_opt.facts import Facts
from rose_opt.measure import GraphSearch, Measurer, QuotaMeasurer
from rose_opt.simulator.execution import SimulatedExecution, SimulatedQuota
from rose_opt.simulator.pair import SimulatedPair


def test_the_searches_need_neither_solver_nor_database() -> None:
    code = (
        "import sys, rose_opt.measure; "
        "print([n for n in ('ortools', 'duckdb', 'bokeh', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def conforms(
    facts: Facts, quota: SimulatedQuota, pair: SimulatedPair
) -> tuple[GraphSearch, Measurer, QuotaMeasurer, QuotaMeasurer]:
    """Checked by the type checker: these implement the protocols."""
    return PlanSearch(facts), SimulatedExecution(facts), quota, pair
