"""Values from outside: brought to their types, or refused in one line; without pydantic taken as they are."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from sparsepgd.validation import check_some, checked, model_of, problem
from sparsepgd.zoo import Card, Figure


@dataclass(frozen=True)
class Part:
    size: int


@dataclass(frozen=True)
class Whole:
    count: int = field(metadata={"ge": 1})
    share: float = field(default=0.5, metadata={"ge": 0, "le": 1})
    rate: float = field(default=1.0, metadata={"gt": 0})
    how: Literal["fast", "slow"] = "fast"
    sure: bool | None = None
    words: tuple[str, ...] = ()
    part: Part = Part(1)


def test_what_has_no_name_is_told_without_one() -> None:
    with pytest.raises(ValidationError) as error:
        model_of(Whole).model_validate_json("[]")
    assert problem(error.value).startswith("[]; expected")


def test_values_are_taken_and_numbers_of_numpy_are_numbers() -> None:
    made = checked(Whole, {"count": np.int64(3), "share": np.float32(0.25), "rate": 2})
    assert made == Whole(3, 0.25, 2.0)
    assert (type(made.count), type(made.share), type(made.rate)) == (int, float, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "count is missing"),
        ({"count": 0}, "count=0; use at least 1"),
        ({"count": 2.5}, "count=2.5; expected an integer"),
        ({"count": True}, "count=True; expected an integer"),
        ({"count": 1, "share": 1.5}, "share=1.5; use at most 1"),
        ({"count": 1, "share": float("nan")}, "share=nan; expected a number"),
        ({"count": 1, "rate": 0}, "rate=0; expected a number larger than 0"),
        ({"count": 1, "rate": None}, "rate=None; expected a number"),
        ({"count": 1, "how": "badly"}, "how='badly'; use one of 'fast' or 'slow'"),
        ({"count": 1, "sure": 1}, "sure=1; expected true or false"),
        ({"count": 1, "words": ("a", 2)}, "words.1=2; expected text"),
        ({"count": 1, "words": "a"}, "words='a'; expected a list"),
        ({"count": 1, "part": 3}, "part=3; expected a Part"),
        ({"count": 1, "more": 3}, "'more' is not known"),
        ({"count": "x" * 200}, f"count='{'x' * 76}...; expected an integer"),
    ],
)
def test_what_is_wrong_is_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        checked(Whole, values)
    assert str(error.value) == message


def test_some_values_are_checked_each_by_itself() -> None:
    check_some(Whole, {"share": 0.1, "unknown": 3})
    with pytest.raises(ValueError, match="share=7; use at most 1"):
        check_some(Whole, {"share": 7})


def test_without_pydantic_values_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert checked(Whole, {"count": -1}) == Whole(-1)
    check_some(Whole, {"share": 7})
    with pytest.raises(TypeError, match="more"):
        checked(Whole, {"count": 1, "more": 3})


def test_cards_have_a_json_schema() -> None:
    schema = model_of(Card).model_json_schema()
    assert schema["properties"]["clean_accuracy"] == {
        "maximum": 1,
        "minimum": 0,
        "title": "Clean Accuracy",
        "type": "number",
    }
    assert set(schema["$defs"]["Figure"]["properties"]) == set(Figure.__dataclass_fields__)
