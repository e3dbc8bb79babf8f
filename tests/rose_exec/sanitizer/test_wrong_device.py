"""The programs that run on a device, on the CPU: `tests/gpu` runs them on a GPU."""

from __future__ import annotations

import pytest

from tests.rose_exec.sanitizer.cases import Case
from tests.rose_exec.sanitizer.verdict import assert_found, assert_right
from tests.rose_exec.sanitizer.wrong_device import cases, right


@pytest.mark.parametrize("case", cases("cpu"), ids=lambda case: case.name)
def test_a_wrong_program_is_found(case: Case) -> None:
    assert_found(case)


def test_a_right_program_is_right() -> None:
    assert_right(right("cpu"))
