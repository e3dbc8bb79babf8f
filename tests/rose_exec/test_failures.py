"""What fails natively fails in the plan: the same exception, first in program order, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from rose_exec.replay import Replay, replay
from rose_exec.tasks import StructureChanged
from rose_exec.workers import WorkerDied
from rose_trace import hooks, pytree
from rose_trace.component import program
from tests.rose_exec.failing import ROWS, Broken, Program
from tests.rose_exec.observe import observed_plan

SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"
STEP = "iteration/rollout/interact/sim.step"


class Pair(NamedTuple):
    """The same program in a session and native."""

    session: Replay
    planned: Program
    native: Program

    def order(self, **orders: Any) -> None:
        for side in (self.planned, self.native):
            side.orders, side.rows = {}, {}
            side.hook = lambda epoch, step: None
            for name, value in orders.items():
                setattr(side, name, value)

    def overlap(self) -> None:
        """Go on with the plan after a failure, for the next test."""
        assert self.session._driver is not None
        self.session._driver.serial = False

    def natively(self) -> Any:
        with self.session.paused():
            return self.native.iteration()


@contextlib.contextmanager
def pair(*transforms: str, processes: tuple[str, ...] = ()) -> Generator[Pair]:
    with program():
        native = Program()
    plan = observed_plan(lambda: Program().iteration, *transforms, rows=ROWS, processes=processes)
    with replay(plan, build=Program, strict=True) as session:
        yield Pair(session, session.built, native)


@pytest.fixture(scope="module")
def split_session() -> Iterator[Pair]:
    with (
        pair(SPLIT, "interleave", "merge", processes=("learner",)) as both,
        both.session.paused(),
    ):
        yield both


@pytest.fixture(scope="module")
def rewired_session() -> Iterator[Pair]:
    with pair(REWIRE, processes=("sim", "learner")) as both, both.session.paused():
        yield both


@pytest.fixture
def split(split_session: Pair) -> Iterator[Pair]:
    with resumed(split_session):
        yield split_session


@pytest.fixture
def rewired(rewired_session: Pair) -> Iterator[Pair]:
    with resumed(rewired_session):
        yield rewired_session


@contextlib.contextmanager
def resumed(both: Pair) -> Generator[None]:
    """Of several sessions that are open, one runs at a time."""
    assert both.session._driver is not None
    both.session._driver.serial = False
    hooks.install_executor(both.session._driver)
    try:
        yield
    finally:
        hooks.install_executor(None)


def bits(value: Any) -> list[Any]:
    leaves, structure = pytree.flatten(value)
    return [structure, *(np.asarray(leaf).tobytes() for leaf in leaves)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


ORDER = ("raise", "no contact", 17)


@pytest.mark.parametrize("row", [0, ROWS - 1, -1], ids=["first group", "second group", "both"])
@pytest.mark.parametrize("place", [(0, 0), (0, 2), (1, 1)], ids=["first", "middle", "late"])
def test_a_node_raises_in_a_group(split: Pair, place: tuple[int, int], row: int) -> None:
    split.order(orders={place: ORDER}, rows={place: row})
    with pytest.raises(Broken) as caught:
        split.planned.iteration()
    assert caught.value.args == ("no contact", 17)
    group = 0 if row <= 0 else 1
    assert f"Raised by {STEP}, iteration [" in "\n".join(caught.value.__notes__)
    assert f"Raised in worker sim-{group}:" in "\n".join(caught.value.__notes__)
    with pytest.raises(Broken):
        split.natively()
    split.order()
    assert bits(split.planned.iteration()) == bits(split.natively())  # serial from here on
    split.overlap()
    assert bits(split.planned.iteration()) == bits(split.natively())


def test_the_earliest_of_several_failures_is_raised(split: Pair) -> None:
    split.overlap()
    later, earlier = ("raise", "later"), ("raise", "earlier")
    split.order(
        orders={(0, 2): later, (0, 1): earlier, (1, 0): later},
        rows={(0, 2): 0, (0, 1): ROWS - 1},
    )
    with pytest.raises(Broken, match=r"^earlier\n"):
        split.planned.iteration()


@pytest.mark.parametrize("index", [0, 1])
def test_a_node_after_the_groups_raises(split: Pair, index: int) -> None:
    split.overlap()
    split.order(orders={index: ORDER})
    with pytest.raises(Broken) as caught:
        split.planned.iteration()
    assert "Raised by iteration/learn/learner.learn, iteration [" in "".join(caught.value.__notes__)
    with pytest.raises(Broken):
        split.natively()
    split.order()  # what came before the failure is done, and done once
    assert bits(split.planned.iteration()) == bits(split.natively())


def test_glue_in_a_group_raises(split: Pair) -> None:
    split.overlap()

    def hook(epoch: int, step: int) -> None:
        if (epoch, step) == (0, 1):
            raise ZeroDivisionError("in glue")

    split.order(hook=hook)
    with pytest.raises(ZeroDivisionError, match="in glue"):
        split.planned.iteration()
    split.order()
    split.native.hook = hook
    with pytest.raises(ZeroDivisionError):
        split.natively()
    split.order()
    assert bits(split.planned.iteration()) == bits(split.natively())


def test_a_failed_node_goes_before_glue_that_comes_later(split: Pair) -> None:
    split.overlap()

    def hook(epoch: int, step: int) -> None:
        if (epoch, step) == (0, 2):
            raise ZeroDivisionError("in glue")

    split.order(hook=hook, orders={(0, 1): ORDER}, rows={(0, 1): ROWS - 1})
    with pytest.raises(Broken):
        split.planned.iteration()


def test_an_interrupt_passes_through(split: Pair) -> None:
    split.overlap()
    split.order(orders={(0, 1): ("interrupt",)})
    with pytest.raises(KeyboardInterrupt, match="told to"):
        split.planned.iteration()
    split.overlap()

    once = iter([signal.SIGINT])

    def hook(epoch: int, step: int) -> None:
        if (epoch, step) == (0, 1):
            for number in once:  # both groups run this glue
                os.kill(os.getpid(), number)

    split.order(hook=hook)
    with pytest.raises(KeyboardInterrupt):
        split.planned.iteration()
    split.order()
    assert bits(split.planned.iteration()[1]) == bits(split.natively()[1])


def test_a_result_with_other_rows_is_named(split: Pair) -> None:
    split.overlap()
    split.order(orders={(0, 1): ("short",)})
    with pytest.raises(StructureChanged) as caught:
        split.planned.iteration()
    assert str(caught.value) == (
        f"{STEP}: expected 2 rows from its branch, got shape [1]. Return one entry per row served "
        "(rose.current_rows())."
    )


def test_a_result_with_other_containers_is_named(rewired: Pair) -> None:
    rewired.overlap()
    rewired.order(orders={(1, 2): ("list",)})
    with pytest.raises(StructureChanged) as caught:
        rewired.planned.iteration()
    leaf = '["leaf","array","float64",[4]]'
    assert str(caught.value) == (
        f"{STEP}: expected the recorded result {leaf}, got "
        f'["list",[],"",[{leaf},["leaf","int","",null]]]. Record a new trace that covers this case and '
        "plan again."
    )
    assert bits(rewired.planned.iteration()[1]) == bits(rewired.natively()[1])  # in native order


@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_a_node_raises_in_a_branch(rewired: Pair, place: tuple[int, int]) -> None:
    rewired.overlap()
    rewired.order(orders={place: ORDER, 1: ("raise", "later")})
    with pytest.raises(Broken) as caught:
        rewired.planned.iteration()
    assert caught.value.args == ("no contact", 17)
    rewired.order()
    assert bits(rewired.planned.iteration()[1]) == bits(rewired.natively()[1])


def test_a_node_beside_a_branch_raises(rewired: Pair) -> None:
    rewired.overlap()
    rewired.order(orders={0: ORDER})
    with pytest.raises(Broken) as caught:
        rewired.planned.iteration()
    assert "Raised by iteration/learn/learner.learn" in "".join(caught.value.__notes__)


def test_glue_in_a_branch_raises(rewired: Pair) -> None:
    rewired.overlap()

    def hook(epoch: int, step: int) -> None:
        if epoch == 1:
            raise ZeroDivisionError("in glue")

    rewired.order(hook=hook)
    with pytest.raises(ZeroDivisionError):
        rewired.planned.iteration()


def test_an_argument_that_cannot_be_sent_is_named(rewired: Pair) -> None:
    with pytest.raises(
        Exception, match=r"learner\.take: expected values that can be sent to worker"
    ):
        rewired.planned.learner.take(lambda: None)
    assert rewired.planned.learner.take([1]) == "list"


def test_plain_attributes_of_a_component_in_a_worker(rewired: Pair) -> None:
    rewired.overlap()
    seen: list[Any] = []

    def hook(epoch: int, step: int) -> None:
        sim = rewired.planned.sim
        seen.append((sim.label, sim.bounds, sim.limit, sim.rows))

    rewired.order()
    rewired.planned.hook = hook  # in glue, also in a branch that the plan moves
    rewired.planned.iteration()
    assert seen == [("sim", (0, (1.5, "sim")), 100, ROWS)] * 6
    sim = rewired.planned.sim
    assert (sim.label, hasattr(sim, "nothing")) == ("sim", False)  # and outside an iteration
    with pytest.raises(AttributeError) as caught:
        _ = sim.log
    assert str(caught.value) == (
        "sim.log: expected a plain immutable attribute, got list of a component that lives in a worker. "
        "Decorate the method that uses it with @rose.node."
    )
    rewired.order()
    before = rewired.planned.learner.steps
    rewired.planned.iteration()
    assert rewired.planned.learner.steps == before + 2
    assert not rewired.session._driver or not rewired.session._driver.serial


def test_attributes_of_a_component_in_shards_are_refused(split: Pair) -> None:
    with pytest.raises(AttributeError) as caught:
        _ = split.planned.sim.rows
    assert str(caught.value) == (
        "sim.rows: expected a component in one piece, got 2 shards, whose attributes need not be those of "
        "the whole. Decorate the method that uses it with @rose.node."
    )


@pytest.mark.parametrize(
    ("order", "how", "said"),
    [
        (("kill",), "signal 9", "about to be killed"),
        (("exit", 3), "exit code 3", "leaving now"),
    ],
)
def test_a_worker_that_dies_is_reported(
    order: Any, how: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pair(processes=("learner",)) as both:
        pid = both.planned.learner.pid()
        assert pid != os.getpid()
        both.order(orders={1: order})
        with pytest.raises(WorkerDied) as caught:
            both.planned.iteration()
        assert str(caught.value) == (
            f"Worker learner: expected a running process, got {how} (pid {pid}). Its last output was:\n"
            f"  {said}\nThe next iteration runs in native order with its components built again; what only they knew "
            "is lost."
        )
        assert "Raised by iteration/learn/learner.learn" in "".join(caught.value.__notes__)
        with pytest.raises(WorkerDied):
            both.planned.learner.look()
    assert not alive(pid)
    assert said in capfd.readouterr().err


def test_no_process_outlives_its_session() -> None:
    pids: list[int] = []

    def session() -> None:
        with pair(processes=("learner",)) as both:
            pids.append(both.planned.learner.pid())
            both.order(orders={0: ORDER})
            both.planned.iteration()

    with pytest.raises(Broken):
        session()
    assert [alive(pid) for pid in pids] == [False]


def handled(both: Program) -> Callable[[], Any]:
    import rose_trace as rose

    sim, learner = both.sim, both.learner

    @rose.loop
    def interact(obs: Any, t: int) -> Any:
        obs = sim.step(obs, both.orders.get(t), -1)
        return obs, obs

    @rose.iteration(name="guarded")
    def iteration() -> Any:
        done: list[str] = []
        obs = sim.reset(0)
        try:
            obs, _ = interact(obs, count=3)
        except Broken as error:
            done.append(f"{error.args}")
        try:
            learner.learn(np.sum(obs), both.orders.get("learn"))
        except Broken as error:
            done.append(f"{error.args}")
        return obs, sim.peek(), learner.look(), done

    return iteration


def test_glue_that_handles_an_exception_sees_it_as_natively() -> None:
    plan = observed_plan(
        lambda: handled(Program()),
        "split-spatial{loop=guarded/interact groups=2}",
        rows=ROWS,
        processes=("learner",),
    )
    with program():
        native = Program()
        expected = handled(native)
    with replay(plan, strict=True) as session:
        planned = Program()
        iteration = handled(planned)
        for orders in (
            {},
            {1: ("raise", "x", 1)},
            {"learn": ORDER},
            {2: ORDER, "learn": ORDER},
            {},
        ):
            native.orders = planned.orders = dict[Any, Any](orders)
            found = iteration()
            with session.paused():
                wanted = expected()
            assert bits(found) == bits(wanted)
            assert found[-1] == wanted[-1]
        assert session._driver is not None
        assert not session._driver.serial
