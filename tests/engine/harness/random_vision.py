"""Makes a tiny random target that takes images, with three-dimensional positions (M-RoPE).

It is a Qwen2.5-VL. Images are given to it as embeddings, as a server with an encoder of its own
gives them, so that of its vision encoder nothing but the configuration is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.random_models import (
    HIDDEN,
    LAYERS,
    ModelPaths,
    RandomWeights,
    write_model,
    zero_biases,
)

#: Stands in a prompt for each embedding of an image; no prompt of the tests holds it.
IMAGE_TOKEN = 500

_ENCODER: Mapping[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "hidden_act": "silu",
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [0],
    "tokens_per_second": 2,
}


def make_random_vision_model(root: Path, drafts: Mapping[str, Path], seed: int = 0) -> ModelPaths:
    """Writes the target, whose weights are those of the random target of the same seed.

    Args:
        root: directory, made if missing.
        drafts: drafts of that random target.
        seed: two calls with the same seed write the same weights.
    """
    weights = RandomWeights(seed).language_model()
    for number in range(LAYERS):
        weights |= zero_biases(weights, f"model.layers.{number}")
    write_model(
        root,
        weights,
        "Qwen2_5_VLForConditionalGeneration",
        LAYERS,
        model_type="qwen2_5_vl",
        vision_config=dict(_ENCODER),
        # Of the 8 pairs that a head of 16 rotates: time, height, width.
        rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]},
        image_token_id=IMAGE_TOKEN,
        video_token_id=IMAGE_TOKEN + 1,
        vision_start_token_id=IMAGE_TOKEN + 2,
        vision_end_token_id=IMAGE_TOKEN + 3,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=LAYERS,
    )
    return ModelPaths(root, drafts)
