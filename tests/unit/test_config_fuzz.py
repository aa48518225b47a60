"""Whatever is in the file: a configuration, or a `ConfigError` with a place on each line."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from specswitch.config import Config, ConfigError, resolve

KEYS = [
    *("policy", "guard", "max_speculative_batch", "kind", "waiting", "running", "kv_use"),
    *("mode", "period", "enter", "resume", "dwell_steps", "votes", "max_switches_per_1000_steps"),
    *("on", "", "waitng", "a.b", "0", "ключ", "\x1b[31m", "two\nlines"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.integers(),
    st.floats(),
    st.sampled_from([*KEYS, "queue_depth", "fixed", "periodic", "speculate", "1e3", "010"]),
    st.text(max_size=5),
    st.dates(),
    st.binary(max_size=3),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
MARKS = st.fixed_dictionaries({}, optional={"enter": SCALARS, "resume": SCALARS, "x": SCALARS})
# Close to right: most keys are in their place, so that the deeper rules are reached.
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.fixed_dictionaries(
            {},
            optional={
                "kind": st.sampled_from(["queue_depth", "fixed", "periodic", "x", None, 3]),
                "waiting": st.one_of(MARKS, SCALARS),
                "running": st.one_of(MARKS, SCALARS),
                "kv_use": st.one_of(MARKS, SCALARS),
                "mode": SCALARS,
                "period": SCALARS,
            },
        ),
        "guard": st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=3),
        "max_speculative_batch": SCALARS,
        "extra": VALUES,
    },
)


def outcome(content: bytes, flags: dict[str, object]) -> Config | None:
    """The configuration, or None after an error that keeps its promises."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "w.yaml"
        path.write_bytes(content)
        try:
            return resolve(path, flags).config
        except ConfigError as error:
            problems = error.problems
    assert problems
    for line in problems:
        assert line.isprintable()
        assert line.startswith((f"{path}:", "flag "))
    return None


@given(st.one_of(VALUES, NEARLY))
def test_any_yaml_is_taken_or_refused_with_a_place(data) -> None:
    config = outcome(yaml.safe_dump(data, allow_unicode=True).encode(), {})
    if config is not None:
        assert Config.model_validate(config.model_dump(mode="json")) == config


@given(NEARLY, st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=2))
def test_any_flags_are_taken_or_refused_with_a_place(data, guard_flags) -> None:
    flags = {f"guard.{key}": value for key, value in guard_flags.items()}
    outcome(yaml.safe_dump({"guard": {}, **data}).encode(), flags)


@given(st.binary(max_size=40))
@example(b"\x00")
@example(b"%YAML 3.0\n---\na: 1")
@example(b"? ? ? a")
@example(b"a: !<tag:yaml.org,2002:int> x")
@example(b"!!set {a, b}")
@example(b"!!omap [a: 1]")
@example(b"guard: !!int {votes: 3}")
@example(b"guard: !!null {votes: 3}")
@example(b"guard: {votes: !!bool x}")
@example(b"guard: {votes: !!float _}")
def test_any_bytes_are_taken_or_refused_with_a_place(content) -> None:
    outcome(content, {})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, True, False])
@pytest.mark.parametrize(
    "key",
    [
        *("policy.waiting.enter", "policy.running.resume", "policy.kv_use.enter"),
        *("policy.kv_use.resume", "guard.votes", "max_speculative_batch"),
    ],
)
def test_no_key_takes_booleans_or_numbers_that_are_not_finite(key, number) -> None:
    with pytest.raises(ConfigError):
        resolve(None, {key: number})
