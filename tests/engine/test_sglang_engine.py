"""Users of `sglang.Engine`: keywords or variables instead of flags, in scripts of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Request
from harness.launcher import Outcome, command
from runs import run_plain
from workloads import text

from specswitch import tiny_pair
from specswitch.engine import compat

ENGINE = f"""
import json, os, sys
import sglang

common = dict(
    model_path={str(tiny_pair.path("target"))!r},
    speculative_draft_model_path={str(tiny_pair.path("eagle3"))!r},
    speculative_algorithm="EAGLE3",
    speculative_num_steps=3,
    speculative_eagle_topk=1,
    speculative_num_draft_tokens=4,
    max_total_tokens=4096,
    max_running_requests=4,
    grammar_backend="none",
    random_seed=1,
)
"""

GENERATE = """
if __name__ == "__main__":
    prompts, keywords = json.load(open(sys.argv[1]))
    engine = sglang.Engine(**common, **keywords)
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    state = engine.get_server_info()["internal_states"][0].get("specswitch")
    engine.shutdown()
    json.dump([[a["output_ids"] for a in answers], state], open(sys.argv[1] + ".out", "w"))
"""

# The parent has the plug-in; its children inherit a list that leaves it out.
LOSES_PLUG_IN = """
if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(**common, speculative_worker="specswitch", log_level="error")
    os.environ["SGLANG_PLUGINS"] = "another"
    sglang.Engine(server_args=arguments)
    print("serves")
"""


def run_script(directory: Path, body: str, *arguments: str, **variables: str) -> Outcome:
    script = directory / "script.py"
    script.write_text(ENGINE + body)
    return command([str(script), *arguments], **variables)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "worker.yaml"
    path.write_text("policy: {kind: periodic, period: 2}\n")
    return path


@pytest.mark.parametrize("way", ["keywords", "variables"])
def test_an_engine_in_a_script_switches_with_the_right_answers(
    way: str, tmp_path: Path, config: Path
) -> None:
    prompts = [list(prompt) for prompt in text("EAGLE3")[:6]]
    keywords, variables = {}, {}
    if way == "keywords":
        keywords = {
            "speculative_worker": "specswitch",
            "speculative_worker_config": str(config),
        }
    else:
        variables = {
            "SPECSWITCH_WORKER": "specswitch",
            "SPECSWITCH_WORKER_CONFIG": str(config),
        }
    job = tmp_path / "job.json"
    job.write_text(json.dumps([prompts, keywords]))
    outcome = run_script(tmp_path, GENERATE, str(job), SPECSWITCH_DEBUG="1", **variables)
    assert outcome.exit_code == 0, outcome.stderr
    answers, state = json.loads((tmp_path / "job.json.out").read_text())
    plain = run_plain([Request(prompt, max_new_tokens=24) for prompt in prompts], "EAGLE3")
    assert answers == [result.output_ids for result in plain.results]
    assert min(state["steps"].values()) > 0
    assert state["reason"] == "periodic"


def test_a_scheduler_process_without_the_plug_in_stops_the_engine(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, LOSES_PLUG_IN)
    assert outcome.exit_code != 0
    assert "serves" not in outcome.stdout
    if compat.is_patched():
        # The scheduler process itself misses the worker.
        said = next(line for line in outcome.stderr.splitlines() if "set it to one of" in line)
    else:
        said = outcome.stderr.strip().splitlines()[-1]
        assert "run SGLang's own worker" in said
    assert "SGLANG_PLUGINS" in said
