"""Jackson's preemptive schedule against its definition by sets, and against real schedules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule.one_machine import Job, one_machine_bound

JOBS = st.lists(
    st.builds(Job, st.integers(0, 12), st.integers(1, 6), st.integers(0, 12)), max_size=6
)


def by_sets(jobs: Sequence[Job]) -> int:
    """Largest of least head + work + least tail over all sets (Carlier)."""
    return max(
        (
            round(min(j.head for j in s) + sum(j.length for j in s) + min(j.tail for j in s))
            for count in range(1, len(jobs) + 1)
            for s in itertools.combinations(jobs, count)
        ),
        default=0,
    )


def one_after_the_other(jobs: Sequence[Job]) -> float:
    now, done = 0.0, 0.0
    for job in jobs:
        now = max(now, job.head) + job.length
        done = max(done, now + job.tail)
    return done


@given(JOBS)
def test_it_is_the_best_bound_over_all_sets_of_jobs(jobs: list[Job]) -> None:
    assert one_machine_bound(jobs) == by_sets(jobs)


@given(JOBS.filter(lambda jobs: len(jobs) <= 5))
def test_no_order_of_the_jobs_is_done_earlier(jobs: list[Job]) -> None:
    bound = one_machine_bound(jobs)
    assert all(one_after_the_other(order) >= bound for order in itertools.permutations(jobs))


def test_a_long_tail_goes_first() -> None:
    assert one_machine_bound([Job(0, 2, 0), Job(0, 2, 8), Job(3, 2, 1)]) == 10
