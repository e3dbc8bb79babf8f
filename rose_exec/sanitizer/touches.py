"""Who touched what in one iteration, and which of those pairs nothing orders.

A pair that the declarations leave unordered is a race, however it happened to run; one that ran against
the program's order is an inversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rose_exec.readiness import TaskId
from rose_exec.sanitizer.order import Clocks


@dataclass(frozen=True, slots=True)
class Touch:
    """One access that was seen.

    Attributes:
        task: The task it happened in.
        node: Path of the innermost node.
        invocation: The same with its iterations.
        writes: Whether it wrote.
        in_place: Whether it wrote into memory that was there before.
        declared: States that the node declares to write, of the component touched.
        allowed: Whether the declarations allow it.
    """

    task: TaskId
    node: str
    invocation: str
    writes: bool
    in_place: bool = False
    declared: tuple[str, ...] = ()
    allowed: bool = True


@dataclass(frozen=True, slots=True)
class Pair:
    """Two accesses to one place that nothing orders.

    Attributes:
        place: Path of what both touch.
        earlier: The earlier one in program order.
        later: The later one.
        inverted: Whether the later one ran first.
    """

    place: str
    earlier: Touch
    later: Touch
    inverted: bool


@dataclass(slots=True)
class Touches:
    """Accesses of one iteration, by what they touch.

    Attributes:
        places: Accesses to watched values, by path.
        attributes: Reads of attributes of components, by path.
        ran: Tasks in the order they ran.
    """

    places: dict[str, list[Touch]] = field(default_factory=dict[str, list[Touch]])
    attributes: dict[str, list[Touch]] = field(default_factory=dict[str, list[Touch]])
    ran: dict[TaskId, int] = field(default_factory=dict[TaskId, int])

    def add(self, place: str, touch: Touch) -> None:
        """Note an access to a watched value; repeated reads count once."""
        known = self.places.setdefault(place, [])
        if touch not in known[-1:]:
            known.append(touch)

    def add_attribute(self, place: str, touch: Touch) -> None:
        """Note the reading of an attribute."""
        known = self.attributes.setdefault(place, [])
        if touch not in known[-1:]:
            known.append(touch)

    def of(self, place: str, kind: str) -> list[Touch]:
        """All accesses to a place: its own, and reads of the attribute that holds it.

        Args:
            place: Path of a watched value.
            kind: Its kind. Memory of tensors below an attribute is told of by itself; reading an
                attribute that is an object says nothing about what lies in the object.
        """
        found = list(self.places.get(place, ()))
        holder = place
        while True:
            found += self.attributes.get(holder, ())
            if not holder.endswith("]") or kind == "tensor":
                return found
            holder = holder[: holder.rindex("[")]

    def pairs(self, clocks: Clocks, kinds: dict[str, str]) -> Iterator[Pair]:
        """Pairs of which one writes and that nothing orders, the nearest ones of each place."""
        for place, touches in self.places.items():
            if any(touch.writes for touch in touches):
                everything = self.of(place, kinds.get(place, "plain"))
                yield from self._unordered(place, everything, clocks)

    def _unordered(self, place: str, touches: Sequence[Touch], clocks: Clocks) -> Iterator[Pair]:
        known = [touch for touch in touches if touch.task in clocks.index]
        known.sort(key=lambda touch: clocks.index[touch.task])
        writers: list[Touch] = []
        readers: list[Touch] = []
        for touch in known:
            against = [*writers[-1:], *(readers if touch.writes else ())]
            for earlier in against:
                if earlier.task != touch.task and not clocks.ordered(earlier.task, touch.task):
                    inverted = self.ran.get(earlier.task, 0) > self.ran.get(touch.task, 0)
                    yield Pair(place, earlier, touch, inverted)
            if touch.writes:
                writers.append(touch)
                readers.clear()
            else:
                readers.append(touch)
