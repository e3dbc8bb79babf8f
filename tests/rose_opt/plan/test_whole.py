"""A composite with accesses of its own is work: it keeps its order, and runs as one task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rose_opt.graph import Graph
from rose_opt.phases import runs_whole
from rose_opt.placement import place
from rose_opt.plan import anchored, temporal_refusal
from rose_opt.transforms import Interleave, Merge, Rewire, SpatialSplit, TemporalSplit, apply_all
from tests.rose_opt.programs import ROWS, Author, batch, measured, tensor

NOTHING = '["none",[],"",[]]'
FIRST, SECOND = "it/first", "it/second"
NOTE = f"{FIRST}/note"


def program(shared: bool = False, **declared: object) -> Graph:
    """Two loops whose bodies call the composite ``note``; what it calls is pure."""
    author = Author({"sim": ("k",), "log": ("k",)}, ("sim", "log"))
    author.add("it", "iteration")
    for loop in (FIRST, SECOND):
        author.add(loop, "loop", count=4, structure=NOTHING)
        author.add(f"{loop}/note", composite=True, structure=tensor(ROWS), **declared)  # pyright: ignore
        inner = {"reads": "log.stats"} if shared else {"pure": True}
        author.add(f"{loop}/note/count", rows=True, structure=tensor(ROWS), **inner)  # pyright: ignore
    return author.graph()


REWIRED = Rewire(SECOND, FIRST)
SPLIT = (SpatialSplit(FIRST, 2), Interleave(FIRST), Merge(FIRST))
CHAINS = (TemporalSplit(FIRST, 2), Interleave(FIRST), Merge(FIRST))


@pytest.mark.parametrize("pure", [False, True], ids=["silent", "pure"])
def test_a_composite_that_touches_nothing_itself_is_what_it_calls(pure: bool) -> None:
    graph = program(pure=pure)
    assert not runs_whole(measured(graph, {}), graph.node(NOTE))
    for composition in ((REWIRED,), SPLIT, CHAINS):
        assert not hasattr(apply_all(composition, batch(graph)), "reason")
    touching = program(shared=True, pure=pure)
    assert [a.state for a in touching.effective(NOTE).accesses] == ["log.stats"]


def test_two_loops_that_call_it_keep_their_order() -> None:
    found = REWIRED.check(batch(program(updates="log.stats")))
    assert str(found) == (
        f"rewire({SECOND} beside {FIRST}): expected no conflicting access, got update of 'log.stats' "
        f"against update of 'log.stats' ({NOTE} before {SECOND}/note). Keep the native order, or let note "
        "work on a state of its own that a later node copies over."
    )
    assert REWIRED.check(batch(program(reads="log.stats"))) is None


def test_its_calls_in_two_groups_of_rows_meet() -> None:
    found = SPLIT[0].check(batch(program(updates="log.stats", rows=True)))
    assert str(found) == (
        f"split-spatial({FIRST}): expected groups that touch nothing in common, got update of 'log.stats' "
        f"against update of 'log.stats' ({NOTE} of group 0 against {NOTE} of group 1). Declare "
        "batch_states=['stats'] on log if one row of 'log.stats' belongs to one row of the batch; a "
        "statistic over the whole batch belongs after the loop."
    )


def test_it_must_work_row_by_row_to_be_split() -> None:
    found = SPLIT[0].check(batch(program(reads="log.stats")))
    assert found is not None
    assert found.reason == (
        f"expected every composite with accesses of its own to work row by row, got {NOTE} without rows=True"
    )


def test_its_calls_in_two_iterations_keep_their_order() -> None:
    found = CHAINS[0].check(batch(program(updates="log.stats")))
    assert found is not None
    assert found.reason == (
        f"expected a free loop, got dependent: {NOTE} updates 'log.stats', which the iteration before has "
        f"left as {NOTE} made it"
    )


def owner(inner: str, mode: str, below: str) -> Graph:
    """One loop; a composite of ``log`` refreshes its state, and calls a node of `inner` that does `mode`."""
    author = Author()
    author.add("it", "iteration")
    author.add(FIRST, "loop", count=4, structure=NOTHING)
    author.add(f"{FIRST}/log.begin", composite=True, refreshes="stats", structure=tensor(ROWS))
    author.add(
        f"{FIRST}/log.begin/{inner}.{below}",
        structure=tensor(ROWS),
        **{mode: "log.stats"},  # pyright: ignore[reportArgumentType]
    )
    return author.graph()


def test_a_refresh_around_a_node_that_inherits_is_no_new_beginning() -> None:
    refused = temporal_refusal(batch(owner("log", "reads", "look")).hierarchy, FIRST, 2)
    assert refused is not None
    assert refused.reason == (
        f"expected 'log.stats' to be refreshed before anything else touches it, got {FIRST}/log.begin, "
        f"which calls {FIRST}/log.begin/log.look before or after it refreshes it itself"
    )
    again = batch(owner("log", "refreshes", "clear")).hierarchy
    assert temporal_refusal(again, FIRST, 2) is None


def nested() -> Graph:
    """Two loops inside a composite that has accesses of its own."""
    author = Author()
    author.add("it", "iteration")
    author.add("it/all", composite=True, updates="log.stats")
    for loop in ("it/all/first", "it/all/second"):
        author.add(loop, "loop", count=4, structure=NOTHING)
        author.add(f"{loop}/count", pure=True, rows=True, structure=tensor(ROWS))
    return author.graph()


@pytest.mark.parametrize(
    "transform",
    [
        SpatialSplit("it/all/first", 2),
        TemporalSplit("it/all/first", 2),
        Rewire("it/all/second", "it/all/first"),
    ],
    ids=lambda t: t.name,
)
def test_what_is_inside_it_stays_as_it_is(
    transform: SpatialSplit | TemporalSplit | Rewire,
) -> None:
    found = transform.check(batch(nested()))
    assert found is not None
    assert found.reason == (
        "expected a place outside composites with accesses of their own, got it/all/first inside it/all, "
        "which runs as one task"
    )
    assert found.unlock == "Move what all touches itself into a node that it calls."


def across(mode: str, caller: str = "both") -> Graph:
    """A composite that calls the simulator, which a split of the loop would build as shards."""
    author = Author({"sim": ("k",)}, ("sim",))
    author.add("it", "iteration")
    author.add(FIRST, "loop", count=4, structure=NOTHING)
    author.add(f"{FIRST}/sim.step", updates="k", rows=True, structure=tensor(ROWS))
    author.add(f"it/{caller}", composite=True, **{mode: "log.stats"})  # pyright: ignore[reportArgumentType]
    author.add(f"it/{caller}/sim.look", reads="k", rows=True, structure=tensor(ROWS))
    author.add(f"it/{caller}/count", pure=True)
    return author.graph()


def test_what_it_calls_lives_where_it_runs() -> None:
    found = SPLIT[0].check(batch(across("updates")))
    assert str(found) == (
        f"split-spatial({FIRST}): expected sim in the program's own process, whole, since it/both has "
        "accesses of its own and calls it among others, got it apart. Move what both touches itself into a "
        "node that it calls."
    )
    assert anchored(batch(across("updates")).hierarchy) == {"sim": "it/both"}
    assert anchored(batch(across("updates", "sim.both")).hierarchy) == {}


def moved(**declared: object) -> Graph:
    author = Author()
    author.add("it", "iteration")
    for loop in (FIRST, SECOND):
        author.add(loop, "loop", count=4, structure=NOTHING)
        author.add(f"{loop}/{loop[3]}.work", updates="weights")
    author.add("it/report", composite=True, **declared)  # pyright: ignore[reportArgumentType]
    author.add("it/report/s.look", reads="weights")
    return author.graph()


@pytest.mark.parametrize(
    ("graph", "processes"),
    [(lambda: moved(), ("s",)), (lambda: moved(updates="log.stats"), ())],
    ids=["glue", "work"],
)
def test_a_component_that_it_calls_gets_no_process(
    graph: Callable[[], Graph], processes: tuple[str, ...]
) -> None:
    hierarchy = batch(graph()).hierarchy
    assert place(hierarchy, {}, ((SECOND, FIRST),)).processes == processes
