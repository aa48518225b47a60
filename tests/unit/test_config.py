"""Configurations that are right: values, defaults, flags, origins, schema, the ready files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from specswitch.config import (
    Config,
    FixedConfig,
    GuardConfig,
    KvUseMarks,
    Origin,
    PeriodicConfig,
    QueueDepthConfig,
    RunningMarks,
    WaitingMarks,
    json_schema,
    load_config,
    resolve,
)
from specswitch.control import LoadSample, Mode, build_controller

READY = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

FULL = """\
policy:
  kind: queue_depth
  waiting: {enter: 20, resume: 3}
  running: {enter: 30, resume: 10}
  kv_use: {enter: 0.8, resume: 0.5}
guard: {dwell_steps: 8, votes: 2, max_switches_per_1000_steps: 40}
max_speculative_batch: 32
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "worker.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- files


def test_every_value_of_a_file_arrives(write) -> None:
    assert load_config(write(FULL)) == Config(
        policy=QueueDepthConfig(
            waiting=WaitingMarks(enter=20, resume=3),
            running=RunningMarks(enter=30, resume=10),
            kv_use=KvUseMarks(enter=0.8, resume=0.5),
        ),
        guard=GuardConfig(dwell_steps=8, votes=2, max_switches_per_1000_steps=40),
        max_speculative_batch=32,
    )


def test_no_file_means_the_defaults() -> None:
    assert load_config(None) == Config()


def test_keys_that_are_left_out_keep_their_defaults(write) -> None:
    config = load_config(write("guard: {votes: 7}\npolicy: {waiting: {enter: 9}}\n"))
    assert config.guard == GuardConfig(votes=7)
    assert config.policy == QueueDepthConfig(waiting=WaitingMarks(enter=9))


def test_fixed_and_periodic_policies(write) -> None:
    fixed = load_config(write("policy: {kind: fixed, mode: target_only}"))
    assert fixed.policy == FixedConfig(kind="fixed", mode=Mode.TARGET_ONLY)
    periodic = load_config(write("policy: {kind: periodic, period: 5}"))
    assert periodic.policy == PeriodicConfig(kind="periodic", period=5)


def test_null_switches_a_quantity_off(write) -> None:
    config = load_config(write("policy: {kind: queue_depth, running: null, kv_use: }"))
    assert isinstance(config.policy, QueueDepthConfig)
    assert config.policy.running is None
    assert config.policy.kv_use is None


@pytest.mark.parametrize("number", ["1", "1.0", ".9", "9.0e-1", "0.9"])
def test_kv_use_takes_whole_numbers_and_decimals(write, number) -> None:
    config = load_config(write(f"policy: {{kv_use: {{enter: {number}}}}}"))
    assert config.policy.kv_use.enter == float(number)


def test_byte_order_mark_and_document_start_are_read_over(tmp_path) -> None:
    path = tmp_path / "worker.yaml"
    path.write_bytes(b"\xef\xbb\xbf---\nmax_speculative_batch: 16\n")
    assert load_config(str(path)).max_speculative_batch == 16


# --- running marks follow the limit


@pytest.mark.parametrize(
    ("limit", "enter", "resume"), [(64, 65, 48), (32, 33, 24), (2, 3, 1), (1, 2, 0)]
)
def test_running_marks_that_are_left_out_follow_the_batch_limit(limit, enter, resume) -> None:
    config = Config.model_validate({"max_speculative_batch": limit})
    assert config.policy == QueueDepthConfig(running=RunningMarks(enter=enter, resume=resume))


def test_running_resume_follows_an_enter_mark_that_is_given() -> None:
    config = Config.model_validate({"policy": {"running": {"enter": 21}}})
    assert config.policy.running == RunningMarks(enter=21, resume=15)


def test_running_enter_follows_the_limit_when_only_resume_is_given() -> None:
    config = Config.model_validate(
        {"policy": {"running": {"resume": 5}}, "max_speculative_batch": 9}
    )
    assert config.policy.running == RunningMarks(enter=10, resume=5)


def test_models_that_are_built_in_code_follow_the_same_rule() -> None:
    config = Config(policy=QueueDepthConfig(kv_use=None), max_speculative_batch=32)
    assert config.policy == QueueDepthConfig(running=RunningMarks(enter=33, resume=24), kv_use=None)


# --- frozen, and the way to other processes


def test_configuration_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.max_speculative_batch = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.guard.votes = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(policy=QueueDepthConfig(running=None, kv_use=None)),
        Config(policy=FixedConfig(kind="fixed", mode=Mode.TARGET_ONLY)),
        Config(policy=PeriodicConfig(kind="periodic", period=3), max_speculative_batch=5),
    ],
    ids=["default", "nulls", "fixed", "periodic"],
)
def test_plain_values_build_the_same_configuration_again(config) -> None:
    plain = json.loads(json.dumps(config.model_dump(mode="json")))
    assert Config.model_validate(plain) == config


# --- flags and origins


def test_flag_is_put_over_the_file(write) -> None:
    resolved = resolve(write(FULL), {"max_speculative_batch": 29, "policy.waiting.enter": 6})
    assert resolved.config.max_speculative_batch == 29
    assert resolved.config.policy.waiting == WaitingMarks(enter=6, resume=3)


def test_flags_work_without_a_file() -> None:
    config = resolve(None, {"guard.votes": 9, "policy.waiting.resume": 1}).config
    assert config.guard.votes == 9
    assert config.policy.waiting == WaitingMarks(enter=16, resume=1)


def test_origins_name_default_file_and_flag(write) -> None:
    path = write("policy:\n  waiting: {enter: 20}\n  kv_use: null\nguard: {votes: 2}\n")
    resolved = resolve(path, {"guard.votes": 4, "max_speculative_batch": 32})
    assert {key: (value, str(origin)) for key, value, origin in resolved.values()} == {
        "policy.kind": ("queue_depth", "default"),
        "policy.waiting.enter": (20, "file"),
        "policy.waiting.resume": (2, "default"),
        "policy.running.enter": (33, "default"),
        "policy.running.resume": (24, "default"),
        "policy.kv_use": (None, "file"),
        "guard.dwell_steps": (32, "default"),
        "guard.votes": (4, "flag"),
        "guard.max_switches_per_1000_steps": (20, "default"),
        "draft_sync.mode": ("deferred", "default"),
        "draft_sync.window": (64, "default"),
        "max_speculative_batch": (32, "flag"),
        "exactness": ("strict", "default"),
        "safe_mode": ("target_only", "default"),
        "event_log.path": (None, "default"),
        "event_log.max_bytes": (10_000_000, "default"),
        "event_log.backups": (4, "default"),
        "event_log.sample_steps": (100, "default"),
    }


def test_flag_with_a_mapping_is_the_origin_of_all_of_it(write) -> None:
    resolved = resolve(write(FULL), {"policy.waiting": {"enter": 5, "resume": 4}})
    assert resolved.origins["policy.waiting.enter"] is Origin.FLAG
    assert resolved.origins["policy.waiting.resume"] is Origin.FLAG
    assert resolved.origins["policy.running.enter"] is Origin.FILE


def test_flag_can_switch_a_quantity_off_and_on_again(write) -> None:
    assert resolve(write(FULL), {"policy.kv_use": None}).config.policy.kv_use is None
    path = write("policy: {kind: queue_depth, kv_use: null}")
    config = resolve(path, {"policy.kv_use.enter": 0.8}).config
    assert config.policy.kv_use == KvUseMarks(enter=0.8, resume=0.75)


@pytest.mark.parametrize("order", [1, -1])
def test_flag_that_changes_the_kind_starts_the_policy_afresh(write, order) -> None:
    flags = {"policy.kind": "fixed", "policy.mode": "speculate"}
    resolved = resolve(write(FULL), dict(list(flags.items())[::order]))
    assert resolved.config.policy == FixedConfig(kind="fixed", mode=Mode.SPECULATE)
    assert resolved.config.guard.votes == 2
    assert resolved.origins["policy.mode"] is Origin.FLAG


def test_flag_with_the_kind_that_the_file_has_keeps_the_marks(write) -> None:
    config = resolve(write(FULL), {"policy.kind": "queue_depth"}).config
    assert config.policy.waiting == WaitingMarks(enter=20, resume=3)


def test_flag_heals_what_it_replaces(write) -> None:
    path = write("guard: {votes: yes}\nmax_speculative_batch: 010\n")
    flags = {"guard.votes": 2, "max_speculative_batch": 10}
    assert resolve(path, flags).config.max_speculative_batch == 10


def test_flags_are_not_changed() -> None:
    flags = {"policy.waiting": {"enter": 5, "resume": 4}, "policy.waiting.enter": 6}
    resolve(None, flags)
    assert flags == {"policy.waiting": {"enter": 5, "resume": 4}, "policy.waiting.enter": 6}


# --- schema


def keys_of(schema: dict, definitions: dict) -> list[tuple[str, dict]]:
    found = []
    for name, key in schema.get("properties", {}).items():
        target = definitions.get(key.get("$ref", "").rpartition("/")[2], {})
        found.append((f"{schema['title']}.{name}", {**target, **key}))
    return found


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    definitions = schema["$defs"]
    keys = [key for part in (schema, *definitions.values()) for key in keys_of(part, definitions)]
    assert len(keys) > 15
    assert [name for name, key in keys if not key.get("description")] == []


def test_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_schema_accepts_the_ready_files(path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


@pytest.mark.parametrize(
    "wrong",
    [
        "wating: 3",
        "max_speculative_batch: 0",
        "max_speculative_batch: yes",
        "guard: {votes: 1.5}",
        "policy: {kind: fixed}",
        "policy: {kind: fixed, mode: off}",
        "policy: {kind: queue_depth, period: 3}",
        "policy: {kv_use: {enter: 90}}",
    ],
)
def test_schema_refuses_what_the_loader_refuses(wrong) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(wrong), json_schema())


# --- the ready files


def test_ready_files_are_all_there() -> None:
    names = {path.stem for path in READY}
    assert names == {"default", "latency", "throughput", "cpu-demo", "glm5-nvfp4-8xb200"}


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_ready_file_loads_and_explains_every_key(path) -> None:
    load_config(path)
    lines = path.read_text().splitlines()
    for before, line in pairwise(lines):
        if line.strip().startswith(("waiting", "running", "kv_use", "dwell", "max_spec")):
            assert before.strip().startswith("#"), f"no reason above: {line}"


def test_default_file_holds_the_defaults() -> None:
    assert load_config(READY[[path.stem for path in READY].index("default")]) == Config()


def test_demo_file_switches_both_ways_within_some_steps_on_a_server_with_8_places() -> None:
    controller = build_controller(load_config(READY[0].with_name("cpu-demo.yaml")))
    step = 0

    def steps_until(mode: Mode, waiting: int, running: int) -> int:
        nonlocal step
        for taken in range(1, 30):
            step += 1
            if controller.decide(LoadSample(step, waiting, running, 0.3)).mode is mode:
                return taken
        raise AssertionError(f"no switch to {mode}")

    assert steps_until(Mode.TARGET_ONLY, waiting=10, running=8) <= 5
    assert steps_until(Mode.SPECULATE, waiting=0, running=1) <= 20


@pytest.mark.parametrize("written", ["off", "'off'", "false"])
def test_exactness_can_be_off_however_yaml_reads_it(write, written) -> None:
    assert load_config(write(f"exactness: {written}\n")).exactness == "off"


@pytest.mark.parametrize("written", ["off", "'off'", "false"])
def test_draft_sync_off_may_be_written_bare_although_yaml_reads_it_as_false(write, written) -> None:
    assert load_config(write(f"draft_sync: {{mode: {written}}}\n")).draft_sync.mode == "off"
