"""A check of a whole program, with a plan or without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rose_exec.observed import observe
from rose_exec.replay import Replay
from rose_exec.sanitizer.findings import Checks, Finding, SanitizerWarning
from rose_opt.plan import Plan
from rose_trace import generators


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        findings: Where the program does other than it declares.
        notes: What could not be looked into or tried, and why, by path.
        results: What each iteration returned.
        built: The program that was run.
    """

    findings: tuple[Finding, ...]
    notes: Mapping[str, str]
    results: tuple[Any, ...]
    built: Any


def _call(built: Any, index: int) -> Any:
    return built()


def check(
    build: Callable[[], Any],
    run: Callable[[Any, int], Any] | None = None,
    *,
    plan: Plan | None = None,
    iterations: int = 2,
    settings: Checks | None = None,
) -> Checked:
    """Run a program under the sanitizer.

    Args:
        build: Builds the program. Called once more without a plan, to see its nodes.
        run: Runs iteration k of what was built; calls it without arguments by default.
        plan: Plan to run under; by default one that asks for nothing but what declarations allow.
        iterations: RL iterations to run. A trial of a refresh needs a state that has changed.
        settings: What to check.

    Returns:
        What was found; nothing is raised for it.

    Raises:
        SanitizerError: If the settings ask for it.
    """
    go = run or _call
    if plan is None:
        before = generators.capture()
        plan = observe(build, go, 1).plan()
        generators.restore(before)
    session = Replay(plan, build, strict=True, check=settings or Checks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        with session:
            results = tuple(go(session.built, k) for k in range(iterations))
    return Checked(session.findings, session.notes, results, session.built)
