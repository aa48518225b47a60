"""The exactness rule: which requests it knows, what it says, what it keeps from starting."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from specswitch.engine import compat
from specswitch.engine.compat import v0_5_12_post1
from specswitch.engine.compat import v0_5_12_post1_exactness as table
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.exactness import (
    UNKNOWN,
    InexactRequests,
    check_server,
    inherited,
    simulation,
)

TOP_K_ALL = 1 << 30


@pytest.fixture(autouse=True)
def _release(monkeypatch) -> None:
    monkeypatch.setattr(compat, "release", lambda: v0_5_12_post1)
    monkeypatch.setattr(table, "_argmax_only", lambda: False)


def request(
    processor: str | None = None, hidden: bool = False, **sampling: object
) -> SimpleNamespace:
    """A greedy request, as the engine keeps it."""
    plain = {
        "top_k": 1,
        "top_p": 1.0,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "sampling_seed": None,
    }
    return SimpleNamespace(
        rid="r1",
        custom_logit_processor=processor,
        return_hidden_states=hidden,
        sampling_params=SimpleNamespace(**plain | sampling),
    )


def server(**changes: object) -> SimpleNamespace:
    values = {
        "enable_deterministic_inference": False,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "sampling_backend": "flashinfer",
    }
    return SimpleNamespace(**values | changes)


def judged(asked: SimpleNamespace, setting: str = "strict", **server_args: object):
    inexact = InexactRequests(setting, server(**server_args))
    inexact.note(asked)
    return inexact


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (request(frequency_penalty=-0.5), "frequency_penalty"),
        (request(presence_penalty=0.5), "presence_penalty"),
        (request(repetition_penalty=1.1), "repetition_penalty"),
        (request(min_new_tokens=1), "min_new_tokens"),
        (request(min_p=0.1, top_k=TOP_K_ALL), "min_p"),
        (request("{}"), "custom_logit_processor"),
        (request(hidden=True), "return_hidden_states"),
    ],
)
def test_each_option_that_speculation_answers_otherwise_is_known(asked, option: str) -> None:
    inexact = judged(asked)
    assert inexact.requests == {option: 1}
    assert inexact.count([request(), asked]) == 1
    assert inexact.count([request()]) == 0
    assert option in inexact.options
    assert option in inexact.describe()


def test_the_summary_leaves_out_what_no_request_can_ask_for_here() -> None:
    plain = judged(request()).describe()
    assert "sampling_seed" not in plain
    assert "temperature" not in plain
    assert "sampling_seed" in judged(request(), enable_deterministic_inference=True).describe()


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(top_k=TOP_K_ALL),
        request(top_k=20, top_p=0.9),
        request(top_k=TOP_K_ALL, sampling_seed=7),
        # Greedy: the likeliest token is never filtered out.
        request(min_p=0.1),
    ],
)
def test_what_both_modes_do_alike_may_be_speculated_for(asked) -> None:
    inexact = judged(asked)
    assert not inexact.requests
    assert inexact.count([asked]) == 0


def test_draws_of_a_deterministic_server_are_not_speculated_for() -> None:
    drawn, greedy = request(top_k=TOP_K_ALL), request()
    assert judged(drawn, enable_deterministic_inference=True).count([drawn]) == 1
    assert judged(greedy, enable_deterministic_inference=True).count([greedy]) == 0


def test_draws_are_not_speculated_for_where_verification_draws_nothing(monkeypatch) -> None:
    monkeypatch.setattr(table, "_argmax_only", lambda: True)
    drawn, greedy = request(top_k=TOP_K_ALL), request()
    assert judged(drawn).requests == {"temperature": 1}
    assert not judged(greedy).requests


def test_a_request_counts_for_each_of_its_options_and_once_for_the_batch() -> None:
    asked = request(presence_penalty=1.0, min_new_tokens=3)
    inexact = judged(asked)
    assert inexact.snapshot() == {
        "setting": "strict",
        "requests": {"presence_penalty": 1, "min_new_tokens": 1},
    }
    assert inexact.totals()["presence_penalty"] == 1
    assert inexact.totals()["min_p"] == 0
    assert inexact.count([asked]) == 1


def test_a_request_that_comes_back_is_judged_once() -> None:
    asked = request(presence_penalty=1.0)
    inexact = judged(asked)
    inexact.note(asked)
    assert inexact.requests == {"presence_penalty": 1}
    assert inexact.count([asked]) == 1


def test_warn_says_each_option_once_and_lets_speculate(caplog) -> None:
    inexact = InexactRequests("warn", server())
    asked = [request(min_new_tokens=2, presence_penalty=1.0) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for each in asked:
            inexact.note(each)
    assert len(caplog.records) == 2
    assert "request r1 asks for presence_penalty, and speculation counts one token" in caplog.text
    assert "request r1 asks for min_new_tokens, and speculation counts steps" in caplog.text
    assert inexact.requests["min_new_tokens"] == 3
    assert inexact.count(asked) == 0


def test_one_rank_speaks(caplog) -> None:
    inexact = InexactRequests("warn", server(), speak=False)
    with caplog.at_level(logging.WARNING):
        inexact.note(request(min_new_tokens=2))
    assert not caplog.records
    assert inexact.requests["min_new_tokens"] == 1


def test_off_does_not_look(caplog) -> None:
    asked = request(presence_penalty=1.0)
    with caplog.at_level(logging.WARNING):
        inexact = judged(asked, "off")
    assert not inexact.requests
    assert inexact.count([asked]) == 0
    assert not caplog.records


def test_a_request_that_cannot_be_judged_is_not_speculated_for() -> None:
    broken = SimpleNamespace(rid="r1")
    inexact = InexactRequests("strict", server())
    with pytest.raises(AttributeError):
        inexact.note(broken)
    assert inexact.count([broken]) == 1
    assert inexact.requests == {UNKNOWN: 1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculative_accept_threshold_single": 0.9}, "speculative_accept_threshold_single 0.9"),
        ({"speculative_accept_threshold_acc": 0.5}, "speculative_accept_threshold_acc 0.5"),
        ({"sampling_backend": "my_sampler"}, "--sampling-backend my_sampler"),
    ],
)
def test_a_server_on_which_every_answer_is_inexact_is_refused(changes, named, caplog) -> None:
    with pytest.raises(StartupRefusal, match="exactness: warn") as refused:
        check_server("strict", server(**changes))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    with caplog.at_level(logging.WARNING):
        check_server("off", server(**changes))
        assert not caplog.records
        check_server("warn", server(**changes))
    (record,) = caplog.records
    assert named in record.getMessage()


@pytest.mark.parametrize("backend", [None, "flashinfer", "pytorch", "ascend"])
def test_an_exact_server_starts_without_a_word(backend, caplog) -> None:
    for setting in ("strict", "warn", "off"):
        check_server(setting, server(sampling_backend=backend))
    assert not caplog.records


def test_thresholds_are_watched_at_run_time_too() -> None:
    loose = {"speculative_accept_threshold_acc": 0.5}
    (problem,) = InexactRequests("strict", server()).problems_of(loose)
    assert "set it to 1.0" in problem
    exact = {"speculative_accept_threshold_acc": 1.0, "pp_max_micro_batch_size": 4}
    assert not InexactRequests("strict", server()).problems_of(exact)


def test_loose_thresholds_at_run_time_are_logged_once_a_server_where_only_warnings_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loose = {"speculative_accept_threshold_acc": 0.5}
    assert not InexactRequests("off", server()).problems_of(loose)
    assert not InexactRequests("warn", server(), speak=False).problems_of(loose)
    assert not caplog.messages
    assert not InexactRequests("warn", server()).problems_of(loose)
    assert "speculative_accept_threshold_acc 0.5 accepts drafts" in caplog.text


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"repetition_penalty": 1.05, "top_k": 20, "top_p": 0.8}, "repetition_penalty 1.05 unless"),
        ({"min_p": 0.1, "repetition_penalty": 1.0}, "min_p 0.1 unless"),
        ({"temperature": 0.6, "top_k": 20, "min_p": 0.0}, None),
        ({}, None),
    ],
)
def test_a_default_of_the_model_that_ends_speculation_is_said(defaults, said) -> None:
    model = SimpleNamespace(get_default_sampling_params=lambda: defaults)
    line = inherited("strict", model)
    assert (line is None) == (said is None)
    assert said is None or said in (line or "")
    assert inherited("warn", model) is None


def test_feigned_acceptance_is_said(monkeypatch) -> None:
    monkeypatch.setattr(table, "simulated_acceptance", lambda: 1.9)
    assert "SGLANG_SIMULATE_ACC_LEN is 1.9" in (simulation() or "")
    monkeypatch.setattr(table, "simulated_acceptance", lambda: None)
    assert simulation() is None
