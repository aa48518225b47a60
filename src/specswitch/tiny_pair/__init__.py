"""A trained target model with an EAGLE3 head and a STANDALONE draft, small enough to ship.

Why: the demo and the engine tests need a pair whose drafts are accepted, and whose acceptance
falls when the draft's KV cache is damaged, on a machine without a GPU and without downloads.
README.md beside this file says how the weights were made and what was measured with them.

Neither torch nor sglang is imported here.
"""

from __future__ import annotations

from pathlib import Path

from specswitch.tiny_pair.text import prompts

__all__ = ["MODELS", "path", "prompts"]

MODELS: tuple[str, ...] = ("target", "eagle3", "standalone")
"""Names that `path` knows: the target, its EAGLE3 head, and a smaller model for STANDALONE."""


def path(name: str) -> Path:
    """Directory of one model, as `--model-path` or `--speculative-draft-model-path` takes it.

    Args:
        name: one of `MODELS`.

    Raises:
        ValueError: unknown name.
        FileNotFoundError: the package was installed without its weights.
    """
    if name not in MODELS:
        raise ValueError(f"no tiny model named {name!r}: use one of {', '.join(MODELS)}")
    directory = Path(__file__).parent / name
    if not (directory / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{directory} holds no weights: run scripts/train_tiny_pair.py to make them"
        )
    return directory
