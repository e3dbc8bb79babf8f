"""What can be wrong with a plan: it cannot be read, or it must not run."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that cannot be read: wrong file, wrong version, or broken content."""


class PlanRefused(ValueError):
    """A plan that must not run: an illegal overlap, or code that it was not made for."""
