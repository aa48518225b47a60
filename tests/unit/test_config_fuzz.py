"""Whatever is in the file: a configuration, or a `ConfigError` with a place on each line.

And on a command line: an answer, or those lines, and no traceback.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from specswitch.cli.main import app
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
    assert 1 <= len(problems) <= 21
    for line in problems:
        assert line.isprintable()
        assert len(line) < 6000
        assert line.startswith((f"{path}:", "flag ", "... and "))
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


FRAGMENTS = st.sampled_from(
    [
        *(
            "policy:",
            "guard:",
            "kind: fixed",
            "mode: speculate",
            "waiting:",
            "enter: 4",
            "votes: 3",
        ),
        *(
            "running: null",
            "kv_use: {enter: .5, resume: 0.2}",
            "max_speculative_batch: 8",
            "enter:",
        ),
        *(
            "&a",
            "*a",
            "<<: *a",
            "? x",
            "- 1",
            "!!int x",
            "!x y",
            "|",
            ">",
            "'",
            '"',
            "{",
            "}",
            "[",
            "]",
        ),
        *("---", "...", "%YAML 1.2", "# note", "\t", ":", ": ", "\ufeff", "\x85", "\u2028", "\0"),
    ]
)
LINES = st.lists(
    st.tuples(st.sampled_from(["", "", "  ", "    ", " "]), FRAGMENTS).map("".join), max_size=9
).map("\n".join)
ENCODINGS = st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-7", "cp500"])


@given(LINES, ENCODINGS)
@example("guard: {votes: 3}\n" * 3, "utf-8")
@example("waitng: 1\n" * 2000, "utf-8")
@example("".join(f"key{number}: 1\n" for number in range(2000)), "utf-8")
@example("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]", "utf-8")
@example("policy: " + "{a: " * 300 + "1" + "}" * 300, "utf-8")
@example("guard: {votes: " + "[" * 300 + "]" * 300 + "}", "utf-8")
@example("guard: {votes: " + "9" * 5000 + "}", "utf-8")
@example("guard: {votes: 0." + "9" * 50_000 + "}", "utf-8")
def test_any_lines_in_any_encoding_are_taken_or_refused_with_a_place(lines, encoding) -> None:
    outcome(lines.encode(encoding, "replace"), {})


WORDS = st.one_of(
    st.text(max_size=12),
    st.tuples(
        st.sampled_from(
            ["guard.votes", "policy.kind", "policy", "event_log.path", "safe_mode", ""]
        ),
        st.one_of(LINES, st.text(max_size=6), st.floats().map(str)),
    ).map("=".join),
)


@settings(max_examples=50)
@given(st.lists(WORDS, max_size=3), st.booleans())
@example(["event_log.path=[/x]"], False)
@example(["event_log.path='[/x]'"], False)
@example(["event_log.path='\udc80'"], True)
@example(["guard.votes=" + "[" * 5000], True)
def test_any_words_after_set_are_shown_or_refused(words, as_json) -> None:
    flags = [part for word in words for part in ("--set", word)]
    result = CliRunner().invoke(app, ["config", "show", *flags, *(["--json"] if as_json else [])])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2)
    assert (result.exit_code == 0) == (not result.stderr)
    if result.exit_code == 1:
        assert all(line.startswith("flag ") for line in result.stderr.splitlines())


def test_only_the_first_of_many_problems_are_told() -> None:
    keys = {f"key{number}": 1 for number in range(500)}
    with pytest.raises(ConfigError) as caught:
        resolve(None, keys)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "... and 480 more problems"
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


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
