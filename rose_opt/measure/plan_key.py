"""What a plan runs, as a key: two plans with one key run the same graph in the same way.

Paper: §4.3.3 (RunOrReuse in Alg. 1).
"""

from __future__ import annotations

import hashlib
import json

from rose_opt.plan import Plan

EVIDENCE = frozenset(
    {
        "rose_version",
        "predicted",
        "alternatives",
        "refusals",
        "settings",
        "kept_native",
        "reason",
        "equivalence",
        "notes",
    }
)
"""Fields that tell why a plan was made and change nothing that runs."""


def plan_key(plan: Plan) -> str:
    """Hash of everything in a plan that changes what runs, 32 hexadecimal digits.

    Args:
        plan: The plan.

    Returns:
        The key; fields that a later version adds count, unless they are listed as evidence.
    """
    data = json.loads(plan.to_json())
    running = {name: value for name, value in data.items() if name not in EVIDENCE}
    text = json.dumps(running, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
