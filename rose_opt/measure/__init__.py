"""Measurement decides: protocols of trials, and the paper's two searches over them.

Free of solver and database, so that the executor can run them live.
"""

from rose_opt.measure.graph_search import GraphSearch, GraphSearchSettings, search_graph
from rose_opt.measure.graph_trials import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearchResult,
    Round,
    TargetTrials,
    Validation,
)
from rose_opt.measure.levels import QuotaLevel, expected_levels, quota_levels
from rose_opt.measure.pairs import (
    OverlapPair,
    branch_slack_ns,
    most_promising,
    predicted_gain_ns,
)
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
    QuotaSearchResult,
    QuotaTrial,
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
