"""What the sanitizer found, in the form of every message of Rose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "undeclared write",
    "undeclared read",
    "undeclared generator",
    "shared state",
    "two states",
    "race",
    "inversion",
    "refresh inherits",
    "rows interfere",
    "input written",
    "output overwritten",
    "glue writes",
]


@dataclass(frozen=True, slots=True)
class Checks:
    """Settings of a checked session.

    Attributes:
        fail: Raise `SanitizerError` at the end of the session if anything was found.
        reads: Watch what nodes read, too: attributes, and storages in torch operations.
        trials: Trials per node of each kind: rows that are perturbed, refreshes from another value;
            each runs the node once more on a copy. 0 for none.
        full_bytes: Contents above this size [bytes] are sampled instead of hashed in full.
        seed: Run in a random order that the executor allows, instead of program order: what is wrong may
            then change the results, as it may in training.
    """

    fail: bool = False
    reads: bool = True
    trials: int = 2
    full_bytes: int = 1 << 24
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a program does other than it declares.

    Attributes:
        kind: What is wrong.
        node: Path of the node, or of the glue.
        state: Declared state, generator, attribute or argument, e.g. ``policy.net.weight``.
        invocation: The invocation in which it was seen, e.g. ``iteration/rollout/policy.act[0,1]``.
        other: The other invocation of the pair, where there is one.
        expected: What the declarations promise.
        got: What happened.
        annotation: What is missing, or what to do.
    """

    kind: Kind
    node: str
    state: str
    invocation: str
    other: str
    expected: str
    got: str
    annotation: str

    def __str__(self) -> str:
        pair = self.invocation if not self.other else f"{self.invocation} and {self.other}"
        return f"{self.node}: expected {self.expected}, got {self.got} ({self.kind}: {pair}). {self.annotation}"


class SanitizerWarning(UserWarning):
    """A checked session found nodes that do other than they declare."""


class SanitizerError(RuntimeError):
    """The same, raised at the end of the session.

    Attributes:
        findings: All of them.
    """

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings
