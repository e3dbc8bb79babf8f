"""What private copies cost: the time to make one, and the memory that it takes.

What a component holds is as large as the trace says. It is saved where the component lives and loaded
where the copy does, at a rate that does not depend on the program.

Paper: beyond the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from rose_opt.facts import Facts
from rose_opt.plan import PrivateCopy
from rose_opt.settings import Memory

SAVE_NS_PER_BYTE = 2.5  # ours: 100 MB of weights on two shared cores
LOAD_NS_PER_BYTE = 2.5  # ours: as above, with the way into the other process
PICKLING_NS = 1_000_000  # ours: what holds the tensors, on either side
UNKNOWN_BYTES = 256 << 20  # ours: a component of which the trace does not say how large it is


@dataclass(frozen=True, slots=True)
class CopyCost:
    """One private copy.

    Attributes:
        host_bytes: What the component holds in host memory [bytes].
        gpu_bytes: What it holds on GPUs [bytes].
        save_ns: Time on the worker of the component [ns].
        load_ns: Time on the worker of the copy [ns].
        known: Whether the trace says how large the component is.
    """

    host_bytes: int
    gpu_bytes: int
    save_ns: int
    load_ns: int
    known: bool

    @property
    def total_bytes(self) -> int:
        """What is copied [bytes]."""
        return self.host_bytes + self.gpu_bytes


def copy_cost(facts: Facts, memory: Memory, dispatch_ns: int, copy: PrivateCopy) -> CopyCost:
    """What one copy costs, each time that its readers start.

    Args:
        facts: What is known.
        memory: Sizes that a person gave, which come first.
        dispatch_ns: Cost of handing one invocation to a worker process [ns].
        copy: The copy.
    """
    name = copy.component
    host = memory.component_host_bytes.get(name, facts.memory.get(f"host_bytes of {name}"))
    gpu = memory.component_gpu_bytes.get(name, facts.memory.get(f"gpu_bytes of {name}", 0))
    size = (UNKNOWN_BYTES if host is None else host) + gpu
    return CopyCost(
        host_bytes=UNKNOWN_BYTES if host is None else host,
        gpu_bytes=gpu,
        save_ns=dispatch_ns + PICKLING_NS + round(size * SAVE_NS_PER_BYTE),
        load_ns=dispatch_ns + PICKLING_NS + round(size * LOAD_NS_PER_BYTE),
        known=host is not None,
    )
