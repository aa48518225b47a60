"""What draft sync refuses at start-up, and what it takes from the models it finds."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import EngineDriver, ModelPaths, Request, run_scenario, shared_random_models

from specswitch.engine.errors import StartupRefusal


def start(
    draft_sync: dict[str, Any], patches: dict[str, Any], algorithm: str = "EAGLE3"
) -> dict[str, Any]:
    """Start a server in a process of its own, with parts of the engine's read-out replaced.

    Returns:
        Its snapshot of draft sync.
    """

    def scenario() -> dict[str, Any]:
        from specswitch.engine import compat

        for name, value in patches.items():
            setattr(compat.release(), name, lambda *_args, value=value: value)
        driver = EngineDriver(algorithm, "specswitch", {"draft_sync": draft_sync})
        return driver.worker.snapshot()["draft_sync"]

    return run_scenario(scenario)


def refusal(draft_sync: dict[str, Any], patches: dict[str, Any], algorithm: str = "EAGLE3") -> str:
    with pytest.raises(StartupRefusal) as caught:
        start(draft_sync, patches, algorithm)
    return str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "free_gb"), [("EAGLE3", 0.01), ("EAGLE", 0.01), ("STANDALONE", 0.003)]
)
def test_a_ring_that_does_not_fit_is_refused_with_the_window_that_does(
    algorithm: str, free_gb: float
) -> None:
    memory = {"free_memory_gb": free_gb}
    message = refusal({"window": 65536}, memory, algorithm)
    fits = int(re.search(r"set draft_sync\.window to (\d+) or less", message)[1])
    assert len(message.splitlines()) == 1
    assert f"window to {fits} or less" in refusal({"window": fits + 1}, memory, algorithm)
    ring = start({"window": fits}, memory, algorithm)["ring_gb"]
    assert ring == pytest.approx(0.8 * free_gb, rel=0.05)


def test_without_room_for_the_smallest_window_it_is_refused_with_what_helps() -> None:
    message = refusal({"window": 8}, {"free_memory_gb": 0.00005})
    assert "set draft_sync.mode to off" in message
    assert start({"mode": "off"}, {"free_memory_gb": 0.00005})["missed"] == 0


@pytest.mark.parametrize("mode", ["deferred", "every_step"])
def test_a_draft_whose_positions_depend_on_images_is_refused(mode: str) -> None:
    assert "set draft_sync.mode to off" in refusal({"mode": mode}, {"has_image_positions": True})
    start({"mode": "off"}, {"has_image_positions": True})


def two_layer_models(root: Path) -> ModelPaths:
    """The random pair with an EAGLE3 head that reads two of the target's layers, not three."""
    import torch
    from safetensors.torch import load_file, save_file

    random = shared_random_models()
    head = root / "eagle3"
    shutil.copytree(random.drafts["EAGLE3"], head)
    weights = load_file(head / "model.safetensors")
    hidden = weights["fc.weight"].shape[0]
    weights["fc.weight"] = torch.as_tensor(weights["fc.weight"][:, : 2 * hidden]).contiguous()
    save_file(weights, head / "model.safetensors", {"format": "pt"})
    config = json.loads((head / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 2]
    (head / "config.json").write_text(json.dumps(config))
    return ModelPaths(random.target, {"EAGLE3": head})


def test_the_ring_is_as_wide_as_the_layers_that_the_draft_reads(tmp_path: Path) -> None:
    models = two_layer_models(tmp_path)
    requests = [Request(list(range(30 + n, 60 + n)), max_new_tokens=40) for n in range(3)]

    def answers(worker: str | None) -> tuple[list[list[int]], dict[str, Any]]:
        config = {"policy": {"kind": "periodic", "period": 9}, "draft_sync": {"window": 8}}
        driver = EngineDriver(
            "EAGLE3", worker, config if worker else None, models=models, random_seed=1
        )
        results = driver.generate(requests)
        return (
            [result.output_ids for result in results],
            driver.worker.snapshot()["draft_sync"] if worker else {},
        )

    ours, counts = run_scenario(answers, "specswitch")
    assert counts["flushed"] > 0
    assert counts["caught_up"] > 0
    assert ours == run_scenario(answers, None)[0]
