"""Validate the fields of dataclasses with pydantic, and describe the first error in one line.

pydantic is imported when something is checked. Models load and train without it; values are then not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import numpy as np

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

T = TypeVar("T")
KINDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "finite_number": "a number",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
}
LIMITS = {
    "greater_than_equal": "use at least {ge:g}",
    "less_than_equal": "use at most {le:g}",
    "less_than": "expected a number below {lt:g}",
    "greater_than": "expected a number larger than {gt:g}",
    "literal_error": "use one of {expected}",
    "dataclass_exact_type": "expected a {class_name}",
}


def checked(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these values. Each must have the type of its field and lie within the limits (ge, gt, le) of
    its metadata; otherwise a ValueError is raised. Scalars of numpy count as numbers."""
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return kind(**_validated(kind, values))


def check_some(kind: type, values: Mapping[str, Any]) -> None:
    """Check the values that are fields of the dataclass, each on its own; a ValueError says what is wrong."""
    _validated(kind, {one.name: values[one.name] for one in fields(kind) if one.name in values}, missing=False)


def _validated(kind: type, values: dict[str, Any], missing: bool = True) -> dict[str, Any]:
    """`missing`: whether a missing field is an error."""
    try:
        from pydantic import ValidationError
    except ModuleNotFoundError:
        return values
    try:
        return dict(model_of(kind).model_validate(values))
    except ValidationError as error:
        if wrong := problem(error, missing=missing):
            raise ValueError(wrong) from None
        return values


@cache
def model_of(kind: Any) -> type[BaseModel]:
    """The pydantic model of a dataclass, also used for its JSON schema."""
    from pydantic import ConfigDict, Field, create_model

    def info(field: Any) -> Any:
        if field.default_factory is not MISSING:
            return Field(default_factory=field.default_factory, **field.metadata)
        return Field(... if field.default is MISSING else field.default, **field.metadata)

    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    hints = get_type_hints(kind)
    made: type[BaseModel] = create_model(  # type: ignore[call-overload]
        kind.__name__, __config__=config, **{one.name: (hints[one.name], info(one)) for one in fields(kind)}
    )
    return made


def problem(error: ValidationError, *, missing: bool = True) -> str:
    """The first error in one line: the value and what was expected. Unless `missing`, missing fields are ignored; ""
    if there is no other error."""
    first = next((one for one in error.errors(include_url=False) if missing or one["type"] != "missing"), None)
    if first is None:
        return ""
    kind, limits, name = first["type"], first.get("ctx", {}), ".".join(str(part) for part in first["loc"])
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name!r} is not known"
    if kind == "value_error":
        return f"{name and f'{name}: '}{limits['error']}"
    if kind == "json_invalid":
        return str(first["msg"])
    rule = LIMITS[kind].format(**limits) if kind in LIMITS else KINDS.get(kind.removesuffix("_type"))
    came = repr(first["input"])
    return f"{name and f'{name}='}{came if len(came) < 80 else f'{came[:77]}...'}; " + (
        str(first["msg"]) if rule is None else rule if kind in LIMITS else f"expected {rule}"
    )
