"""Configurations that are wrong: each ends in lines that say where and what to change."""

from __future__ import annotations

import os
import pickle
import re
import socket
from pathlib import Path

import pytest

from specswitch.config import ConfigError, load_config, resolve


@pytest.fixture
def refuse(tmp_path, monkeypatch):
    """The lines that a file with this text is refused with; the file is called `w.yaml`."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str | bytes, **flags: object) -> list[str]:
        with open("w.yaml", "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigError) as caught:
            resolve("w.yaml", {key.replace("__", "."): value for key, value in flags.items()})
        lines = str(caught.value).split("\n")
        assert lines == list(caught.value.problems)
        return lines

    return refuse


# --- the file itself


def test_missing_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read it: No such file"):
        load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("name", ["", Path("")])
def test_empty_name(name) -> None:
    with pytest.raises(ConfigError, match=r"^no file named"):
        load_config(name)


def test_named_pipe_is_refused_rather_than_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "w.yaml")
    with pytest.raises(ConfigError, match=r"w\.yaml: a named pipe \(FIFO\), not a file"):
        load_config(tmp_path / "w.yaml")


def test_socket(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # A socket's name has a short limit.
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("w.yaml")
        with pytest.raises(ConfigError, match=r"w\.yaml: a socket, not a file"):
            load_config("w.yaml")


def test_directory(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot read it: Is a directory"):
        load_config(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_file_without_permission(tmp_path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("guard: {votes: 2}")
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot read it: Permission denied"):
        load_config(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_name_that_no_file_can_have(name) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        load_config(name)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "w.yaml: empty; write at least one key, or name no file to use the defaults"),
        ("# only a comment\n", "w.yaml: empty; write"),
        ("---\n...\n", "w.yaml: empty; write"),
        ("null\n", "w.yaml: empty; write"),
        ("\n- a\n- b\n", "w.yaml:2: expected `key: value` lines at the top level"),
        ("just text\n", "w.yaml:1: expected `key: value` lines"),
        (b"guard:\n  votes: \xff\n", "w.yaml:2: not UTF-8 text; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "w.yaml:1: not UTF-8 text"),
        ("guard:\n  votes: [1\nx: 2\n", "w.yaml:3: not valid YAML: while parsing a flow seq"),
        ("guard:\n\tvotes: 1\n", "w.yaml:2: not valid YAML: while scanning"),
        ("a: 1\n---\nb: 2\n", "w.yaml:2: not valid YAML: expected a single document"),
        ("a: \x01\n", "w.yaml:1: not valid YAML: character #x0001 is not allowed"),
        ("[" * 60_000, "w.yaml: not valid YAML: nested too deeply"),
        ("a: &x 1\nb: *x\n", "w.yaml:2: aliases (`*name`) are not supported; write the value out"),
        ("#" * 2_000_000, "w.yaml: larger than 65536 bytes"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, (str, bytes)) else None,
)
def test_file_that_is_no_configuration_gets_one_clear_line(refuse, text, line) -> None:
    (only,) = refuse(text)
    assert only.startswith(line)


# --- keys


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("polcy: {}", "w.yaml:1: polcy: unknown key; did you mean policy?"),
        ("\nmax-speculative-batch: 3", "w.yaml:2: max-speculative-batch: unknown key; did you mean "
         "max_speculative_batch?"),
        ("policy:\n  kind: queue_depth\n  wating: {}", "w.yaml:3: policy.wating: unknown key; did "
         "you mean waiting?"),
        ("policy:\n  waiting:\n    enter: 9\n    resum: 1", "w.yaml:4: policy.waiting.resum: "
         "unknown key; did you mean resume?"),
        ("policy: {running: {Enter: 3}}", "w.yaml:1: policy.running.Enter: unknown key; did you "
         "mean enter?"),
        ("guard: {dwell: 3}", "w.yaml:1: guard.dwell: unknown key; did you mean dwell_steps?"),
        ("guard: {xyz: 3}", "w.yaml:1: guard.xyz: unknown key; known here: dwell_steps, votes, "
         "max_switches_per_1000_steps"),
        ("votes: 3", "w.yaml:1: votes: unknown key here; it belongs under guard"),
        ("guard: {max_speculative_batch: 3}", "w.yaml:1: guard.max_speculative_batch: unknown key "
         "here; it belongs at the top level"),
        ("waiting: {enter: 3}", "w.yaml:1: waiting: unknown key here; it belongs under policy"),
        ("policy:\n  period: 3", "w.yaml:2: policy.period: unknown key here; it belongs to policy "
         "kind periodic"),
        ("on: 3", "w.yaml:1: on: unknown key; known here: policy, guard, draft_sync, "
         "max_speculative_batch"),
        ("draft_sync: {mode: never}", "w.yaml:1: draft_sync.mode: expected deferred, every_step or "
         "off, got `never`"),
        ("exactness: exact", "w.yaml:1: exactness: expected strict, warn or off, got `exact`"),
        ("exactness: true", "w.yaml:1: exactness: expected strict, warn or off, got true"),
        ("draft_sync: {mode: on}", "w.yaml:1: draft_sync.mode: expected deferred, every_step or "
         "off, got `on`, which YAML reads as true"),
        ("draft_sync: {window: 4}", "w.yaml:1: draft_sync.window: "),
        ("<<: {guard: 1}", "w.yaml:1: <<: unknown key; known here"),
        ("? [a]\n: 1", "w.yaml:1: a key must be plain text"),
        ('"a\\nb\\e[31m": 1', "w.yaml:1: a\\nb\\x1b[31m: unknown key"),
    ],
)  # fmt: skip
def test_unknown_key_is_refused_with_what_it_may_have_meant(refuse, text, line) -> None:
    (only,) = refuse(text)
    assert only.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("guard:\n  votes: 1\n  votes: 2", "w.yaml:3: guard.votes: given twice, first on line 2; "
         "remove one"),
        ("guard: {}\nguard: {}", "w.yaml:2: guard: given twice, first on line 1; remove one"),
        ("'guard': {}\n\"guard\": {}", "w.yaml:2: guard: given twice, first on line 1"),
    ],
)  # fmt: skip
def test_duplicate_key_is_refused(refuse, text, line) -> None:
    (only,) = refuse(text)
    assert only.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("policy:\n  kind: fixed", "w.yaml:1: policy.mode: missing, and policy kind fixed needs "
         "it: The mode: speculate or target_only."),
        ("policy:\n  kind: periodic", "w.yaml:1: policy.period: missing, and policy kind periodic "
         "needs it: Decode steps in each mode before the other one; starts with speculate."),
    ],
)  # fmt: skip
def test_missing_key_is_named_and_described(refuse, text, line) -> None:
    assert refuse(text) == [line]


# --- values


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("true", "expected a whole number, got true"),
        ("on", "expected a whole number, got `on`, which YAML reads as true"),
        ("No", "expected a whole number, got `No`, which YAML reads as false"),
        ("1e3", "expected a whole number, got `1e3`, which is text; write 1000"),
        ("'16'", "expected a whole number, got `16`, which is text; write 16"),
        ("sixteen", "expected a whole number, got `sixteen`"),
        ("16.0", "expected a whole number, got `16.0`; write 16"),
        ("16.5", "expected a whole number, got `16.5`"),
        (".nan", "expected a whole number, got `.nan`"),
        (".inf", "expected a whole number, got `.inf`"),
        ("", "expected a whole number, got nothing (null)"),
        ("[3]", "expected a whole number, got a list"),
        ("{enter: 3}", "expected a whole number, got a mapping of keys"),
        ("0", "must be at least 1, got `0`"),
        ("-3", "must be at least 1, got `-3`"),
        ("1000001", "must be at most 1000000, got `1000001`"),
        ("010", "write `010` as a plain decimal number"),
        ("0x10", "write `0x10` as a plain decimal number"),
        ("1:30", "write `1:30` as a plain decimal number"),
        ("9" * 5000, "cannot be read as a !!int value"),
        ("2024-01-01", "`2024-01-01` is a !!timestamp value, which no key takes"),
        ("!!python/name:os.system", "is a !!python/name:os.system value, which no key takes"),
        ("x" * 50, "expected a whole number, got `" + "x" * 40 + "...`"),
    ],
)
def test_wrong_count_is_shown_as_it_was_written(refuse, value, end) -> None:
    (only,) = refuse(f"# first\nmax_speculative_batch: {value}\n")
    assert only.startswith("w.yaml:2: max_speculative_batch: ")
    assert only.endswith(end)


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("true", "expected a number, got true"),
        ("8e-1", "expected a number, got `8e-1`, which is text; write 0.8"),
        (".nan", "expected a finite number, got `.nan`"),
        (".inf", "expected a finite number, got `.inf`"),
        ("90", "must be at most 1.0, got `90`"),
        ("0", "must be above 0.0, got `0`"),
        ("-0.1", "got `-0.1`"),
        ("1:30.5", "write `1:30.5` as a plain decimal number"),
    ],
)
def test_wrong_fraction_is_shown_as_it_was_written(refuse, value, end) -> None:
    (only,) = refuse(f"policy:\n  kv_use:\n    enter: {value}\n    resume: 0.0\n")
    assert only.startswith("w.yaml:3: policy.kv_use.enter: ")
    assert only.endswith(end)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("policy: {kind: queue_deph}", "w.yaml:1: policy.kind: expected queue_depth, fixed or "
         "periodic, got `queue_deph`; did you mean queue_depth?"),
        ("policy:\n  kind: off", "w.yaml:2: policy.kind: expected queue_depth, fixed or periodic, "
         "got `off`"),
        ("policy:\n  kind:", "w.yaml:2: policy.kind: expected queue_depth, fixed or periodic"),
        ("policy: {kind: [a]}", "w.yaml:1: policy.kind: expected queue_depth, fixed or periodic"),
        ("policy:\n  kind: fixed\n  mode: off", "w.yaml:3: policy.mode: expected speculate or "
         "target_only, got `off`, which YAML reads as false"),
        ("policy: {kind: fixed, mode: SPECULATE}", "w.yaml:1: policy.mode: expected speculate or "
         "target_only, got `SPECULATE`"),
        ("policy: {kv_use: off}", "w.yaml:1: policy.kv_use: expected a mapping of keys, got `off`, "
         "which YAML reads as false; write null to leave it out of the decision"),
        ("policy: {waiting: 5}", "w.yaml:1: policy.waiting: expected a mapping of keys, got `5`"),
        ("policy: fixed", "w.yaml:1: policy: expected a mapping of keys, got `fixed`"),
        ("policy:", "w.yaml:1: policy: expected a mapping of keys, got nothing (null); leave the "
         "key out to use the defaults"),
        ("guard: [1]", "w.yaml:1: guard: expected a mapping of keys, got a list"),
        ("guard:", "w.yaml:1: guard: expected a mapping of keys, got nothing (null); leave the key "
         "out to use the defaults"),
        ("guard: {max_switches_per_1000_steps: 1}", "w.yaml:1: guard.max_switches_per_1000_steps: "
         "must be at least 2, got `1`"),
        ("policy: {kind: periodic, period: 0}", "w.yaml:1: policy.period: must be at least 1, got "
         "`0`"),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_at_its_line(refuse, text, line) -> None:
    (only,) = refuse(text)
    assert only.startswith(line)


# --- values that do not fit together


@pytest.mark.parametrize("quantity", ["waiting", "running", "kv_use"])
@pytest.mark.parametrize("resume", [0.5, 0.6])
def test_resume_mark_must_be_below_the_enter_mark(refuse, quantity, resume) -> None:
    enter = 0.5
    if quantity != "kv_use":
        enter, resume = 5, int(resume * 10)
    (only,) = refuse(f"policy:\n  {quantity}:\n    enter: {enter}\n    resume: {resume}\n")
    assert only == (
        f"w.yaml:4: policy.{quantity}: resume ({resume}) must be below enter ({enter}), or the "
        "mode would flip at one load; lower resume or raise enter"
    )


def test_enter_mark_at_the_default_resume_mark_is_blamed_itself(refuse) -> None:
    (only,) = refuse("policy:\n  waiting:\n    enter: 2\n")
    assert only.startswith(
        "w.yaml:3: policy.waiting: resume (2, the default) must be below enter (2)"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("max_speculative_batch: 32\npolicy:\n  running:\n    enter: 34\n    resume: 1", 4),
        ("policy:\n  running: {enter: 34, resume: 1}\nmax_speculative_batch: 32", 2),
    ],
)
def test_running_mark_beyond_the_batch_limit_is_refused(refuse, text, place) -> None:
    assert refuse(text) == [
        f"w.yaml:{place}: policy.running.enter (34) is never reached: a batch above "
        "max_speculative_batch (32) is always target_only; lower enter to 33 or less, or raise "
        "max_speculative_batch to 33 or more"
    ]


def test_running_mark_just_above_the_batch_limit_is_fine(tmp_path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("policy: {running: {enter: 33, resume: 1}}\nmax_speculative_batch: 32")
    load_config(path)


def test_running_mark_beyond_the_default_batch_limit_is_refused(refuse) -> None:
    (only,) = refuse("policy: {running: {enter: 100, resume: 50}}")
    assert only.startswith("w.yaml:1: policy.running.enter (100) is never reached")


# --- several at once


def test_all_problems_are_listed_in_the_order_of_the_file(refuse) -> None:
    lines = refuse(
        "guard:\n"
        "  votes: true\n"
        "  dwel: 3\n"
        "policy:\n"
        "  kind: queue_depth\n"
        "  waiting: {enter: 2, resume: 5}\n"
        "  kv_use: {enter: .nan}\n"
        "  kv_use: null\n"
        "max_speculative_batch: 0x10\n"
    )
    assert [re.match(r"w\.yaml:(\d+): (\S+):", line).groups() for line in lines] == [
        ("2", "guard.votes"),
        ("3", "guard.dwel"),
        ("6", "policy.waiting"),
        ("7", "policy.kv_use.enter"),
        ("8", "policy.kv_use"),
        ("9", "max_speculative_batch"),
    ]


# --- flags


def test_flag_is_blamed_for_its_own_value(refuse) -> None:
    assert refuse("guard: {votes: 2}", guard__votes=True) == [
        "flag guard.votes: expected a whole number, got true"
    ]


def test_flag_is_blamed_for_what_it_makes_of_the_file(refuse) -> None:
    text = "policy:\n  running: {enter: 65, resume: 48}\n"
    (only,) = refuse(text, max_speculative_batch=32)
    assert only.startswith("flag max_speculative_batch: policy.running.enter (65) is never reached")
    (only,) = refuse("policy: {waiting: {enter: 20, resume: 9}}", policy__waiting__enter=5)
    assert only.startswith("flag policy.waiting: resume (9) must be below")


def test_file_and_flags_are_blamed_side_by_side(refuse) -> None:
    lines = refuse("guard: {votes: 0}", max_speculative_batch=0)
    assert lines == [
        "w.yaml:1: guard.votes: must be at least 1, got `0`",
        "flag max_speculative_batch: must be at least 1, got `0`",
    ]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("max_batch", "flag max_batch: unknown key; did you mean max_speculative_batch?"),
        ("guard.vote", "flag guard.vote: unknown key; did you mean votes?"),
        ("guard.votes.x", "flag guard.votes: expected a whole number, got a mapping"),
        ("", "flag : unknown key; known here"),
        ("policy..x", "flag policy.: unknown key"),
        ("a.b.c", "flag a: unknown key"),
    ],
)
def test_unknown_flag_is_refused(key, line) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, {key: 3})
    assert str(caught.value).startswith(line)


def test_flag_that_changes_the_kind_is_blamed_for_what_the_kind_needs(refuse) -> None:
    (only,) = refuse("policy: {kind: queue_depth, waiting: {enter: 9}}", policy__kind="fixed")
    assert only.startswith("flag policy.mode: missing, and policy kind fixed needs it")


@pytest.mark.parametrize("value", [object(), b"3", (1, 2), {1: 2}, float("nan"), 10**400])
def test_flag_of_any_type_is_refused_and_never_crashes(value) -> None:
    with pytest.raises(ConfigError, match=r"flag guard\.votes"):
        resolve(None, {"guard.votes": value})


# --- the error


def test_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("one", "two")))
    assert (str(error), error.problems) == ("one\ntwo", ("one", "two"))


def test_error_is_a_value_error_with_one_line_per_problem() -> None:
    assert issubclass(ConfigError, ValueError)
    assert ConfigError("a\rb\x1b[0m").problems == ("a\\rb\\x1b[0m",)
