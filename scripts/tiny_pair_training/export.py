"""Write the trained models as SGLang loads them: config, bf16 safetensors, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from specswitch.tiny_pair.text import BREAK, EOS

from .models import (
    AUX_LAYERS,
    EAGLE3,
    RMS_NORM_EPS,
    ROPE_THETA,
    STANDALONE,
    TARGET,
    Eagle3,
    Llama,
    Shape,
)

MAX_POSITIONS = 4096
DTYPE = torch.bfloat16


def round_to_storage(model: nn.Module) -> None:
    """Round the weights in place to what the files hold: what is evaluated is what ships."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(DTYPE).to(parameter.dtype))


def export(
    root: Path, tokenizer: Tokenizer, target: Llama, head: Eagle3, draft: Llama, draft_ids: Tensor
) -> None:
    """Write `root`/{target,eagle3,standalone}.

    The head's files hold no embedding: the engine gives it the target's.
    """
    vocab = tokenizer.get_vocab_size()
    _write(
        root / "target", tokenizer, _config("LlamaForCausalLM", TARGET, vocab), target.state_dict()
    )
    _write(
        root / "standalone",
        tokenizer,
        _config("LlamaForCausalLM", STANDALONE, vocab),
        draft.state_dict(),
    )
    config = _config("LlamaForCausalLMEagle3", EAGLE3, vocab)
    config["draft_vocab_size"] = len(draft_ids)
    config["eagle_config"] = {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
    }
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[draft_ids] = True
    # d2t holds differences: target id = draft id + d2t[draft id] (llama_eagle3.py:318-320).
    maps = {"d2t": draft_ids - torch.arange(len(draft_ids)), "t2d": t2d}
    _write(root / "eagle3", tokenizer, config, {**head.state_dict(), **maps})


def _config(architecture: str, shape: Shape, vocab: int) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _write(
    directory: Path, tokenizer: Tokenizer, config: dict[str, object], weights: dict[str, Tensor]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    special = {
        "bos_token_id": tokenizer.token_to_id(BREAK),
        "eos_token_id": tokenizer.token_to_id(EOS),
    }
    special["pad_token_id"] = special["eos_token_id"]
    _json(directory / "config.json", {**config, **special})
    _json(directory / "generation_config.json", special)
    _json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BREAK,
            "eos_token": EOS,
            "pad_token": EOS,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITIONS,
        },
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    stored = {
        k: (v.to(DTYPE) if v.is_floating_point() else v).cpu().contiguous()
        for k, v in weights.items()
    }
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})


def _json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
