"""Makes a tiny random model that brings its own draft: an MTP head in the target's checkpoint.

Such models load as EAGLE (server_args.py:344 of SGLang 0.5.12.post1 renames NEXTN to it). MiMo is
dense, of Qwen2 layers, so it runs on the CPU engine; most others have experts, latent attention or
recurrent state.
"""

from __future__ import annotations

from pathlib import Path

import torch

from harness.random_models import (
    HIDDEN,
    LAYERS,
    ModelPaths,
    RandomWeights,
    write_model,
    zero_biases,
)

_LAYER = "model.layers"
_HEAD = "model.mtp_layers.0"


def make_random_mtp_model(root: Path, seed: int = 0) -> ModelPaths:
    """Writes target and head into one directory, which is the draft's too.

    Args:
        root: directory, made if missing.
        seed: two calls with the same seed write the same weights.
    """
    random = RandomWeights(seed)
    weights = random.language_model()
    for number in range(LAYERS):
        weights |= zero_biases(weights, f"{_LAYER}.{number}")
    weights |= random.layer(_HEAD)
    weights |= zero_biases(weights, _HEAD)
    weights |= {
        f"{_HEAD}.{norm}.weight": torch.ones(HIDDEN)
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm")
    }
    # The head sees [hidden state, embedding] (models/mimo_mtp.py:66): pass the embedding through,
    # let a little of the state in.
    weights[f"{_HEAD}.input_proj.weight"] = torch.cat(
        [0.05 * random.normal(HIDDEN, HIDDEN), torch.eye(HIDDEN)], dim=1
    )
    write_model(
        root,
        weights,
        "MiMoForCausalLM",
        LAYERS,
        # The engine chooses the class by the architecture, transformers the configuration by this.
        model_type="qwen2",
        num_nextn_predict_layers=1,
    )
    return ModelPaths(root, {"EAGLE": root})
