"""The wrong programs, and what must be said of each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.rose_exec.sanitizer import wrong
from tests.rose_exec.sanitizer.wrong import Build


@dataclass(frozen=True, slots=True)
class Case:
    """A wrong program.

    Attributes:
        name: What is wrong with it.
        build: Builds it.
        kind: Kind of the finding.
        node: Node that is to blame.
        state: What it is about.
        copied: Whether the executor hands out copies where the program goes on with the original.
    """

    name: str
    build: Build
    kind: str
    node: str
    state: str
    copied: bool = False


ACT = "root/rollout/interact/policy.act"
LEARN = "root/learning/"
STEP = "root/rollout/interact/sim.step"
RESET = "root/rollout/sim.reset"

CASES = [
    Case(
        "weights",
        wrong.one_component(wrong.WritesWeights),
        "undeclared write",
        ACT,
        "policy.net.weight",
    ),
    Case(
        "torch",
        wrong.one_component(wrong.DrawsTorch),
        "undeclared generator",
        ACT,
        "generator.torch",
    ),
    Case(
        "numpy",
        wrong.one_component(wrong.DrawsNumpy),
        "undeclared generator",
        ACT,
        "generator.numpy",
    ),
    Case(
        "random",
        wrong.one_component(wrong.DrawsRandom),
        "undeclared generator",
        ACT,
        "generator.random",
    ),
    Case(
        "own generator",
        wrong.one_component(wrong.DrawsOwn),
        "undeclared write",
        ACT,
        "policy.noise",
    ),
    Case("batch norm", wrong.one_component(wrong.BatchNorm), "rows interfere", ACT, "rows"),
    Case("batch mean", wrong.one_component(wrong.BatchMean), "rows interfere", ACT, "rows"),
    Case(
        "optimizer",
        wrong.one_component(wrong.StepsOptimizer),
        "undeclared write",
        ACT,
        "policy.net.weight",
    ),
    Case("data", wrong.one_component(wrong.WritesData), "undeclared write", ACT, "policy.net.bias"),
    Case(
        "numpy view",
        wrong.one_component(wrong.WritesNumpy),
        "undeclared write",
        ACT,
        "policy.net.bias",
    ),
    Case(
        "pure",
        wrong.one_component(wrong.WritesAttribute),
        "undeclared write",
        ACT,
        "policy.last['obs'][0]",
    ),
    Case(
        "schedule",
        wrong.one_component(wrong.TicksSchedule),
        "undeclared write",
        ACT,
        "policy.optimizer.param_groups[0]['lr']",
    ),
    Case(
        "class",
        wrong.one_component(wrong.ClassCounter),
        "undeclared write",
        ACT,
        "ClassCounter.calls",
    ),
    Case(
        "global",
        wrong.one_component(wrong.GlobalCounter),
        "undeclared write",
        ACT,
        "wrong:CALLS.value['act']",
    ),
    Case(
        "input", wrong.one_component(wrong.WritesInput), "input written", ACT, "argument obs", True
    ),
    Case("two states", wrong.two_states, "two states", f"{LEARN}policy.learn", "policy.scale"),
    Case("read", wrong.reads_undeclared, "undeclared read", ACT, "policy.net.weight"),
    Case(
        "buffer",
        wrong.one_simulator(wrong.ReusesBuffer),
        "output overwritten",
        STEP,
        "sim.obs_buf",
        True,
    ),
    Case(
        "generator kept",
        wrong.one_simulator(wrong.CarriesGenerator),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    Case(
        "inherits",
        wrong.one_simulator(wrong.InheritsState),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    Case(
        "counter kept",
        wrong.one_simulator(wrong.RefreshCounts),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    Case(
        "shared module",
        wrong.shared_module,
        "shared state",
        f"{LEARN}trainer.learn",
        "trainer.model.weight",
    ),
    Case(
        "glue counts",
        wrong.glue_counts,
        "glue writes",
        "root/rollout/interact",
        "glue_counts.step:count.value[0]",
    ),
    Case(
        "glue writes",
        wrong.glue_writes_component,
        "glue writes",
        "the program's glue",
        "policy.last['obs'][0]",
    ),
]
