"""Each wrong annotation is found, with the node and the state it is about; nothing else is changed by looking."""

from __future__ import annotations

import pytest

from rose_exec.observed import observe, output_digests
from rose_exec.sanitizer.check import check
from rose_trace import generators
from tests.rose_exec.sanitizer import wrong

ACT = "root/rollout/interact/policy.act"
LEARN = "root/learning/"
STEP = "root/rollout/interact/sim.step"
RESET = "root/rollout/sim.reset"

CASES: list[tuple[str, wrong.Build, str, str, str]] = [
    (
        "weights",
        wrong.one_component(wrong.WritesWeights),
        "undeclared write",
        ACT,
        "policy.net.weight",
    ),
    (
        "torch",
        wrong.one_component(wrong.DrawsTorch),
        "undeclared generator",
        ACT,
        "generator.torch",
    ),
    (
        "numpy",
        wrong.one_component(wrong.DrawsNumpy),
        "undeclared generator",
        ACT,
        "generator.numpy",
    ),
    (
        "random",
        wrong.one_component(wrong.DrawsRandom),
        "undeclared generator",
        ACT,
        "generator.random",
    ),
    ("own generator", wrong.one_component(wrong.DrawsOwn), "undeclared write", ACT, "policy.noise"),
    ("batch norm", wrong.one_component(wrong.BatchNorm), "rows interfere", ACT, "rows"),
    ("batch mean", wrong.one_component(wrong.BatchMean), "rows interfere", ACT, "rows"),
    (
        "optimizer",
        wrong.one_component(wrong.StepsOptimizer),
        "undeclared write",
        ACT,
        "policy.net.weight",
    ),
    ("data", wrong.one_component(wrong.WritesData), "undeclared write", ACT, "policy.net.bias"),
    (
        "numpy view",
        wrong.one_component(wrong.WritesNumpy),
        "undeclared write",
        ACT,
        "policy.net.bias",
    ),
    (
        "pure",
        wrong.one_component(wrong.WritesAttribute),
        "undeclared write",
        ACT,
        "policy.last['obs'][0]",
    ),
    (
        "schedule",
        wrong.one_component(wrong.TicksSchedule),
        "undeclared write",
        ACT,
        "policy.optimizer.param_groups[0]['lr']",
    ),
    (
        "class",
        wrong.one_component(wrong.ClassCounter),
        "undeclared write",
        ACT,
        "ClassCounter.calls",
    ),
    (
        "global",
        wrong.one_component(wrong.GlobalCounter),
        "undeclared write",
        ACT,
        "wrong:CALLS.value['act']",
    ),
    ("input", wrong.one_component(wrong.WritesInput), "input written", ACT, "argument obs"),
    ("two states", wrong.two_states, "two states", f"{LEARN}policy.learn", "policy.scale"),
    ("read", wrong.reads_undeclared, "undeclared read", ACT, "policy.net.weight"),
    ("buffer", wrong.one_simulator(wrong.ReusesBuffer), "output overwritten", STEP, "sim.obs_buf"),
    (
        "generator kept",
        wrong.one_simulator(wrong.CarriesGenerator),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    (
        "inherits",
        wrong.one_simulator(wrong.InheritsState),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    (
        "counter kept",
        wrong.one_simulator(wrong.RefreshCounts),
        "refresh inherits",
        RESET,
        "sim.episode",
    ),
    (
        "shared module",
        wrong.shared_module,
        "shared state",
        f"{LEARN}trainer.learn",
        "trainer.model.weight",
    ),
    (
        "glue counts",
        wrong.glue_counts,
        "glue writes",
        "root/rollout/interact",
        "glue_counts.step:count.value[0]",
    ),
    (
        "glue writes",
        wrong.glue_writes_component,
        "glue writes",
        "the program's glue",
        "policy.last['obs'][0]",
    ),
]


@pytest.mark.parametrize(
    ("build", "kind", "node", "state"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_a_wrong_annotation_is_found(build: wrong.Build, kind: str, node: str, state: str) -> None:
    before = generators.capture()
    native = observe(build, lambda built, _: built(), 2)
    generators.restore(before)
    checked = check(build)
    found = [(f.kind, f.node, f.state) for f in checked.findings]
    assert (kind, node, state) in found
    assert {f.node for f in checked.findings} == {node}  # and nobody else is blamed
    for finding in checked.findings:
        assert str(finding).startswith(f"{finding.node}: expected ")
        assert finding.invocation
        assert finding.annotation.endswith(".")
    if kind != "output overwritten" and state != "argument obs":  # copies are handed out
        assert list(map(output_digests, checked.results)) == list(
            map(output_digests, native.results)
        )
