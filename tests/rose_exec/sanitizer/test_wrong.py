"""Each wrong annotation is found, with the node and the state it is about; nothing else is changed by looking."""

from __future__ import annotations

import pytest

from tests.rose_exec.sanitizer.cases import CASES, Case
from tests.rose_exec.sanitizer.verdict import assert_found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_annotation_is_found(case: Case) -> None:
    assert_found(case)
