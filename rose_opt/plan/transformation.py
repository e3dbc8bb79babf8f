"""One transform as text: the form in which plans, `explain` and the command line name it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rose_opt.plan.errors import PlanError


@dataclass(frozen=True, slots=True)
class Transformation:
    """One transform in its text form, e.g. ``split-spatial{loop=iteration/rollout/interact groups=2}``.

    Attributes:
        name: Transform name.
        arguments: Argument names and values, in the order they are printed.
    """

    name: str
    arguments: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}{{{' '.join(f'{key}={value}' for key, value in self.arguments)}}}"

    def __getitem__(self, key: str) -> str:
        for name, value in self.arguments:
            if name == key:
                return value
        raise PlanError(
            f"{self}: expected argument {key}, got {', '.join(k for k, _ in self.arguments) or 'none'}. "
            "Write it as name{key=value …}."
        )

    def integer(self, key: str) -> int:
        """The argument `key` as a whole number.

        Raises:
            PlanError: If it is missing or no whole number.
        """
        value = self[key]
        if not value.isdecimal():
            raise PlanError(
                f"{self}: expected a whole number for {key}, got {value!r}. Write e.g. {key}=2."
            )
        return int(value)

    @staticmethod
    def parse(text: str) -> Transformation:
        """Inverse of ``str``.

        Raises:
            PlanError: If the text is no transform.

        >>> str(Transformation.parse("rewire{node=iteration/learn beside=iteration/rollout}"))
        'rewire{node=iteration/learn beside=iteration/rollout}'
        """
        match = re.fullmatch(r"([a-z-]+)(?:\{([^{}]*)\})?", text.strip())
        pairs = [] if match is None else [item.partition("=") for item in (match[2] or "").split()]
        if match is None or not all(key and value for key, _, value in pairs):
            raise PlanError(
                f"Transform {text!r}: expected name{{key=value …}}, got something else. "
                "Write e.g. split-spatial{loop=iteration/rollout groups=2}."
            )
        return Transformation(match[1], tuple((key, value) for key, _, value in pairs))

    @staticmethod
    def parse_all(text: str) -> tuple[Transformation, ...]:
        """Transforms separated by commas; `PlanError` if a part is no transform.

        >>> [
        ...     t.name
        ...     for t in Transformation.parse_all("split-spatial{loop=a groups=2},interleave,merge")
        ... ]
        ['split-spatial', 'interleave', 'merge']
        """
        parts = [part for part in text.split(",") if part.strip()]
        return tuple(map(Transformation.parse, parts))
