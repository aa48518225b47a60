"""The CPU engine runs SGLang's speculation correctly: output never depends on it.

The reference of every comparison is the same engine without speculation. Models are random, so
drafts are partly accepted and partly rejected; each test that compares also checks that both
happened, so that no path is skipped unseen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import EngineDriver, Request, run_scenario, shared_random_models

ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
WORKERS = {
    "EAGLE": "EAGLEWorkerV2",
    "EAGLE3": "EAGLEWorkerV2",
    "STANDALONE": "StandaloneWorkerV2",
}

# Short and long, two equal ones, one longer than a prefill chunk; lengths on both sides of a page.
PROMPTS = (
    [5, 6, 7, 8, 9],
    [100, 101, 102],
    [3] * 16,
    list(range(30, 60)),
    list(range(30, 60)),
    [(7 * i) % 500 for i in range(200)],
)


def staggered(**fields):
    return [Request(list(prompt), arrive=3 * i, **fields) for i, prompt in enumerate(PROMPTS)]


def generate(algorithm=None, requests=None, **driver_fields):
    """Runs requests in an engine of its own; returns what tests look at."""
    driver = EngineDriver(algorithm, **driver_fields)
    results = driver.generate(staggered() if requests is None else requests)
    return {
        "ids": [result.output_ids for result in results],
        "reasons": [result.finish_reason["type"] for result in results],
        "logprobs": [result.logprobs for result in results],
        "retractions": sum(result.retractions for result in results),
        "cached": sum(result.cached_tokens for result in results),
        "accepted": sum(result.accepted_drafts for result in results),
        "verified": sum(result.verify_steps for result in results),
        "worker": type(driver.worker).__name__,
        "overlap": driver.scheduler.enable_overlap,
        "lost": driver.lost_slots,
    }


def assert_speculated(outcome, algorithm, steps):
    assert outcome["worker"] == WORKERS[algorithm]
    assert outcome["overlap"] is True
    # Some drafts accepted and some rejected.
    assert 0 < outcome["accepted"] < outcome["verified"] * steps


def run_script(code, arguments, environment):
    """Runs a program of its own; returns what it printed as ``NAME json`` lines."""
    with tempfile.TemporaryDirectory() as directory:
        # A file, because spawned processes import the main program again.
        file = Path(directory) / "script.py"
        file.write_text(code)
        finished = subprocess.run(
            [sys.executable, str(file), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    lines = (line.partition(" ") for line in finished.stdout.splitlines())
    return {name: json.loads(value) for name, _, value in lines if name.isupper()}


@pytest.fixture(scope="module")
def plain():
    """Output without speculation."""
    outcome = run_scenario(generate)
    assert outcome["lost"] == 0
    assert outcome["worker"] == "TpModelWorker"
    assert [len(ids) for ids in outcome["ids"]] == [24] * len(PROMPTS)
    # Not a degenerate model: answers differ, and equal prompts have equal answers.
    assert len({tuple(ids) for ids in outcome["ids"]}) == len(PROMPTS) - 1
    return outcome["ids"]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_greedy_output_equals_output_without_speculation(plain, algorithm, steps, page_size):
    outcome = run_scenario(generate, algorithm, steps=steps, page_size=page_size)
    assert outcome["ids"] == plain
    assert outcome["lost"] == 0
    assert_speculated(outcome, algorithm, steps)


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_output_does_not_depend_on_which_requests_share_the_batch(plain, algorithm):
    def one_by_one():
        driver = EngineDriver(algorithm, disable_radix_cache=True)
        return [driver.generate([list(prompt)])[0].output_ids for prompt in PROMPTS]

    assert run_scenario(one_by_one) == plain


@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_found_in_the_radix_cache_give_the_same_output(plain, page_size):
    def twice():
        driver = EngineDriver("EAGLE3", page_size=page_size)
        first = driver.generate(staggered())
        second = driver.generate(staggered())
        assert driver.lost_slots == 0
        return (
            [r.output_ids for r in first],
            [r.output_ids for r in second],
            second[3].cached_tokens,
        )

    first, second, cached = run_scenario(twice)
    assert first == second == plain
    assert cached > 0


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_retraction_for_lack_of_slots_changes_nothing(algorithm):
    # 6 requests of up to 24 + 60 tokens do not fit into 300 slots at once.
    requests = [Request([20 + i] * 24, max_new_tokens=60) for i in range(6)]
    roomy = run_scenario(generate, None, requests)
    tight = run_scenario(
        generate, algorithm, requests, max_total_tokens=300, schedule_conservativeness=0.1
    )
    assert tight["retractions"] > 0
    assert tight["ids"] == roomy["ids"]
    assert tight["lost"] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stop_token_inside_an_accepted_draft_ends_the_request_there(plain, algorithm):
    # Every answer stops at its own tenth token, wherever that falls in a draft.
    requests = [
        Request(
            list(prompt), arrive=3 * i, sampling={"stop_token_ids": [ids[9]], "ignore_eos": False}
        )
        for i, (prompt, ids) in enumerate(zip(PROMPTS, plain, strict=True))
    ]
    expected = [ids[: ids.index(ids[9]) + 1] for ids in plain]
    outcome = run_scenario(generate, algorithm, requests)
    assert outcome["ids"] == expected
    assert outcome["reasons"] == ["stop"] * len(PROMPTS)
    assert outcome["lost"] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_aborted_requests_free_their_slots_and_leave_the_others_alone(plain, algorithm):
    # One aborted while it runs, one while it still waits for a place among two running ones.
    requests = [Request(list(prompt)) for prompt in PROMPTS]
    requests[1] = Request(list(PROMPTS[1]), max_new_tokens=300, abort=8)
    requests[5] = Request(list(PROMPTS[5]), abort=2)
    outcome = run_scenario(generate, algorithm, requests, max_running_requests=2)
    assert outcome["reasons"] == ["length", "abort", "length", "length", "length", "abort"]
    assert outcome["ids"][5] == []
    assert 0 < len(outcome["ids"][1]) < 300
    assert [outcome["ids"][i] for i in (0, 2, 3, 4)] == [plain[i] for i in (0, 2, 3, 4)]
    assert outcome["lost"] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_logprobs_equal_those_without_speculation(algorithm):
    requests = staggered(logprobs=True)
    expected = run_scenario(generate, None, requests)
    outcome = run_scenario(generate, algorithm, requests)
    assert outcome["ids"] == expected["ids"]
    for actual, wanted in zip(outcome["logprobs"], expected["logprobs"], strict=True):
        # Rounding: one row and several rows go through differently blocked matrix products.
        assert actual == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sampled_requests_run_beside_greedy_ones(plain, algorithm):
    sampling = {"temperature": 1.0, "top_k": 20, "top_p": 0.9}
    requests = [
        Request(list(prompt), arrive=3 * i, sampling=sampling if i % 2 else {})
        for i, prompt in enumerate(PROMPTS)
    ]
    outcome = run_scenario(generate, algorithm, requests)
    assert [len(ids) for ids in outcome["ids"]] == [24] * len(PROMPTS)
    assert outcome["ids"][1] != plain[1]
    # In a mixed batch the engine samples greedy requests too, with top_k 1: the same tokens.
    assert outcome["ids"][0::2] == plain[0::2]
    assert outcome["lost"] == 0


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_grammars_work_on_a_cpu(algorithm):
    requests = [Request([5, 6, 7], sampling={"regex": "(t1){1,4}", "ignore_eos": False})]
    outcome = run_scenario(
        generate, algorithm, requests, grammar_backend="xgrammar", skip_tokenizer_init=False
    )
    assert set(outcome["ids"][0]) <= {1, 511}
    assert outcome["lost"] == 0


def test_the_engine_s_own_triton_kernels_give_the_same_tokens(plain):
    # A process of its own: the interpreter has to be chosen before triton is imported.
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
from harness import EngineDriver, Request, import_engine, run_scenario
import_engine()
import triton
from sglang.srt.mem_cache import allocator
from sglang.srt.speculative import eagle_info_v2, spec_utils
for kernel in (
    eagle_info_v2.assign_extend_cache_locs,
    eagle_info_v2.fill_bonus_tokens,
    spec_utils.assign_req_to_token_pool,
    allocator.alloc_extend_kernel,
):
    assert type(kernel).__module__.startswith("triton"), kernel

def tokens(page_size):
    driver = EngineDriver("EAGLE3", page_size=page_size)
    prompts = json.loads(sys.argv[2])
    results = driver.generate([Request(p, arrive=3 * i) for i, p in enumerate(prompts)])
    assert driver.lost_slots == 0
    return [result.output_ids for result in results]

print("RESULT", json.dumps([run_scenario(tokens, size) for size in (1, 16)]))
"""
    finished = run_script(
        script,
        [str(Path(__file__).parent), json.dumps(PROMPTS)],
        os.environ | {"SPECSWITCH_CPU_TRITON": "1"},
    )
    assert finished["RESULT"] == [plain, plain]


def test_a_user_s_script_needs_the_environment_variable_only(plain):
    # Scheduler and detokenizer are processes that the engine spawns; the flags are SGLang's own.
    script = """
import json, sys
import sglang

if __name__ == "__main__":
    target, draft, prompts = sys.argv[1:]
    engine = sglang.Engine(
        model_path=target,
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=draft,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        log_level="error",
    )
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    outputs = engine.generate(input_ids=json.loads(prompts), sampling_params=sampling)
    print("RESULT", json.dumps([output["output_ids"] for output in outputs]))
    print("VERIFIED", sum(output["meta_info"]["spec_verify_ct"] for output in outputs))
    engine.shutdown()
"""
    models = shared_random_models()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    finished = run_script(
        script,
        [str(models.target), str(models.drafts["EAGLE3"]), json.dumps(PROMPTS)],
        clean | {"SPECSWITCH_CPU": "1"},
    )
    assert finished["RESULT"] == plain
    assert finished["VERIFIED"] > 0


def test_random_drafts_are_accepted_in_part():
    # The tests above stand on this: an algorithm whose drafts all fail exercises half of the code.
    shares = {}
    for algorithm in ALGORITHMS:
        outcome = run_scenario(generate, algorithm)
        shares[algorithm] = outcome["accepted"] / outcome["verified"]
    assert all(0.1 < share < 2.5 for share in shares.values()), shares


def test_models_of_one_seed_are_the_same_files(tmp_path):
    from harness import make_random_models

    one, two = make_random_models(tmp_path / "a"), make_random_models(tmp_path / "b")
    for first, second in zip(
        [one.target, *one.drafts.values()], [two.target, *two.drafts.values()], strict=True
    ):
        name = "model.safetensors"
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert shared_random_models() is shared_random_models()
