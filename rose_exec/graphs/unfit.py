"""Why a call cannot be captured into a CUDA graph."""

from __future__ import annotations


class UnfitError(Exception):
    """A call that has to run eagerly.

    Args:
        fact: What was seen.
        action: What its author can do about it, as a sentence without its full stop.
    """

    def __init__(self, fact: str, action: str) -> None:
        super().__init__(fact)
        self.fact = fact
        self.action = action
