"""docs/paper-map.md names symbols that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "paper-map.md"
WHERE = re.compile(r"(§\d|Fig\. \d|Table \d|Alg\. \d|App\. [A-Z]|beyond the paper)")


class Row(NamedTuple):
    where: str
    word: str
    symbol: str
    note: str


def table(heading: str) -> list[Row]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[2:]]


PARTS = table("Sections, figures, algorithms")
SYMBOLS = table("Symbols")


def resolve(symbol: str) -> Any:
    """Import `package.module:Name.attribute`; a slot or property counts, a missing name does not."""
    module, name = symbol.split(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("row", PARTS + SYMBOLS, ids=lambda row: row.symbol.strip("`"))
def test_symbol_exists(row: Row) -> None:
    assert re.fullmatch(r"`[a-z_.]+:\w+(\.\w+)?`", row.symbol), row
    resolve(row.symbol.strip("`"))


def test_no_symbol_is_invented() -> None:
    with pytest.raises(AttributeError):
        resolve("rose_trace.records:StateAccess.INHERIT")


def test_rows_say_where_the_paper_has_them() -> None:
    assert PARTS
    assert SYMBOLS
    for row in PARTS:
        assert WHERE.match(row.where), row
        assert row.word, row
    assert len({row.symbol for row in PARTS}) == len(PARTS)
