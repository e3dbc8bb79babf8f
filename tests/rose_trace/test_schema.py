from __future__ import annotations

import json
from importlib import resources

import pyarrow as pa
import pytest

from rose_trace import schema


@pytest.mark.parametrize("table", sorted(schema.TABLES))
def test_snapshot_matches_the_code(table: str) -> None:
    snapshot = json.loads(
        (resources.files("schemas") / f"{table}.json").read_text(encoding="utf-8")
    )
    assert schema.describe(table) == snapshot, (
        f"schemas/{table}.json: the columns changed. Raise SCHEMA_VERSION and write the snapshot anew."
    )


def test_a_description_tells_types_apart() -> None:
    """Guards the snapshot itself: a change of any nested type must show."""
    kinds = [
        pa.int64(),
        pa.int32(),
        pa.list_(pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.struct([pa.field("a", pa.int64())]),
        pa.struct([pa.field("b", pa.int64())]),
        pa.map_(pa.string(), pa.string()),
        pa.map_(pa.string(), pa.int64()),
    ]
    described = {json.dumps(schema._type(kind)) for kind in kinds}
    assert len(described) == len(kinds)
