"""The trained pair, and copies of it with more attention heads for more tensor-parallel ranks."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

from harness import ModelPaths

from specswitch import tiny_pair


def pair(directory: Path | None, tp: int) -> ModelPaths:
    """Target and drafts for `tp` ranks.

    Args:
        directory: holds ``target``, ``eagle3`` and ``standalone``; None: the pair of the package.
        tp: the engine gives each rank the same number of heads, at least one.
    """
    found = {
        name: directory / name if directory else tiny_pair.path(name) for name in tiny_pair.MODELS
    }
    heads = json.loads((found["target"] / "config.json").read_text())["num_attention_heads"]
    if heads % tp:
        root = Path(tempfile.mkdtemp(prefix="specswitch-wide-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        found = {name: widen(path, root / name, -(-tp // heads)) for name, path in found.items()}
    return ModelPaths(
        found["target"], {"EAGLE3": found["eagle3"], "STANDALONE": found["standalone"]}
    )


def widen(source: Path, target: Path, factor: int) -> Path:
    """Writes a model that computes the same with `factor` times as many heads.

    Each head stands `factor` times, and the output projection adds up the copies, each scaled by
    1 / `factor`, which is exact for powers of two.

    Returns:
        `target`.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    width = config["head_dim"]
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            heads = weight.view(-1, width, weight.shape[1])
            weights[name] = heads.repeat_interleave(factor, dim=0).flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            heads = weight.view(weight.shape[0], -1, width) / factor
            weights[name] = heads.repeat_interleave(factor, dim=1).flatten(1)
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()},
        target / "model.safetensors",
        {"format": "pt"},
    )
    for key in ("num_attention_heads", "num_key_value_heads"):
        config[key] *= factor
    (target / "config.json").write_text(json.dumps(config, indent=1))
    return target
