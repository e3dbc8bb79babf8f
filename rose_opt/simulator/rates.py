"""How fast tasks progress that run at the same time.

A task v that runs beside w loses kappa(v, w) of its progress: its rate is 1 - sum of kappa, which over a
whole run is T_obs = T_solo + sum of kappa * overlap, the model that `rose_opt.schedule.contention` fits
and that the bounds use. Where a pair was never seen together, SM demand is all that is known: tasks that
want more SMs together than there are share them in proportion.

Does not handle: three tasks that hurt each other more than their pairs do.

Paper: Table 1, Fig. 10 (kappa of policy and simulator).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.schedule.model import LEAST_RATE, Kappa

Rates = Callable[[tuple[str, ...]], Sequence[float]]
"""Rates of running tasks by their names, in the same order [fraction of solo speed, > 0]."""


def full_speed(names: tuple[str, ...]) -> Sequence[float]:
    """Nothing slows anything down."""
    return (1.0,) * len(names)


@dataclass(frozen=True, slots=True)
class Contention:
    """Rates from kappa where it is known, from SM demand where it is not.

    Attributes:
        kappa: Progress that v loses per second beside w, by (v, w) [fraction].
        demand_sms: SMs that a task keeps busy alone, by name [SMs]; absent for none.
        sms: SMs of the device; ``None`` to leave demand out.
    """

    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])
    demand_sms: Mapping[str, float] = field(default_factory=dict[str, float])
    sms: int | None = None

    def __call__(self, names: tuple[str, ...]) -> Sequence[float]:
        """Rates of the tasks called `names`.

        >>> Contention({("S", "P"): 0.83})(("P", "S"))
        (1.0, 0.17000000000000004)
        >>> Contention(demand_sms={"V": 100, "D": 50}, sms=100)(("V", "D"))
        (0.6666666666666666, 0.6666666666666666)
        """
        return tuple(self._rate(position, names) for position in range(len(names)))

    def _rate(self, position: int, names: tuple[str, ...]) -> float:
        name = names[position]
        others = [other for at, other in enumerate(names) if at != position]
        lost = sum(self.kappa.get((name, other), 0.0) for other in others)
        unknown = [
            other
            for other in others
            if (name, other) not in self.kappa and (other, name) not in self.kappa
        ]
        wanted = self.demand_sms.get(name, 0.0)
        total = wanted + sum(self.demand_sms.get(other, 0.0) for other in unknown)
        share = 1.0
        if self.sms is not None and wanted and unknown and total > self.sms:
            share = self.sms / total
        return max(share * (1.0 - lost), LEAST_RATE)
