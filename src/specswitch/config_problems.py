"""Words for what is wrong with a configuration: where, which key, what to change.

pydantic knows which rule was broken but not the line, and words it for programmers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specswitch.config_lines import KeyPath
from specswitch.config_model import POLICY_MODELS, Config

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "finite_number": "a finite number",
}


@dataclass(frozen=True)
class Problem:
    """One thing to change.

    Attributes:
        path: the key it is about; () for the whole configuration.
        message: what is wrong and what to change; one line.
        places: keys that could be to blame, likeliest first.
    """

    path: KeyPath
    message: str
    places: tuple[KeyPath, ...]


def explain(error: ValidationError, texts: Mapping[KeyPath, str]) -> Iterator[Problem]:
    """The problems behind a validation error of `Config`.

    Args:
        error: what `Config.model_validate` raised.
        texts: how each value was written in the file, by path of keys.
    """
    for detail in error.errors(include_url=False):
        yield _explain(detail, texts)


def _explain(detail: ErrorDetails, texts: Mapping[KeyPath, str]) -> Problem:
    path, kind = _path(detail)
    rule = detail["type"]
    context = detail.get("ctx", {})
    if rule == "cross_field":
        parent = path[:-1]
        about = parent + _split(context["about"])
        return Problem(
            about, context["message"], tuple(parent + _split(place) for place in context["places"])
        )
    return Problem(path, _message(rule, detail, context, path, kind, texts), (path,))


def _message(
    rule: str,
    detail: ErrorDetails,
    context: Mapping[str, Any],
    path: KeyPath,
    kind: str | None,
    texts: Mapping[KeyPath, str],
) -> str:
    value = detail["input"]
    got = _got(value, texts.get(path))
    if rule == "extra_forbidden":
        return _unknown_key(path, kind)
    if rule == "missing":
        return f"missing; {_why_needed(path, kind)}"
    if rule in ("greater_than_equal", "greater_than", "less_than_equal"):
        bound = {
            "greater_than_equal": "at least {ge}",
            "greater_than": "above {gt}",
            "less_than_equal": "at most {le}",
        }[rule].format(**context)
        return f"must be {bound}, got {got}"
    if rule == "enum":
        return f"must be {context['expected'].replace(chr(39), '')}, got {got}"
    if rule == "union_tag_invalid":
        kind_text = texts.get((*path, "kind"), context["tag"])
        guess = nearest(kind_text, list(POLICY_MODELS))
        meant = f"; did you mean {guess}?" if guess else ""
        return f"kind must be one of {', '.join(POLICY_MODELS)}, got `{kind_text}`{meant}"
    if rule in _EXPECTED:
        return f"expected {_EXPECTED[rule]}, got {got}{_hint(rule, value, path, kind)}"
    return f"{detail['msg']}, got {got}"


def nearest(key: str, known: list[str]) -> str | None:
    """The known key that `key` was most likely meant to be, if any is near."""
    tidy = key.strip().lower().replace("-", "_")
    return next(iter(difflib.get_close_matches(tidy, known, n=1, cutoff=0.5)), None)


def _path(detail: ErrorDetails) -> tuple[KeyPath, str | None]:
    """Path of keys as the user wrote them, and the policy kind that pydantic puts into it."""
    location = tuple(str(part) for part in detail["loc"])
    if len(location) > 1 and location[0] == "policy":
        return ("policy", *location[2:]), location[1]
    return location, None


def _split(dotted: str) -> KeyPath:
    return tuple(dotted.split(".")) if dotted else ()


def _unknown_key(path: KeyPath, kind: str | None) -> str:
    *parents, key = path
    known = list(_model_at(tuple(parents), kind).model_fields)
    elsewhere = _home_of(key, tuple(parents))
    if elsewhere:
        return f"unknown key here; it belongs {elsewhere}"
    guess = nearest(key, known)
    if guess:
        return f"unknown key; did you mean {guess}?"
    return f"unknown key; known here: {', '.join(known)}"


def _home_of(key: str, parents: KeyPath) -> str | None:
    """Where a key that is not known at `parents` is known, if that is one place only."""
    homes = []
    if key in GUARD_FIELDS:
        homes.append("under guard")
    if key in Config.model_fields:
        homes.append("at the top level")
    for name, model in POLICY_MODELS.items():
        if key in model.model_fields and key != "kind":
            homes.append(f"to policy kind {name}" if parents == ("policy",) else "under policy")
    return homes[0] if len(homes) == 1 else None


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model` or `Model | None`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _model_at(path: KeyPath, kind: str | None) -> type[BaseModel]:
    model: type[BaseModel] = Config
    for key in path:
        if model is Config and key == "policy" and kind:
            model = POLICY_MODELS[kind]
            continue
        inner = _nested(model.model_fields[key].annotation)
        assert inner is not None, f"{'.'.join(path)} holds no keys"
        model = inner
    return model


GUARD_FIELDS = _model_at(("guard",), None).model_fields


def _why_needed(path: KeyPath, kind: str | None) -> str:
    *parents, key = path
    what = _model_at(tuple(parents), kind).model_fields[key].description or key
    owner = f"policy kind {kind} needs it" if kind else "it is needed"
    return f"{owner}: {' '.join(what.split())}"


def _got(value: object, text: str | None) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping of keys"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        read = "true" if value else "false"
        if text is None or text.lower() == read:
            return read
        return f"`{text}`, which YAML reads as {read}"
    return f"`{value if text is None else text}`"


def _hint(rule: str, value: object, path: KeyPath, kind: str | None) -> str:
    if rule in ("model_type", "model_attributes_type"):
        *parents, key = path
        annotation = _model_at(tuple(parents), kind).model_fields[key].annotation
        if type(None) in get_args(annotation):
            return "; write null to leave it out of the decision"
        return "; leave the key out to use the defaults" if value is None else ""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        if not math.isfinite(number):
            return ""
        written = int(number) if number.is_integer() else number
        if rule == "float_type" or isinstance(written, int):
            return f", which is text; write {written}"
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    return ""
