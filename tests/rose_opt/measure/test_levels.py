from __future__ import annotations

import pytest

from rose_opt.measure import QuotaLevel, expected_levels, quota_levels


def test_levels_are_distinct_numbers_of_sms_with_their_smallest_percent() -> None:
    read = {1: 0, 10: 12, 11: 14, 12: 14, 20: 26, 50: 66, 90: 118, 91: 120, 99: 130, 100: 132}
    assert quota_levels(read) == (
        QuotaLevel(1, 12, 10),
        QuotaLevel(2, 14, 11),
        QuotaLevel(3, 26, 20),
        QuotaLevel(4, 66, 50),
        QuotaLevel(5, 118, 90),
        QuotaLevel(6, 120, 91),
        QuotaLevel(7, 130, 99),
        QuotaLevel(8, 132, 100),
    )


@pytest.mark.parametrize(("sms", "count"), [(108, 54), (132, 66)])
def test_number_of_levels_of_a_device(sms: int, count: int) -> None:
    levels = expected_levels(sms)
    assert [level.k for level in levels] == list(range(1, count + 1))
    assert [level.sms for level in levels] == list(range(2, sms + 1, 2))
    assert levels[-1].percent == 100


def test_expected_levels_agree_with_what_a_device_of_132_sms_was_seen_to_give() -> None:
    sms = {level.sms: level.percent for level in expected_levels(132)}
    seen = {100: 132, 90: 118, 80: 104, 50: 66, 25: 32, 20: 26, 10: 12}
    for percent, count in seen.items():
        assert sms[count] <= percent
        assert sms.get(count + 2, 101) > percent


def test_no_level_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a percent that gives at least one SM"):
        quota_levels({1: 0, 2: 0})
