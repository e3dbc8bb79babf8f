from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rose_opt.optimize import plan
from rose_opt.plan import Plan, PlanError
from rose_opt.settings import PlanSettings
from tests.rose_opt.programs import ppo
from tests.rose_opt.test_optimize import balanced, measured, policy_heavy, took

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "plan.schema.json").read_text())
TWO_CORES = PlanSettings(cores=2.0, max_groups=2)


def example() -> dict[str, Any]:
    return json.loads(plan(balanced(), TWO_CORES).to_json())


@pytest.mark.parametrize(
    "facts", [balanced(), policy_heavy(), measured(ppo(shared_module=True), took(27.0, 70.0))]
)
def test_plans_follow_the_schema(facts: Any) -> None:
    jsonschema.validate(json.loads(plan(facts, TWO_CORES).to_json()), SCHEMA)


def test_the_schema_itself_is_valid_and_names_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["required"] == ["version", *(field.name for field in fields(Plan))]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nodes", 0, "kind"), "task"),
        (("predicted", "gap"), 2),
        (("workers", 0, "kind"), "thread"),
        (("transforms",), ["split-spatial{"]),
        (("surprise",), 1),
    ],
)
def test_the_schema_refuses_what_is_no_plan(path: tuple[Any, ...], value: object) -> None:
    data: Any = example()
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.json: expected a JSON plan, got Expecting value"),
        ("[1]", "plan.json: expected a plan, got other JSON. Make one with 'rose-opt plan'."),
        (
            '{"version": 99}',
            "plan.json: expected plan version 1, got 99. Plan again with this version.",
        ),
        ('{"version": 1}', "plan.json: expected a complete plan, got KeyError"),
    ],
)
def test_what_is_no_plan_gives_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_json(text, "plan.json")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", [{"path": "x"}]),
        ("nodes", 3),
        ("transforms", ["split spatial"]),
        ("rows", []),
        ("predicted", {}),
        ("alternatives", [{"transforms": None}]),
    ],
)
def test_broken_content_gives_one_clear_error(field: str, value: object) -> None:
    data = example()
    data[field] = value
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps(data))


def test_a_missing_file_gives_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected a plan file, got"):
        Plan.load(tmp_path / "none.json")


def test_saving_and_loading_keeps_everything(tmp_path: Path) -> None:
    made = plan(balanced(), TWO_CORES)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
