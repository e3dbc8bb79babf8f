"""The records of the paper's abstract graph: what a node declares and which state it touches.

Paper: §4.2, "Tracing" (execution nodes, loop nodes, state accesses).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NewType

NodePath = NewType("NodePath", str)
"""Position in the execution hierarchy, e.g. ``iteration/rollout/interact/policy.act``."""

SpanId = NewType("SpanId", int)
"""64-bit OpenTelemetry span id of one invocation; 0 means none."""

GENERATOR = "generator."
"""Prefix of the states that stand for process-wide generators."""

BUFFER = "buffer."
"""Prefix of the states that stand for storages which are handed out again and again."""

SEEN = (GENERATOR, BUFFER)
"""Prefixes of states that nobody declares and no component holds: a trace shows them."""


class StateAccess(enum.Enum):
    """How a node touches a state.

    ``READ`` uses the existing value, ``UPDATE`` makes a new value from the previous one, ``REFRESH``
    makes a new value that inherits nothing.

    Paper: §4.2, "State accesses".
    """

    READ = "read"
    UPDATE = "update"
    REFRESH = "refresh"

    @property
    def writes(self) -> bool:
        """Whether the access leaves a new value behind."""
        return self is not StateAccess.READ


@dataclass(frozen=True, slots=True)
class Access:
    """One declared access to one state.

    Attributes:
        state: Absolute state name, ``component.state``.
        mode: Read, update or refresh.
        keyed: Whether one row of the state belongs to one row of the batch (a batch state), so that
            accesses to disjoint rows do not conflict.
    """

    state: str
    mode: StateAccess
    keyed: bool = False

    def __str__(self) -> str:
        return f"{self.mode.value} {self.state}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the author of a node says about it.

    Attributes:
        reads: States whose existing value is used.
        updates: States that get a new value from the previous one.
        refreshes: States that get a new value that inherits nothing.
        pure: The node touches no state at all.
        rows: Row i of every output depends only on row i of the inputs. ``True`` means every tensor
            argument whose first axis has the batch's length carries rows; a tuple names the
            parameters that do.
        graph: Its device work is captured into CUDA graphs. That changes how it is computed, not
            what: a plan does not depend on it, so it is not part of the fingerprint, which is made
            from the representation.
    """

    reads: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    refreshes: tuple[str, ...] = ()
    pure: bool = False
    rows: bool | tuple[str, ...] = False
    graph: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.pure and (self.reads or self.updates or self.refreshes):
            raise ValueError(
                "rose.node(pure=True): expected no declared states, got "
                f"{', '.join(self.reads + self.updates + self.refreshes)}. "
                "Drop pure=True or the state declarations."
            )
        names = self.reads + self.updates + self.refreshes
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"rose.node: expected each state in one of reads, updates, refreshes, got "
                f"{', '.join(twice)} more than once. An update already reads the previous value."
            )

    @property
    def silent(self) -> bool:
        """Whether nothing was declared about state: a leaf like this conflicts with everything."""
        return not (self.pure or self.reads or self.updates or self.refreshes)

    def accesses(
        self, component: str | None, batch_states: Iterable[str] = ()
    ) -> tuple[Access, ...]:
        """Absolute accesses of this declaration on one component instance.

        Args:
            component: Instance name, e.g. ``policy``; ``None`` for a free function, whose state names
                must then be absolute.
            batch_states: Names of the component's states that hold one row per row of the batch.

        Returns:
            Accesses in the order reads, updates, refreshes.

        Raises:
            ValueError: If a relative state name is used outside a component.
        """
        keyed = frozenset(batch_states)
        result: list[Access] = []
        for names, mode in (
            (self.reads, StateAccess.READ),
            (self.updates, StateAccess.UPDATE),
            (self.refreshes, StateAccess.REFRESH),
        ):
            for name in names:
                if "." in name:
                    result.append(Access(name, mode))
                elif component is None:
                    raise ValueError(
                        f"State {name!r}: expected an absolute name outside a component, got a relative "
                        "one. Write 'component.state', or declare it on a component's method."
                    )
                else:
                    result.append(Access(f"{component}.{name}", mode, name in keyed))
        return tuple(result)
