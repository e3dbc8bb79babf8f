"""Algorithm 1 over scripted searches: order of runs, what is reused, what is accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from rose_opt.measure import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearchResult,
    GraphSearchSettings,
    IterationMeasurement,
    TrialFailed,
    plan_key,
    search_graph,
)
from rose_opt.plan import Plan, PlanNode, Predicted, Transformation

NATIVE = Plan("0", "g", (PlanNode("iteration", "iteration", "m:it", "iteration", "f"),))


def graph(*names: str) -> Plan:
    """A plan with one made-up transform per name."""
    texts = tuple(Transformation("interleave", (("loop", name),)) for name in names)
    return replace(NATIVE, transforms=texts)


def taken(plan: Plan) -> frozenset[str]:
    return frozenset(transform["loop"] for transform in plan.transforms)


@dataclass
class Machine:
    """Iteration of a set of alternatives, and local times on each comparison graph."""

    iterations: Mapping[frozenset[str], int]
    locals: Mapping[tuple[frozenset[str], str], int]
    failing: frozenset[frozenset[str]] = frozenset()
    activity: Mapping[frozenset[str], Mapping[str, float]] = field(
        default_factory=dict[frozenset[str], Mapping[str, float]]
    )
    log: list[str] = field(default_factory=list[str])

    def iteration(self, plan: Plan) -> IterationMeasurement:
        names = taken(plan)
        self.log.append(f"iteration {'+'.join(sorted(names)) or 'native'}")
        if names in self.failing:
            raise TrialFailed("out of memory")
        return IterationMeasurement(self.iterations[names], self.activity.get(names, {}))

    def local_ns(self, plan: Plan, comparison_graph: str) -> int:
        names = taken(plan)
        self.log.append(f"{comparison_graph} {'+'.join(sorted(names)) or 'native'}")
        if names in self.failing:
            raise TrialFailed("out of memory")
        return self.locals[names, comparison_graph]


@dataclass
class Search:
    """Alternatives by target; combinations are what is gaining, best first."""

    offers: Mapping[str, Sequence[str]]
    places: Mapping[str, str]
    runs: Mapping[str, float] = field(default_factory=dict[str, float])
    composed: Sequence[Sequence[str]] | None = None
    shown: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])

    def targets(self, plan: Plan, reference: IterationMeasurement, limit: int) -> Sequence[str]:
        del plan
        self.shown.append(reference.sm_activity)
        return list(self.offers)[:limit]

    def alternatives(self, plan: Plan, target: str) -> Sequence[Alternative]:
        present = taken(plan)
        return [
            Alternative(target, name, graph(*present, name))
            for name in self.offers[target]
            if name not in present
        ]

    def comparison_graph(self, plan: Plan, alternatives: Sequence[Alternative]) -> str:
        del plan
        return self.places[alternatives[0].target]

    def runs_per_iteration(self, comparison_graph: str) -> float:
        return self.runs.get(comparison_graph, 1.0)

    def combine(self, plan: Plan, trials: Sequence[AlternativeTrial]) -> Sequence[Composed]:
        present = taken(plan)
        ranked = sorted(trials, key=lambda trial: -trial.gain_ns)
        greedy = [ranked[0].alternative.text]
        chosen = [greedy] if self.composed is None else self.composed
        return [
            Composed(
                graph(*present, *names),
                tuple(names),
                sum(t.gain_ns for t in trials if t.alternative.text in names),
                "solver" if place else "greedy",
            )
            for place, names in enumerate(chosen)
        ]


def times(**values: int) -> dict[frozenset[str], int]:
    """Keys are letters of alternatives; ``native`` is none."""
    return {frozenset() if k == "native" else frozenset(k): v for k, v in values.items()}


def local(place: str, **values: int) -> dict[tuple[frozenset[str], str], int]:
    return {(names, place): value for names, value in times(**values).items()}


def two_rounds(**settings: float) -> tuple[GraphSearchResult, Machine, Search]:
    machine = Machine(
        times(native=100, a=80, ab=60),
        local("loop", native=10, a=8, b=9, ab=6) | local("root", native=100, a=80, c=95, ac=79),
        activity=times_of_activity(),
    )
    search = Search({"v": ["a", "b"], "w": ["c"]}, {"v": "loop", "w": "root"}, {"loop": 10.0})
    options = GraphSearchSettings(**settings)  # pyright: ignore[reportArgumentType]
    return search_graph(NATIVE, search, machine, options), machine, search


def times_of_activity() -> dict[frozenset[str], Mapping[str, float]]:
    return {frozenset(): {"v": 0.1}, frozenset("a"): {"v": 0.4}}


def test_rounds_measure_combine_validate_and_accept() -> None:
    found, machine, search = two_rounds(max_rounds=2)
    assert machine.log == [
        "iteration native",
        "loop native",  # c_0 on A_v
        "loop a",
        "loop b",
        "root native",
        "root c",
        "iteration a",  # the combination is validated by a complete iteration
        "loop a+b",  # round 2: reference and baseline on the loop are known
        "root a",
        "root a+c",
        "iteration a+b",
    ]
    assert taken(found.plan) == {"a", "b"}
    assert (found.native_ns, found.iteration_ns) == (100, 60)
    assert [r.accepted for r in found.rounds] == [0, 0]
    assert found.gain_shares == (0.5, 0.5)
    assert search.shown == [{"v": 0.1}, {"v": 0.4}]


def test_gains_are_scaled_to_the_iteration() -> None:
    found, _, _ = two_rounds(max_rounds=1)
    (first,) = found.rounds
    gains = {t.alternative.text: t.gain_ns for target in first.targets for t in target.trials}
    assert gains == {"a": 20, "b": 10, "c": 5}  # the loop's body runs ten times
    assert [(t.target, t.comparison_graph, t.baseline_ns) for t in first.targets] == [
        ("v", "loop", 10),
        ("w", "root", 100),
    ]


def test_nothing_runs_twice() -> None:
    found, machine, _ = two_rounds(max_rounds=2)
    assert len(machine.log) == len(set(machine.log))
    assert found.rounds[1].reused
    assert not found.rounds[0].reused
    assert found.rounds[1].reference_ns == 80
    assert found.iterations == sum(line.startswith("iteration") for line in machine.log)
    assert found.local_trials == len(machine.log) - found.iterations


def test_every_trial_is_in_the_log() -> None:
    found, machine, _ = two_rounds(max_rounds=2)
    log = json.loads(json.dumps(found.to_data()))
    assert log["iteration_ns"] == 60
    assert [r["accepted"] for r in log["rounds"]] == [0, 0]
    trials = [t for r in log["rounds"] for v in r["targets"] for t in v["trials"]]
    assert [(t["alternative"], t["local_ns"]) for t in trials] == [
        ("a", 8),
        ("b", 9),
        ("c", 95),
        ("b", 6),
        ("c", 79),
    ]
    assert log["iterations"] + log["local_trials"] == len(machine.log)
    assert log["rounds"][0]["validations"][0]["alternatives"] == ["a"]


def test_the_budget_limits_targets_and_rounds() -> None:
    found, machine, _ = two_rounds(max_rounds=1, max_targets=1)
    assert len(found.rounds) == 1
    assert [t.target for t in found.rounds[0].targets] == ["v"]
    assert not any("root" in line for line in machine.log)


def test_a_rejected_round_ends_the_search_and_keeps_the_graph() -> None:
    for after, accepted in ((99, None), (98, 0)):
        machine = Machine(times(native=100, a=after), local("loop", native=10, a=8))
        search = Search({"v": ["a"]}, {"v": "loop"})
        found = search_graph(NATIVE, search, machine, GraphSearchSettings(min_gain=0.01))
        assert found.rounds[0].accepted == accepted  # t < (1 - epsilon) * m_ref, strictly
        assert found.iteration_ns == (100 if accepted is None else 98)
        assert len(found.rounds) == (1 if accepted is None else 2)
        if accepted is None:
            assert found.plan is NATIVE
            assert found.rounds[0].reason.startswith("rejected: ")
            assert found.gain_shares == ()


def test_a_round_without_a_gaining_alternative_runs_no_iteration() -> None:
    machine = Machine(times(native=100), local("loop", native=10, a=10, b=11))
    found = search_graph(NATIVE, Search({"v": ["a", "b"]}, {"v": "loop"}), machine)
    assert machine.log == ["iteration native", "loop native", "loop a", "loop b"]
    assert found.rounds[0].reason == "no alternative is faster on its comparison graph"


def test_the_fastest_of_the_validated_combinations_is_accepted() -> None:
    machine = Machine(times(native=100, a=90, bc=70), local("loop", native=10, a=5, b=7, c=7))
    search = Search({"v": ["a", "b", "c"]}, {"v": "loop"}, composed=[["a"], ["b", "c"], ["c"]])
    settings = GraphSearchSettings(max_rounds=1)
    found = search_graph(NATIVE, search, machine, settings)
    assert taken(found.plan) == {"b", "c"}
    assert [v.iteration_ns for v in found.rounds[0].validations] == [90, 70]
    assert [v.composed.by for v in found.rounds[0].validations] == ["greedy", "solver"]
    paper = GraphSearchSettings(max_rounds=1, max_validations=1)
    assert taken(search_graph(NATIVE, search, machine, paper).plan) == {"a"}


def test_what_cannot_run_is_infeasible_and_the_rest_goes_on() -> None:
    machine = Machine(
        times(native=100, b=80),
        local("loop", native=10, b=8),
        failing=frozenset({frozenset("a")}),
    )
    found = search_graph(
        NATIVE, Search({"v": ["a", "b"]}, {"v": "loop"}), machine, GraphSearchSettings(max_rounds=1)
    )
    failed, other = found.rounds[0].targets[0].trials
    assert (failed.local_ns, failed.gain_ns, failed.failed) == (None, 0, "out of memory")
    assert other.gain_ns == 2
    assert taken(found.plan) == {"b"}


def test_a_combination_that_cannot_run_is_not_accepted() -> None:
    machine = Machine(
        times(native=100), local("loop", native=10, a=8, b=9), frozenset({frozenset("ab")})
    )
    search = Search({"v": ["a", "b"]}, {"v": "loop"}, composed=[["a", "b"]])
    found = search_graph(NATIVE, search, machine)
    assert found.plan is NATIVE
    assert found.rounds[0].reason == "no combination could be run"
    assert found.rounds[0].validations[0].failed == "out of memory"


def test_a_native_order_that_cannot_run_is_told() -> None:
    machine = Machine({}, {}, frozenset({frozenset[str]()}))
    with pytest.raises(TrialFailed, match="out of memory"):
        search_graph(NATIVE, Search({}, {}), machine)


def test_progress_always_knows_the_best_plan_so_far() -> None:
    machine = Machine(
        times(native=100, a=80, ab=60),
        local("loop", native=10, a=8, b=9, ab=6),
    )
    seen: list[tuple[frozenset[str], str]] = []
    search_graph(
        NATIVE,
        Search({"v": ["a", "b"]}, {"v": "loop"}),
        machine,
        progress=lambda plan, text: seen.append((taken(plan), text.split(" ")[0])),
    )
    assert [names for names, _ in seen][:5] == [frozenset()] * 5
    assert seen[-1] == (frozenset("a"), "iteration")
    assert len(seen) == len(machine.log)


def test_settings_out_of_range() -> None:
    with pytest.raises(ValueError, match="expected max_rounds >= 1, got 0"):
        GraphSearchSettings(max_rounds=0)
    with pytest.raises(ValueError, match=r"expected min_gain in 0\.\.1, got 1"):
        GraphSearchSettings(min_gain=1)


def test_the_key_of_a_plan_tells_what_runs_and_not_why() -> None:
    plan = graph("a")
    assert plan_key(plan) == plan_key(
        replace(plan, reason="x", predicted=Predicted(1, 2, 3, 0.5), notes=("n",), rose_version="9")
    )
    others = [
        graph("b"),
        graph("a", "b"),
        replace(plan, cores=4.0),
        replace(plan, rows={"iteration": 8}),
        replace(plan, graph_fingerprint="h"),
    ]
    assert len({plan_key(other) for other in (plan, *others)}) == len(others) + 1
