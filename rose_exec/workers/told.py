"""What is said once on a pipe and from then on named by a number.

Order on the pipe makes it safe: a number is never read before what it stands for. Only what was written
counts as said, so a message that could not be pickled or sent leaves both ends as they were.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable
from typing import Any

MOST = 4096  # ours: nodes of a large program; beyond it everything is said again
PASSING = -1
"""Number of what is said for one message only."""


class Told:
    """The end that says.

    Args:
        dumps: How values are pickled.
    """

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._said: dict[Hashable, tuple[int, Any]] = {}
        self._saying: tuple[Hashable, int, Any] | None = None

    def number(self, key: Hashable, value: Any, lasting: bool = True) -> tuple[int, bytes | None]:
        """Number of a value, and what has to be sent beside it where the other end does not know it.

        Args:
            key: Whose value it is; a value is known as long as it equals the last one of its key.
            value: The value; neither ``None`` nor bytes.
            lasting: Whether it stays what it is; else it is sent every time, and nobody keeps it.
        """
        if not lasting:
            return PASSING, self._dumps(value)
        number, said = self._said.get(key, (len(self._said), None))
        if said is not None and said == value:
            return number, None
        data = self._dumps(value)
        if number == MOST:
            self._said.clear()
            number = 0
        self._said[key] = number, None  # until it is written, the other end may know this or that
        self._saying = key, number, value
        return number, data

    def begin(self) -> None:
        """A message begins; if the last one was not written, it will never be."""
        self._saying = None

    def written(self) -> None:
        """The message was written."""
        if self._saying is not None:
            key, number, value = self._saying
            self._said[key] = number, value


class Learned:
    """The end that is told."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}

    def value(self, number: int, data: bytes | None) -> Any:
        """What a number stands for.

        Args:
            number: The number.
            data: What was sent beside it. Where that cannot be unpickled, every use of the number fails.
        """
        if data is not None:
            if number == PASSING:
                return pickle.loads(data)
            self._values[number] = data
        value = self._values[number]
        if type(value) is bytes:
            value = self._values[number] = pickle.loads(value)
        return value
