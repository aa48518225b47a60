"""Words for what is wrong with a configuration: which key, what, and what to change.

pydantic knows which rule was broken, but neither the line nor what the user wrote
(`off` arrives as false), and it words the rule for programmers.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specswitch.config_lines import KeyPath
from specswitch.config_model import MAX_COUNT, POLICY_MODELS, Config, GuardConfig

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
}


@dataclass(frozen=True)
class Problem:
    """One thing to change.

    Attributes:
        path: the key it is about; () for the whole configuration.
        message: what is wrong and what to change.
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
        path, kind = _path(detail)
        if detail["type"] == "cross_field":
            yield _two_values(detail["ctx"], path[:-1])
        else:
            yield Problem(path, _message(detail, path, kind, texts), (path,))


def _path(detail: ErrorDetails) -> tuple[KeyPath, str | None]:
    """Path of keys as the user wrote them, and the policy kind that pydantic puts into it."""
    location = tuple(str(part) for part in detail["loc"])
    if detail["type"] == "union_tag_invalid":
        return (*location, "kind"), None
    if len(location) > 1 and location[0] == "policy":
        return ("policy", *location[2:]), location[1]
    return location, None


def _two_values(context: Mapping[str, Any], above: KeyPath) -> Problem:
    def below(dotted: str) -> KeyPath:
        return above + tuple(dotted.split(".")) if dotted else above

    places = tuple(below(place) for place in context["places"])
    return Problem(below(context["about"]), context["message"], places)


def _message(
    detail: ErrorDetails, path: KeyPath, kind: str | None, texts: Mapping[KeyPath, str]
) -> str:
    rule, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    text = texts.get(path)
    if rule == "extra_forbidden":
        return _unknown_key(path, kind)
    if rule == "missing":
        return _missing(path, kind)
    if rule == "union_tag_invalid":
        text = context["tag"] if text is None else text
        return f"expected {_one_of(POLICY_MODELS)}, got {_quote(text)}{_meant(text, POLICY_MODELS)}"
    if rule in ("enum", "literal_error"):
        known = context["expected"].replace("'", "")
        return f"expected {known}, got {_got(value, text)}"
    if rule in _BOUNDS:
        return f"must be {_BOUNDS[rule].format(**context)}, got {_got(value, text)}"
    if rule in _EXPECTED:
        hint = _hint(rule, value, path, kind)
        return f"expected {_EXPECTED[rule]}, got {_got(value, text)}{hint}"
    return f"{detail['msg']}, got {_got(value, text)}"


def _unknown_key(path: KeyPath, kind: str | None) -> str:
    *parents, key = path
    home = _home_of(key, parents)
    if home:
        return f"unknown key here; it belongs {home}"
    known = list(_model_at(parents, kind).model_fields)
    return "unknown key" + (_meant(key, known) or f"; known here: {', '.join(known)}")


def _home_of(key: str, parents: Sequence[str]) -> str | None:
    """Where a key that is not known below `parents` is known, if that is one place only."""
    homes = []
    if key in Config.model_fields:
        homes.append("at the top level")
    if key in GuardConfig.model_fields:
        homes.append("under guard")
    for name, model in POLICY_MODELS.items():
        if key in model.model_fields:
            homes.append(f"to policy kind {name}" if parents == ["policy"] else "under policy")
    return homes[0] if len(homes) == 1 else None


def _missing(path: KeyPath, kind: str | None) -> str:
    *parents, key = path
    described = _model_at(parents, kind).model_fields[key].description or key
    needed_by = f"policy kind {kind} needs it" if kind else "it is needed"
    return f"missing, and {needed_by}: {' '.join(described.split())}"


def _model_at(path: Sequence[str], kind: str | None) -> type[BaseModel]:
    """The model whose keys stand below `path`."""
    model: type[BaseModel] = Config
    for key in path:
        if model is Config and key == "policy" and kind:
            model = POLICY_MODELS[kind]
        else:
            annotation = model.model_fields[key].annotation
            model = next(
                each
                for each in (annotation, *get_args(annotation))
                if isinstance(each, type) and issubclass(each, BaseModel)
            )
    return model


def _one_of(known: Mapping[str, object]) -> str:
    *others, last = known
    return f"{', '.join(others)} or {last}"


def _meant(written: str, known: Mapping[str, object] | list[str]) -> str:
    """A question that names the nearest known word, if one is near."""
    tidy = written.strip().lower().replace("-", "_")
    near = difflib.get_close_matches(tidy, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _quote(text: str) -> str:
    return f"`{text}`" if len(text) <= 40 else f"`{text[:40]}...`"


def _got(value: object, text: str | None) -> str:
    """What was given, as the user wrote it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping of keys"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        read = "true" if value else "false"
        plain = text is None or text.lower() == read
        return read if plain else f"{_quote(text or '')}, which YAML reads as {read}"
    return _quote(str(value) if text is None else text)


def _hint(rule: str, value: object, path: KeyPath, kind: str | None) -> str:
    """What to write instead, where that can be told."""
    if rule in ("model_type", "model_attributes_type"):
        *parents, key = path
        field = _model_at(parents, kind).model_fields.get(key)
        if field and NoneType in get_args(field.annotation):
            return "; write null to leave it out of the decision"
        return "; leave the key out to use the defaults" if value is None else ""
    if not isinstance(value, (str, float)):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if not abs(number) <= MAX_COUNT:  # not a number, or too large to be meant
        return ""
    is_text = ", which is text" if isinstance(value, str) else ""
    if number.is_integer():
        return f"{is_text}; write {int(number)}"
    return f"{is_text}; write {number}" if rule == "float_type" else is_text
