from __future__ import annotations

import textwrap
from typing import Any

from rose_trace.fingerprint import fingerprint
from rose_trace.records import Declaration

BASE = """
    def work(x, y=1):
        z = x + y
        return [z for _ in range(3)]
"""


def _made(source: str, tmp_path: Any, name: str = "work") -> Any:
    """A function whose source lies in a file, as in a program."""
    path = tmp_path / f"made_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(source))
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space[name]


def test_layout_comments_docstrings_and_decorators_do_not_count(tmp_path: Any) -> None:
    other = '''
        def same(f): return f

        @same
        def work(x,
                 y = 1):
            """Says something."""
            z = (x + y)  # a comment

            return [z for _ in range(3)]
    '''
    assert fingerprint(_made(BASE, tmp_path)) == fingerprint(_made(other, tmp_path))


def test_code_names_and_declarations_count(tmp_path: Any) -> None:
    changed = [
        BASE,
        BASE.replace("x + y", "x - y"),
        BASE.replace("y=1", "y=2"),
        BASE.replace("range(3)", "range(4)"),
    ]
    seen = {fingerprint(_made(source, tmp_path)) for source in changed}
    seen |= {
        fingerprint(_made(BASE, tmp_path), Declaration(reads=("a",))),
        fingerprint(_made(BASE, tmp_path), Declaration(updates=("a",))),
        fingerprint(_made(BASE.replace("work", "job"), tmp_path, "job")),
    }
    assert len(seen) == 7


def test_without_source_the_bytecode_stands_in() -> None:
    def compiled(source: str) -> Any:
        space: dict[str, Any] = {}
        exec(textwrap.dedent(source), space)
        return space["work"]

    base = fingerprint(compiled(BASE))
    assert base == fingerprint(compiled(BASE))
    assert base != fingerprint(compiled(BASE.replace("x + y", "x - y")))
    assert base != fingerprint(compiled(BASE.replace("range(3)", "range(4)")))
    assert base != fingerprint(
        compiled(BASE.replace("[z for", "[-z for"))
    )  # inside a nested function
    assert len(fingerprint(abs)) == 16
