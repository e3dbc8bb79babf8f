"""What a test says of a checked program: what was found, who is to blame, and that looking changed nothing."""

from __future__ import annotations

from rose_exec.observed import observe, output_digests
from rose_exec.sanitizer.check import Checked, check
from rose_exec.sanitizer.findings import Checks
from rose_trace import generators
from tests.rose_exec.sanitizer.cases import Case
from tests.rose_exec.sanitizer.wrong import Build


def compared(build: Build, settings: Checks | None = None, same: bool = True) -> Checked:
    """Check a program; where `same`, it must compute what it computes natively."""
    before = generators.capture()
    native = observe(build, lambda built, _: built(), 2)
    after = generators.capture()
    generators.restore(before)
    checked = check(build, settings=settings)
    if same:
        found = list(map(output_digests, checked.results))
        assert found == list(map(output_digests, native.results))
        assert generators.changed(after, generators.capture()) == ()
    return checked


def assert_found(case: Case, settings: Checks | None = None) -> None:
    """The finding is there, and nobody else is blamed."""
    checked = compared(case.build, settings, same=not case.copied)
    found = [(f.kind, f.node, f.state) for f in checked.findings]
    assert (case.kind, case.node, case.state) in found
    assert {f.node for f in checked.findings} == {case.node}
    for finding in checked.findings:
        assert str(finding).startswith(f"{finding.node}: expected ")
        assert finding.invocation
        assert finding.annotation.endswith(".")


def assert_right(build: Build, settings: Checks | None = None) -> None:
    """Nothing is found, and every trial told something."""
    checked = compared(build, settings)
    assert checked.findings == ()
    assert checked.notes == {}
