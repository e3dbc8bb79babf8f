from __future__ import annotations

import pytest

from rose_opt.plan import Refusal
from rose_opt.transforms import apply_all, parse_composition
from tests.conftest import Golden
from tests.rose_opt.programs import INTERACT, batch, ppo, tensor
from tests.rose_opt.transforms.rewrites import check

WHOLE = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"


def test_split_interleave_merge(golden: Golden) -> None:
    check(golden, "merge/interaction-loop", batch(ppo()), WHOLE)


@pytest.mark.parametrize(
    ("structure", "problem", "name"),
    [
        ('["leaf","float","",null]', "a plain float at the top", "scalar"),
        ('["leaf","tensor","float32",[]]', "a tensor without axes at the top", "mean"),
        (tensor(7, 3), "a tensor of shape [7, 3] at the top", "shared-tensor"),
        (
            '["dict",["obs","info"],"",[["leaf","tensor","float32",[64,4]],["leaf","str","",null]]]',
            "a plain str at info",
            "string",
        ),
    ],
)
def test_results_without_rows_need_a_reducer(
    golden: Golden, structure: str, problem: str, name: str
) -> None:
    outcome = check(golden, f"merge/{name}", batch(ppo(result=structure)), WHOLE)
    assert isinstance(outcome, Refusal)
    assert outcome.reason == (
        f"expected results with one row per row of the batch, got {problem} of the result of "
        f"{INTERACT}/sim.step"
    )
    assert outcome.nodes == (f"{INTERACT}/sim.step",)


def test_none_and_containers_of_rows_merge() -> None:
    structure = '["tuple",[],"",[["leaf","tensor","float32",[64]],["none",[],"",[]]]]'
    outcome = apply_all(parse_composition(WHOLE), batch(ppo(result=structure)))
    assert not isinstance(outcome, Refusal)


@pytest.mark.parametrize("transform", ["merge", "interleave"])
def test_nothing_to_do_without_a_split(transform: str) -> None:
    outcome = apply_all(parse_composition(f"{transform}{{loop={INTERACT}}}"), batch(ppo()))
    assert str(outcome) == (
        f"{transform}({INTERACT}): expected a split loop, got {INTERACT} whole. Put "
        f"split-spatial{{loop={INTERACT} groups=2}} before it."
    )
