"""Measurement decides: protocols of trials, and the paper's two searches over them.

Free of solver and database, so that the executor can run them live.
"""

from rose_opt.measure.graph_search import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearch,
    GraphSearchResult,
    GraphSearchSettings,
    Round,
    TargetTrials,
    Validation,
    search_graph,
)
from rose_opt.measure.levels import QuotaLevel, expected_levels, quota_levels
from rose_opt.measure.plan_key import plan_key
from rose_opt.measure.protocols import (
    IterationMeasurement,
    IterationMeasurer,
    LocalMeasurer,
    Measurer,
    QuotaMeasurer,
    TrialFailed,
)
from rose_opt.measure.quota_search import (
    NoiseAware,
    OverlapPair,
    QuotaSearchResult,
    QuotaTrial,
    branch_slack_ns,
    most_promising,
    predicted_gain_ns,
    search_quota,
)

__all__ = [
    "Alternative",
    "AlternativeTrial",
    "Composed",
    "GraphSearch",
    "GraphSearchResult",
    "GraphSearchSettings",
    "IterationMeasurement",
    "IterationMeasurer",
    "LocalMeasurer",
    "Measurer",
    "NoiseAware",
    "OverlapPair",
    "QuotaLevel",
    "QuotaMeasurer",
    "QuotaSearchResult",
    "QuotaTrial",
    "Round",
    "TargetTrials",
    "TrialFailed",
    "Validation",
    "branch_slack_ns",
    "expected_levels",
    "most_promising",
    "plan_key",
    "predicted_gain_ns",
    "quota_levels",
    "search_graph",
    "search_quota",
]
