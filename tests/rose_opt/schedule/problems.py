"""Loops that the schedule tests share: known instances and random ones."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from rose_opt.schedule import Capacity, LoopProblem, Mode, Phase

MS = 1_000_000

# name, worker, duration unsplit [ms], share of it that a split does not shorten, SMs
VLA_PHASES = (
    ("observe", "link", 12, 0.30, 0),
    ("backbone", "policy.backbone", 340, 0.05, 106),
    ("denoise", "policy.head", 228, 0.60, 46),
    ("simulate", "simulator", 289, 0.10, 26),
)
VLA_KAPPA = {
    ("simulate", "backbone"): 0.83,
    ("simulate", "denoise"): 0.3,
    ("backbone", "simulate"): 0.011,
    ("denoise", "simulate"): 0.011,
    ("backbone", "denoise"): 0.35,
    ("denoise", "backbone"): 0.6,
}


def vla_loop(
    groups: int, count: int = 512, kappa: Mapping[tuple[str, str], float] | None = None
) -> LoopProblem:
    """A vision-language-action policy beside a simulator, split in `groups`."""
    chains = tuple(
        tuple(
            Phase(
                name, engine, (Mode(round(ms * (fixed + (1 - fixed) / groups)) * MS, sms=sms),), g
            )
            for name, engine, ms, fixed, sms in VLA_PHASES
        )
        for g in range(groups)
    )
    return LoopProblem(chains, count, Capacity(sms=None if kappa else 132), kappa or {})


def two_core_loop(policy_ms: tuple[int, int], simulator_ms: int, groups: int) -> LoopProblem:
    """A policy with its times on 1 and on 2 threads, and a simulator in one process."""
    one, two = policy_ms
    chains = tuple(
        (
            Phase(
                "policy",
                "policy",
                (
                    Mode(one * MS // groups, cores=1, threads=1),
                    Mode(two * MS // groups, cores=2, threads=2),
                ),
                g,
            ),
            Phase("simulator", "simulator", (Mode(simulator_ms * MS // groups, cores=1),), g),
        )
        for g in range(groups)
    )
    return LoopProblem(chains, 40, Capacity(cores=2))


@st.composite
def loops(draw: st.DrawFn, contention: bool = False) -> LoopProblem:
    """Two or three groups of one to four phases, alike or not, with up to two modes each."""
    groups = draw(st.integers(1, 3))
    phases = draw(st.integers(1, 4 if groups < 3 else 3))
    engines = draw(st.lists(st.integers(0, 2), min_size=phases, max_size=phases))
    sharded = draw(st.lists(st.booleans(), min_size=phases, max_size=phases))
    modes = draw(st.lists(st.integers(1, 2), min_size=phases, max_size=phases))
    alike = draw(st.booleans())

    def mode() -> Mode:
        return Mode(
            draw(st.integers(1, 30)) * draw(st.sampled_from([1, 7, MS])),
            cores=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0])),
            sms=draw(st.sampled_from([0, 20, 60, 106])),
        )

    shared = [tuple(mode() for _ in range(modes[k])) for k in range(phases)]
    chains = tuple(
        tuple(
            Phase(
                f"p{k}",
                f"w{engines[k]}" + (f"#{g}" if sharded[k] else ""),
                shared[k] if alike else tuple(mode() for _ in range(modes[k])),
                g,
            )
            for k in range(phases)
        )
        for g in range(groups)
    )
    capacity = Capacity(
        cores=draw(st.sampled_from([None, 2.0, 3.0])), sms=draw(st.sampled_from([None, 132]))
    )
    kappa: dict[tuple[str, str], float] = {}
    if contention:
        for k in range(phases):
            for other in range(phases):
                kappa[f"p{k}", f"p{other}"] = draw(st.sampled_from([0.0, 0.1, 0.8333, 2.5]))
    return LoopProblem(chains, draw(st.integers(1, 50)), capacity, kappa, draw(st.booleans()))
