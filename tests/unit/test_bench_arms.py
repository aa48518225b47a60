"""An arm differs from the others in what it is named for, and in nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.arms import ARMS, WITH_PLUGIN, Arm, ArmFactory
from benchmarks.breakeven import H200_8B
from benchmarks.errors import BenchmarkError
from benchmarks.setup import DEFAULT_DRAFT, DEFAULT_MODEL, Setup
from benchmarks.workload import Workload, read_texts


def setup(**change: object) -> Setup:
    values = {
        "model": str(DEFAULT_MODEL),
        "draft_model": str(DEFAULT_DRAFT),
        "weights": "dummy",
        "simulated": True,
        "acceptance": 1.9,
        "steps": 3,
        "tp": 1,
        "device": "cuda",
        "attention_backend": "fa3",
        "max_running": 256,
        "decode_log_interval": 10,
        "input_len": 64,
        "output_len": 256,
        "prompts": None,
        "seed": 1,
    }
    return Setup(**{**values, **change})  # type: ignore[arg-type]


def make(name: str, **change: object) -> Arm:
    return ArmFactory(setup(**change), H200_8B[3]).make(name)


def test_all_arms_share_the_flags_of_the_baseline() -> None:
    baseline = make("no_spec").args
    for name in ARMS:
        assert make(name).args[: len(baseline)] == baseline


def test_only_baselines_run_without_the_plugin() -> None:
    for name in ARMS:
        assert ("SGLANG_PLUGINS" in make(name).env) == (name not in WITH_PLUGIN)
        assert (make(name).config is None) == (name not in WITH_PLUGIN)


def test_the_static_arm_and_the_forced_ones_have_the_same_flags() -> None:
    flags = {make(name).args for name in ("static", "specswitch", *WITH_PLUGIN)}
    assert len(flags) == 1


def test_every_speculating_arm_simulates_the_same_acceptance() -> None:
    for name in ARMS[1:]:
        assert make(name).env["SGLANG_SIMULATE_ACC_LEN"] == "1.9"
    assert "SGLANG_SIMULATE_ACC_LEN" not in make("no_spec").env


def test_forced_speculation_is_never_cut_off_by_the_batch_limit() -> None:
    config = make("forced_speculate").config
    assert config is not None
    assert config["max_speculative_batch"] == 256


def test_written_configs_are_ones_the_package_reads(tmp_path: Path) -> None:
    factory = ArmFactory(setup(), H200_8B[3])
    for arm in (*map(factory.make, WITH_PLUGIN), factory.periodic(50)):
        *_, path = arm.write_config(tmp_path)
        assert Path(path).exists()
    assert make("static").write_config(tmp_path) == ()


def test_an_invalid_config_is_refused_before_a_server_reads_it(tmp_path: Path) -> None:
    arm = Arm("specswitch", (), {}, {"policy": {"kind": "periodic", "period": 0}})
    with pytest.raises(BenchmarkError, match="config of arm specswitch is not valid"):
        arm.write_config(tmp_path)


def test_without_an_acceptance_there_are_no_thresholds() -> None:
    with pytest.raises(BenchmarkError, match="give --acceptance"):
        make("specswitch", acceptance=None, simulated=False, weights="real")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": 4.5}, "impossible with 3 draft steps: give 1 to 4"),
        ({"acceptance": None}, "--simulate needs --acceptance"),
        ({"simulated": False}, "dummy weights accept no drafts"),
    ],
)
def test_contradictory_setups_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        setup(**change)


def test_the_result_names_the_shape_and_no_folder_of_this_machine() -> None:
    written = setup().to_json()
    assert written["model"] == "llama-8b"
    assert written["model_shape"]["num_hidden_layers"] == 32
    assert str(DEFAULT_MODEL.parent) not in repr(written)


def test_prompts_depend_on_seed_and_label_only() -> None:
    one, same, other = (Workload(setup(seed=seed)) for seed in (1, 1, 2))
    assert one.prompts(3, 16, 0) == same.prompts(3, 16, 0)
    assert one.prompts(3, 16, 0) != one.prompts(3, 16, 1)
    assert one.prompts(3, 16, 0) != other.prompts(3, 16, 0)
    assert all(len(prompt) == 64 for prompt in one.prompts(3, 16, 0))


def test_texts_are_made_unique(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("tell a story\n\n")
    prompts = Workload(setup(prompts=str(path))).prompts(50, 1)
    assert len({str(prompt) for prompt in prompts}) == 50
    assert all(str(prompt).endswith("tell a story") for prompt in prompts)
    path.write_text("\n")
    with pytest.raises(BenchmarkError, match="holds no prompts"):
        read_texts(str(path))
