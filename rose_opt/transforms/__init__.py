"""Transforms of the abstract graph, one file each."""

from rose_opt.transforms.base import (
    IllegalTransform,
    Rewritten,
    Subject,
    Transform,
    hierarchy,
)
from rose_opt.transforms.composition import (
    ADVISED,
    PREPARING,
    TRANSFORMS,
    Composition,
    apply_all,
    essence,
    parse_composition,
)
from rose_opt.transforms.copy_on_bind import CopyOnBind
from rose_opt.transforms.hoist_rng import HoistRNG
from rose_opt.transforms.interleave import Interleave
from rose_opt.transforms.merge import Merge
from rose_opt.transforms.privatise import Privatise
from rose_opt.transforms.rewire import Rewire
from rose_opt.transforms.spatial_split import SpatialSplit
from rose_opt.transforms.temporal_split import TemporalSplit
from rose_opt.transforms.unlocking import unlocked, unlocking

__all__ = [
    "ADVISED",
    "PREPARING",
    "TRANSFORMS",
    "Composition",
    "CopyOnBind",
    "HoistRNG",
    "IllegalTransform",
    "Interleave",
    "Merge",
    "Privatise",
    "Rewire",
    "Rewritten",
    "SpatialSplit",
    "Subject",
    "TemporalSplit",
    "Transform",
    "apply_all",
    "essence",
    "hierarchy",
    "parse_composition",
    "unlocked",
    "unlocking",
]
