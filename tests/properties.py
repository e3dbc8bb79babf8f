"""How many examples a property is tried on: a few by default, always the same; all with --slow."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

DEFAULT, THOROUGH = "rose", "rose-slow"


def register() -> None:
    """Make the two profiles known. Neither looks at the clock: a busy machine is no failure."""
    no_clock: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(DEFAULT, derandomize=True, **no_clock)
    settings.register_profile(THOROUGH, **no_clock)


def examples(number: int, by_default: int, *unchecked: HealthCheck) -> settings:
    """Settings of a property.

    Args:
        number: Examples with --slow, drawn anew every time.
        by_default: Examples otherwise, the same every time.
        unchecked: Health checks that do not apply, besides those of time.
    """
    thorough = settings.get_current_profile_name() == THOROUGH
    return settings(
        max_examples=number if thorough else by_default,
        suppress_health_check=[HealthCheck.too_slow, *unchecked],
    )
