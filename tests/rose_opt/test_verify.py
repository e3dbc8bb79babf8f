from __future__ import annotations

from typing import Any

import pytest

from rose_opt.verify import compare, gather

Span = dict[str, Any]


def span(
    path: str,
    iteration: tuple[int, ...] = (0,),
    *,
    states: tuple[tuple[str, str, int], ...] = (),
    rows: tuple[int, int] | None = None,
    ordinal: int = 0,
    kind: str = "exec",
    error: str | None = None,
) -> Span:
    """The columns of one recorded invocation that matter here."""
    return {
        "path": path,
        "kind": kind,
        "iteration": list(iteration),
        "ordinal": ordinal,
        "row_start": None if rows is None else rows[0],
        "row_stop": None if rows is None else rows[1],
        "states": [{"state": s, "access": a, "version": v} for s, a, v in states],
        "status": "ok" if error is None else "error",
        "error": error,
    }


def native(weights: tuple[int, int] = (0, 1)) -> list[Span]:
    """Two iterations: act, step, learn, load; the weights that act reads come from the last load."""
    spans: list[Span] = []
    for i in range(2):
        spans += [
            span("it/policy.act", (i,), states=(("policy.weights", "read", weights[i]),)),
            span("it/sim.step", (i,), states=(("sim.episode", "update", i),)),
            span("it/trainer.update", (i,), states=(("trainer.weights", "update", i),)),
            span("it/policy.load", (i,), states=(("policy.weights", "refresh", i),)),
        ]
    return spans


def test_a_trace_equals_itself_in_any_order() -> None:
    found = compare(gather(native()), gather(native()[::-1]))
    assert found.equal
    assert found.invocations == 8
    assert found.reads == 6


def test_fragments_stand_for_the_whole() -> None:
    planned: list[Span] = []
    for item in native():
        if item["path"] == "it/sim.step":
            planned += [item | {"row_start": a, "row_stop": b} for a, b in ((32, 64), (0, 32))]
        else:
            planned.append(item)
    assert compare(gather(native()), gather(planned)).equal


def test_versions_are_known_by_their_writer_not_by_their_number() -> None:
    later = native()
    for item in later:
        for state in item["states"]:
            state["version"] += 7
    assert compare(gather(native()), gather(later)).equal


def test_an_inference_that_read_an_older_policy_is_shown() -> None:
    stale = native(weights=(0, 0))
    found = compare(gather(native()), gather(stale), "native", "planned")
    assert found.difference == (
        "it/policy.act in iteration 1: read of 'policy.weights' saw what it/policy.load in iteration 0 left "
        "in native, and what the state before recording left in planned"
    )


def test_a_missing_invocation_is_shown() -> None:
    found = compare(gather(native()), gather(native()[:-1]), "native", "planned")
    assert found.difference == "it/policy.load in iteration 1: ran in native, but not in planned"
    found = compare(gather(native()[:-1]), gather(native()), "native", "planned")
    assert found.difference == "it/policy.load in iteration 1: ran in planned, but not in native"


@pytest.mark.parametrize(
    ("ranges", "shown"),
    [(((0, 32), (33, 64)), "0..32, 33..64"), (((0, 32), (16, 64)), "0..32, 16..64")],
)
def test_rows_that_were_skipped_or_served_twice_are_shown(
    ranges: tuple[tuple[int, int], ...], shown: str
) -> None:
    planned = [item for item in native() if item["path"] != "it/sim.step"]
    for i in range(2):
        states = (("sim.episode", "update", i),)
        planned += [span("it/sim.step", (i,), states=states, rows=rows) for rows in ranges]
    found = compare(gather(native()), gather(planned), "native", "planned")
    assert found.difference == (
        f"it/sim.step in iteration 0: its groups in planned serve rows {shown} of 0..64"
    )


def test_updates_in_another_order_are_shown() -> None:
    def run(order: tuple[int, int]) -> list[Span]:
        return [
            span("it/a", (0, i), states=(("trainer.weights", "update", version),))
            for version, i in enumerate(order)
        ]

    found = compare(gather(run((0, 1))), gather(run((1, 0))), "native", "planned")
    assert found.difference == (
        "it/a in iteration 0.0: update of 'trainer.weights' saw what the state before recording left in "
        "native, and what it/a in iteration 0.1 left in planned"
    )


def test_a_lost_update_is_shown() -> None:
    raced = [span("it/a", (0, i), states=(("trainer.weights", "update", 0),)) for i in range(2)]
    right = [span("it/a", (0, i), states=(("trainer.weights", "update", i),)) for i in range(2)]
    found = compare(gather(right), gather(raced), "native", "planned")
    assert found.difference == (
        "state 'trainer.weights': version 0 was replaced by it/a in iteration 0.0 and by it/a in "
        "iteration 0.1 in planned, so one of them was lost"
    )


def test_other_final_writers_are_shown() -> None:
    def run(order: tuple[str, str]) -> list[Span]:
        return [
            span(f"it/{name}", states=(("policy.weights", "refresh", version),))
            for version, name in enumerate(order)
        ]

    found = compare(gather(run(("a", "b"))), gather(run(("b", "a"))), "native", "planned")
    assert found.difference == (
        "state 'policy.weights': last written by it/b in iteration 0 in native and by it/a in iteration 0 "
        "in planned"
    )


def test_accesses_and_errors_that_differ_are_shown() -> None:
    changed = native()
    changed[1] = span("it/sim.step", (0,), states=(("sim.episode", "refresh", 0),))
    found = compare(gather(native()), gather(changed), "native", "planned")
    assert "has refresh of 'sim.episode' in planned, but not in native" in found.difference
    failed = native()
    failed[1] = failed[1] | {"status": "error", "error": "ValueError"}
    found = compare(gather(native()), gather(failed), "native", "planned")
    assert found.difference == (
        "it/sim.step in iteration 0: ended with ok in native, with ValueError in planned"
    )


def test_loops_and_composites_are_no_work_of_their_own() -> None:
    whole = [span("it/policy.act"), span("it", kind="iteration"), span("it/loop", kind="loop")]
    opened = [*whole, span("it/policy.act/policy.encode")]
    assert set(gather(opened)) == {("it/policy.act/policy.encode", (0,), 0)}
    assert set(gather(whole)) == {("it/policy.act", (0,), 0)}


def chains(later: int = 1) -> list[Span]:
    """Three epochs, natively and on two instances of the simulator; then somebody looks."""
    spans: list[Span] = []
    for epoch in range(3):
        worker, version = f"sim@{epoch % 2}/2", 2 * (epoch // 2)
        for name, access, v in (("reset", "refresh", version), ("step", "update", version + 1)):
            item = span(f"it/l/sim.{name}", (0, epoch), states=(("sim.episode", access, v),))
            spans.append(item | {"worker": worker})
    look = span("it/sim.look", states=(("sim.episode", "read", 2 if later else 4),))
    spans.append(look | {"worker": f"sim@{later}/2"})
    return spans


def one_simulator() -> list[Span]:
    spans: list[Span] = []
    for epoch in range(3):
        for name, access, v in (("reset", "refresh", 2 * epoch), ("step", "update", 2 * epoch + 1)):
            spans.append(span(f"it/l/sim.{name}", (0, epoch), states=(("sim.episode", access, v),)))
    spans.append(span("it/sim.look", states=(("sim.episode", "read", 6),)))
    return spans


def test_instances_have_versions_of_their_own() -> None:
    found = compare(gather(one_simulator()), gather(chains(later=0)))
    assert found.equal, found.difference


def test_a_reader_that_finds_another_instance_is_shown() -> None:
    found = compare(gather(one_simulator()), gather(chains(later=1)))
    assert found.difference == (
        "it/sim.look in iteration 0: read of 'sim.episode' saw what it/l/sim.step in iteration 0.2 left in the "
        "first, and what it/l/sim.step in iteration 0.1 left in the second"
    )
