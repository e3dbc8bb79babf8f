from __future__ import annotations

import itertools

from rose_opt.report.activity_chart import HIGH, LOW
from rose_opt.report.palette import CONTAINERS, HUES, OTHER, make_palette, short_names


def test_the_longest_leaves_have_colours_of_their_own() -> None:
    leaves = {f"i/n{n}": 1_000 - n for n in range(len(HUES) + 2)}
    palette = make_palette({"i": "iteration", **dict.fromkeys(leaves, "exec")}, leaves)
    assert palette.fills[0] == CONTAINERS["iteration"]
    assert palette.fills[1:] == (*HUES, OTHER, OTHER)
    assert palette.leaves == tuple(range(1, len(leaves) + 1))


def test_colours_differ_from_each_other() -> None:
    used = [*HUES, OTHER, *CONTAINERS.values(), LOW, HIGH]
    assert len(set(used)) == len(used)
    for a, b in itertools.combinations(HUES, 2):
        apart = sum((int(a[n : n + 2], 16) - int(b[n : n + 2], 16)) ** 2 for n in (1, 3, 5))
        assert apart > 50**2, (a, b)


def test_a_path_that_is_the_end_of_another_is_named_whole() -> None:
    assert short_names(["a/b", "c/a/b", "x"]) == ("a/b", "c/a/b", "x")
