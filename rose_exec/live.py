"""A running program under a plan: components that exist already move to where the plan wants them, and back.

`rose_exec.replay` builds components in place, which is cheaper and needs nothing of them. A program in the
middle of training has its components; whatever of them lives on from one iteration to the next is taken
along, both ways, so that the results are those of the native program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rose_exec import handover, wire
from rose_exec.boundary import Boundary, Member
from rose_exec.guard import Guard
from rose_exec.guarded import GuardedReplay
from rose_exec.handover import NotCarried
from rose_exec.placement import Home, Placement
from rose_exec.revival import StateLost
from rose_exec.workers import Answer, Job
from rose_opt.plan import Plan, PlanRefused
from rose_trace import generators, pytree
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet
from rose_trace.records import GENERATOR

Saved = Mapping[str, bytes]
"""States of components between two iterations, by name."""


class LiveProgram:
    """The components of a running program, and what of them lives on.

    Args:
        boundary: What native iterations have shown.
        before: The same program as it was known before.

    Attributes:
        notes: What cannot be taken along, and why, by component.
        constants: States that no iteration changes, by component: saved once, since they may be large.
    """

    def __init__(self, boundary: Boundary, before: LiveProgram | None = None) -> None:
        self.boundary = boundary
        self.notes: dict[str, str] = {}
        self.constants: dict[str, bytes] = {} if before is None else dict(before.constants)
        wanted = {name: m.component for name, m in boundary.members.items() if self._held(name)}
        for name, why in handover.shared(wanted).items():
            self.notes[name] = (
                f"{name}: expected a component of its own, got one that {why}. Give each a copy."
            )
        for name in wanted:
            if name not in self.notes:
                self._try(name)

    @property
    def members(self) -> Mapping[str, Member]:
        """Components by name."""
        return self.boundary.members

    @property
    def blocked(self) -> tuple[str, ...]:
        """Why no state can be saved: one reason per component that changes and cannot be taken along."""
        return tuple(why for name, why in self.notes.items() if self.boundary.carried(name))

    def save(self, away: LiveReplay | None = None) -> Saved:
        """States of the components that iterations change, between two of them, wherever they live.

        Args:
            away: The session whose workers hold some of them.

        Returns:
            The states; components whose state ends with the iteration are not in it.
        """
        return {
            name: (away.fetch(name) if away is not None else None)
            or handover.save(member.component)
            for name, member in self.members.items()
            if self.boundary.carried(name) and name not in self.notes
        }

    def restore(self, saved: Saved) -> None:
        """Put the components, all of which are here, into saved states."""
        with handover.uninterrupted():
            for name, data in saved.items():
                handover.load(self.members[name].component, data)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that moves what cannot be moved.

        Raises:
            PlanRefused: With the first component that stays.
        """
        for name, pieces in _placed(plan).items():
            if name not in self.members:
                continue  # never called: built anew, it does nothing either
            drawn = _drawn(plan, name)
            if drawn:
                raise PlanRefused(
                    f"Component {name}: expected no draws from process-wide generators, got {', '.join(drawn)}, and "
                    "the plan wants it in another process. Give it a generator of its own."
                )
            if self.boundary.carried(name) and pieces > 1:
                raise PlanRefused(
                    f"Component {name}: expected states that every iteration refreshes before it uses them, got one "
                    f"that lives on, and the plan wants {pieces} pieces. Build the program inside rose_exec.replay."
                )
            if self.boundary.carried(name) and name in self.notes:
                raise PlanRefused(self.notes[name])

    def _held(self, name: str) -> bool:
        return self.boundary.carried(name) or self.boundary.constant(name)

    def _try(self, name: str) -> None:
        changes = self.boundary.carried(name)
        if not changes and name in self.constants:
            return
        try:
            saved = handover.save(self.members[name].component)
        except NotCarried as error:
            self.notes[name] = str(error)
        else:
            if not changes:
                self.constants[name] = saved


class LiveReplay(GuardedReplay):
    """A session that takes over a running program and gives it back at its end.

    Args:
        plan: The plan.
        program: The running program.
        strict: Raise where the plan does not fit the code.
        guard: Watches the session; ``None`` for no guards.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        program: LiveProgram,
        *,
        strict: bool = False,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(plan, self._take_over, strict=strict, guard=guard)
        self._live = program
        self._away: dict[str, dict[str, Any]] = {}
        self._constant: dict[str, bytes] = {}
        self.abandoned = False
        """Whether what the workers hold is not wanted any more: what was there before comes back."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the session; the components are back in the program, in their present state."""
        with handover.uninterrupted():
            try:
                self._give_back()
            finally:
                super().__exit__(kind, error, trace)

    def fetch(self, name: str) -> bytes | None:
        """The present state of a component that lives in a worker; ``None`` for one that is here.

        Raises:
            StateLost: If it ended with its worker.
        """
        home = self._home(name)
        if name not in self._away or home is None:
            return None
        if len(home.residents) > 1:  # several pieces move only where no iteration changes them
            return self._constant.get(name)
        gone = (
            [] if self._driver is None else [w for c, w in self._driver.lost.values() if c == name]
        )
        if gone:
            raise StateLost(
                f"Component {name}: expected its state, got a component built again because worker {gone[0]} ended. "
                "Go on from a checkpoint."
            )
        worker, resident = home.residents[0]
        return _result(_run(self._placement, worker, resident, handover.save))

    def _take_over(self) -> None:
        if self.native:
            return
        self._live.check(self.plan)
        drawn = generators.capture()
        try:
            with handover.uninterrupted():
                for name in _placed(self.plan):
                    self._move(name)
                for name in _copied(self.plan) - _placed(self.plan).keys():
                    member = self._live.members.get(name)
                    if member is not None:
                        self._placement.adopt(member.instance, member.component)
        finally:
            generators.restore(drawn)

    def _move(self, name: str) -> None:
        member = self._live.members.get(name)
        if member is None:
            return
        program = self._live.boundary
        wanted = (program.carried(name) or program.constant(name)) and name not in self._live.notes
        state = handover.save(member.component) if wanted else None
        try:
            self._placement.construct(member.instance, member.component)
            home = self._home(name)
            assert home is not None
            if state is not None:
                self._constant[name] = state
                load_copies(self._placement, {name: home}, {name: state})
        except BaseException:
            member.instance.home = None
            raise
        self._away[name] = handover.take_away(member.component)

    def _give_back(self) -> None:
        """Bring every component home.

        Raises:
            BaseException: If one whose state lives on cannot be reached; the others are back.
        """
        lost: BaseException | None = None
        for name in list(self._away):
            member = self._live.members[name]
            state: bytes | None = None
            if not self.abandoned:
                try:
                    state = self.fetch(name)
                except Exception as error:
                    if self._live.boundary.carried(name):
                        lost = error
                        error.add_note(
                            f"Component {name}: its state is lost with its worker; in the program it is what it was "
                            "before the session."
                        )
            handover.put_back(member.component, self._away.pop(name))
            member.instance.home = None
            if state is not None:
                handover.load(member.component, state)
        if lost is not None:
            raise lost

    def _home(self, name: str) -> Home | None:
        return self._placement.home_of(self._live.members[name].instance)


def load_copies(placement: Placement, homes: Mapping[str, Home], saved: Saved) -> None:
    """Give separately built components, wherever they live, saved states.

    Args:
        placement: Their workers.
        homes: Where they live, by name.
        saved: States by name; shards keep what they were built with.
    """
    for name, data in saved.items():
        home = homes.get(name)
        if home is None or home.shards > 1:
            continue
        for worker, resident in home.residents:
            _result(_run(placement, worker, resident, handover.load, data))


def _placed(plan: Plan) -> dict[str, int]:
    """Number of pieces of each component that a plan wants in worker processes, by name."""
    pieces: dict[str, int] = {}
    for spec in plan.workers:
        for resident in spec.residents if spec.kind == "process" else ():
            if resident.private:  # a further instance: the component itself stays where it is
                continue
            pieces[resident.component] = pieces.get(resident.component, 0) + 1
    return pieces


def _copied(plan: Plan) -> set[str]:
    """Components of which a plan keeps private copies."""
    residents = (resident for spec in plan.workers for resident in spec.residents)
    return {resident.component for resident in residents if resident.private}


def _drawn(plan: Plan, component: str) -> list[str]:
    """Process-wide generators that the nodes of a component draw from."""
    nodes = [node for node in plan.nodes if node.component == component]
    states = {access.state for node in nodes for access in node.accesses}
    return sorted(state for state in states if state.startswith(GENERATOR))


def _run(
    placement: Placement, worker: str, resident: str, function: Callable[..., Any], *args: Any
) -> Answer:
    leaves, structure = pytree.flatten((args, {}))
    job = Job(
        f"{resident}.{function.__name__}",
        "",
        resident,
        structure,
        tuple(wire.Object(leaf) for leaf in leaves),
        Frame(),
        AccessSet(opaque=True),
        function=function,
    )
    return placement.workers[worker].run(job).result()


def _result(answer: Answer) -> Any:
    leaves = iter([wire.decode(leaf) for leaf in answer.leaves])
    return pytree.unflatten(answer.structure, leaves)
