"""The rules on finished server arguments, one by one; the launcher's side is an engine test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specswitch.engine.errors import StartupRefusal
from specswitch.engine.flags import Request
from specswitch.engine.refusals import check_algorithm, check_server_args


def arguments(**changes: object) -> SimpleNamespace:
    values = {
        "speculative_algorithm": "EAGLE3",
        "speculative_eagle_topk": 1,
        "disable_overlap_schedule": False,
        "speculative_adaptive": False,
        "enable_multi_layer_eagle": False,
        "pp_size": 1,
        "enable_dp_attention": False,
        "attn_cp_size": 1,
        "enable_lora": None,
        "enable_two_batch_overlap": False,
        "enable_pdmux": False,
        "disaggregation_mode": "null",
    }
    return SimpleNamespace(**values | changes)


def refusal(**changes: object) -> str:
    with pytest.raises(StartupRefusal) as refused:
        check_server_args(arguments(**changes))
    return str(refused.value)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_ENABLE_SPEC_V2", raising=False)


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE"])
def test_what_works_is_not_refused(algorithm: str) -> None:
    check_server_args(arguments(speculative_algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ["EAGLE", "eagle3", "Standalone", "NEXTN", "nextn"])
def test_algorithms_are_known_in_any_case_and_by_their_alias(algorithm: str) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize("algorithm", ["NGRAM", "DFLASH", "FROZEN_KV_MTP", None, ""])
def test_other_algorithms_are_refused_with_those_that_work(algorithm: str | None) -> None:
    with pytest.raises(StartupRefusal, match=r"algorithm .*EAGLE, EAGLE3, STANDALONE"):
        check_algorithm(algorithm)


def test_an_algorithm_that_the_engine_resolved_to_another_is_refused() -> None:
    assert "FROZEN_KV_MTP" in refusal(speculative_algorithm="FROZEN_KV_MTP")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk"),
        ({"disable_overlap_schedule": True}, "--disable-overlap-schedule"),
        ({"speculative_adaptive": True}, "--speculative-adaptive"),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle"),
        ({"pp_size": 2}, "--pp-size"),
        ({"pp_size": 2, "disable_overlap_schedule": True}, "--pp-size"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"attn_cp_size": 2}, "--attn-cp-size"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode"),
        # Trees turn overlap off; the cause is named, not the effect.
        ({"speculative_eagle_topk": 4, "disable_overlap_schedule": True}, "topk"),
    ],
    ids=str,
)
def test_each_combination_is_refused_in_one_line_that_names_the_flag(
    changes: dict[str, object], flag: str
) -> None:
    message = refusal(**changes)
    assert flag in message
    assert "\n" not in message


def test_several_problems_are_told_at_once() -> None:
    message = refusal(speculative_eagle_topk=2, enable_pdmux=True, enable_lora=True)
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize("value", ["0", "false", "no", "off", "False"])
def test_the_variable_that_turns_overlap_off_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_SPEC_V2", value)
    message = refusal(disable_overlap_schedule=True)
    assert f"unset SGLANG_ENABLE_SPEC_V2, which is {value}" in message


def test_the_variable_is_not_blamed_when_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_SPEC_V2", "1")
    assert "SPEC_V2" not in refusal(disable_overlap_schedule=True)


# --- which worker was asked for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "environment", "worker"),
    [
        (Request(), Request(), "eagle"),
        (Request("eagle"), Request("specswitch"), "eagle"),
        (Request("specswitch"), Request(), "specswitch"),
        (Request(), Request("specswitch"), "specswitch"),
        (Request("specswitch", "a.yaml"), Request("eagle"), "specswitch"),
    ],
)
def test_the_worker_is_the_engines_unless_specswitch_is_named(
    request_: Request, environment: Request, worker: str
) -> None:
    assert request_.in_environment(environment).worker == worker


def test_a_file_is_taken_from_the_environment_unless_one_is_given() -> None:
    environment = Request("specswitch", "b.yaml")
    assert Request().in_environment(environment).config_path == "b.yaml"
    assert Request(None, "a.yaml").in_environment(environment).config_path == "a.yaml"


def test_a_file_in_the_environment_alone_asks_for_nothing() -> None:
    assert Request().in_environment(Request(None, "b.yaml")).worker == "eagle"


@pytest.mark.parametrize("worker", ["", "turbo", "Specswitch"])
def test_an_unknown_worker_is_refused(worker: str) -> None:
    with pytest.raises(StartupRefusal, match="eagle, specswitch"):
        Request(worker).in_environment(Request())


def test_an_unknown_worker_in_the_environment_is_refused_by_the_variables_name() -> None:
    with pytest.raises(StartupRefusal, match=r"^SPECSWITCH_WORKER is .turbo."):
        Request().in_environment(Request("turbo"))


@pytest.mark.parametrize("worker", [None, "eagle"])
def test_a_file_for_the_engines_worker_is_refused(worker: str | None) -> None:
    with pytest.raises(StartupRefusal, match=r"a\.yaml has no effect.*--speculative-worker"):
        Request(worker, "a.yaml").in_environment(Request())


def test_what_one_request_leaves_open_another_fills() -> None:
    assert Request(None, "a.yaml").or_else(Request("specswitch", "b.yaml")) == Request(
        "specswitch", "a.yaml"
    )
    assert Request("eagle").or_else(Request("specswitch")) == Request("eagle")
