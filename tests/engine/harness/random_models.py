"""Makes a tiny random Llama target and drafts of the three kinds that SGLang speculates with.

Random weights give random text, but not random agreement: residual branches are damped, so that the
next token depends mostly on the current one, and each draft is built to copy that dependence. Some
drafts are then accepted and some are not, which is what tests of the engine's paths need.
Acceptance does not depend on the draft's KV cache here; tests of that need trained models.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCABULARY = 512
DRAFT_VOCABULARY = 256
HIDDEN = 64
INTERMEDIATE = 128
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
CONTEXT = 2048
UNKNOWN, BEGIN, END = VOCABULARY - 3, VOCABULARY - 2, VOCABULARY - 1

# Size of what attention and MLP add to the residual stream; larger means less agreement between
# target and drafts.
_DAMPING = 0.35
# Noise on the copy of the target that serves as STANDALONE draft, in standard deviations of each
# weight.
_COPY_NOISE = 0.15

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ModelPaths:
    """Directories of a target model and of one draft for each speculative algorithm."""

    target: Path
    drafts: Mapping[str, Path]


@lru_cache(maxsize=1)
def shared_random_models() -> ModelPaths:
    """The random models of this process, made on first use and deleted at exit."""
    root = Path(tempfile.mkdtemp(prefix="specswitch-models-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return make_random_models(root)


def make_random_models(root: Path, seed: int = 0) -> ModelPaths:
    """Writes configuration, weights (float32 safetensors) and a word-level tokenizer of each model
    under `root`.

    Args:
        root: directory, made if missing.
        seed: two calls with the same seed write the same weights.
    """
    random = RandomWeights(seed)
    target = random.language_model()
    paths = ModelPaths(
        root / "target",
        {"EAGLE": root / "eagle", "EAGLE3": root / "eagle3", "STANDALONE": root / "standalone"},
    )
    write_model(paths.target, target, "LlamaForCausalLM", LAYERS)
    write_model(paths.drafts["STANDALONE"], random.noisy_copy(target), "LlamaForCausalLM", LAYERS)
    write_model(paths.drafts["EAGLE"], random.eagle_head(), "LlamaForCausalLMEagle", 1)
    write_model(
        paths.drafts["EAGLE3"],
        random.eagle3_head(target["lm_head.weight"]),
        "LlamaForCausalLMEagle3",
        1,
        # Full attention heads: the attention below copies its input, head by head.
        num_key_value_heads=HEADS,
        draft_vocab_size=DRAFT_VOCABULARY,
        eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    )
    return paths


class RandomWeights:
    """Draws weights from one stream, so that the order of calls and the seed fix them all."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def language_model(self) -> Weights:
        weights = {
            # Unit variance: the embedding, not what layers add to it, decides the next token.
            "model.embed_tokens.weight": self.normal(VOCABULARY, HIDDEN, std=1.0),
            "model.norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": self.normal(VOCABULARY, HIDDEN),
        }
        for number in range(LAYERS):
            weights |= self.layer(f"model.layers.{number}")
            weights[f"model.layers.{number}.input_layernorm.weight"] = torch.ones(HIDDEN)
        return weights

    def noisy_copy(self, target: Weights) -> Weights:
        def noisy(weight: torch.Tensor) -> torch.Tensor:
            if weight.dim() < 2 or weight.shape[0] == VOCABULARY:
                return weight.clone()
            return weight + _COPY_NOISE * weight.std() * self.normal(*weight.shape, std=1.0)

        return {name: noisy(weight) for name, weight in target.items()}

    def eagle_head(self) -> Weights:
        # fc sees [embedding, hidden state]: pass the embedding through, let a little of the state
        # in.
        mix = torch.cat([torch.eye(HIDDEN), 0.05 * self.normal(HIDDEN, HIDDEN)], dim=1)
        return {"fc.weight": mix} | self.layer("layers.0")

    def eagle3_head(self, lm_head: torch.Tensor) -> Weights:
        tokens = torch.arange(0, VOCABULARY, VOCABULARY // DRAFT_VOCABULARY)
        in_draft = torch.zeros(VOCABULARY, dtype=torch.bool)
        in_draft[tokens] = True
        weights = {
            "fc.weight": 0.1 * self.normal(HIDDEN, 3 * HIDDEN),
            "norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": lm_head[tokens].clone(),
            "d2t": tokens - torch.arange(DRAFT_VOCABULARY),
            "t2d": in_draft,
            "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
            "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        } | self.layer("midlayer", attention_input=2 * HIDDEN)
        # Only attention sees the embedding here (the first half of its input), so attention has to
        # carry it: queries and keys that equal the embedding make a row look at itself, values and
        # output copy it.
        embedding = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
        for name, scale in (("q", 1.7), ("k", 1.7), ("v", 1.0)):
            weights[f"midlayer.self_attn.{name}_proj.weight"] = scale * embedding
        weights["midlayer.self_attn.o_proj.weight"] = torch.eye(HIDDEN)
        return weights

    def layer(self, prefix: str, attention_input: int = HIDDEN) -> Weights:
        return {
            f"{prefix}.self_attn.q_proj.weight": self.normal(HEADS * HEAD_DIM, attention_input),
            f"{prefix}.self_attn.k_proj.weight": self.normal(KV_HEADS * HEAD_DIM, attention_input),
            f"{prefix}.self_attn.v_proj.weight": self.normal(KV_HEADS * HEAD_DIM, attention_input),
            f"{prefix}.self_attn.o_proj.weight": _DAMPING * self.normal(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": self.normal(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": self.normal(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": _DAMPING * self.normal(HIDDEN, INTERMEDIATE),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        }

    def normal(self, *shape: int, std: float | None = None) -> torch.Tensor:
        scale = shape[-1] ** -0.5 if std is None else std
        return scale * torch.randn(*shape, generator=self._generator)


def zero_biases(weights: Weights, layer: str) -> Weights:
    """Biases for the attention of families that have some where Llama has none."""
    names = [f"{layer}.self_attn.{name}_proj" for name in "qkv"]
    return {f"{name}.bias": torch.zeros(weights[f"{name}.weight"].shape[0]) for name in names}


def write_model(
    directory: Path, weights: Weights, architecture: str, layers: int, **overrides: Any
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: w.contiguous() for name, w in weights.items()},
        directory / "model.safetensors",
        {"format": "pt"},
    )
    config = {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": UNKNOWN,
    } | overrides
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    # Greedy defaults, and one warning less per start.
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": END, "do_sample": False})
    )
    _write_tokenizer(directory)


def _write_tokenizer(directory: Path) -> None:
    vocabulary = {f"t{token}": token for token in range(UNKNOWN)} | {
        "<unk>": UNKNOWN,
        "<s>": BEGIN,
        "</s>": END,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": CONTEXT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
