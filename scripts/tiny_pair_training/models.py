"""The three models as plain PyTorch modules that can be trained.

Why: SGLang's own model classes only run inside its engine. These mirror them, operation for
operation, and carry the parameter names that the engine's loaders expect (sglang 0.5.12.post1:
models/llama.py:60-417 and models/llama_eagle3.py:44-248), so that a state dict is a checkpoint.

Shapes: B rows, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RMS_NORM_EPS = 1e-5
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Size of a Llama-style model; heads are 128 wide for the sake of GPU attention kernels."""

    hidden: int
    intermediate: int
    layers: int
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 128


TARGET = Shape(hidden=256, intermediate=512, layers=4)
EAGLE3 = Shape(hidden=256, intermediate=512, layers=1)
STANDALONE = Shape(hidden=128, intermediate=256, layers=3)
AUX_LAYERS = (0, 1, 2)
"""Target layers whose output feeds the EAGLE3 head. The engine's default choice
(models/llama.py:803-805: 2, n/2, n-3) repeats itself in a model of 4 layers, and the last layer's
output cannot be captured."""


def _linear(n_in: int, n_out: int) -> nn.Linear:
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=n_in**-0.5)
    return layer


def _norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=RMS_NORM_EPS)


def rope_tables(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each float32 [length, head_dim / 2]."""
    inverse = ROPE_THETA ** (
        -torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    )
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), inverse)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split ('neox') rotation of [B, heads, T, head_dim]."""
    a, b = x.float().chunk(
        2, dim=-1
    )  # in float32 even under autocast: far positions need the phase
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Projections and rotation; what is attended to is the caller's choice."""

    def __init__(self, shape: Shape, n_in: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = _linear(n_in, shape.heads * shape.head_dim)
        self.k_proj = _linear(n_in, shape.kv_heads * shape.head_dim)
        self.v_proj = _linear(n_in, shape.kv_heads * shape.head_dim)
        self.o_proj = _linear(shape.heads * shape.head_dim, shape.hidden)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, n_in] to queries, keys and values, each [B, heads, T, head_dim]."""
        rows, length, _ = x.shape
        q, k, v = (
            p(x).view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = rope[0][:length], rope[1][:length]
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def merge(self, heads: Tensor) -> Tensor:
        """[B, heads, T, head_dim] to [B, T, H]."""
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = _linear(shape.hidden, shape.intermediate)
        self.up_proj = _linear(shape.hidden, shape.intermediate)
        self.down_proj = _linear(shape.intermediate, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = _norm(shape.hidden)
        self.self_attn = Attention(shape, shape.hidden)
        self.post_attention_layernorm = _norm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), rope)
        x = x + self.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Trunk(nn.Module):
    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.norm = _norm(shape.hidden)


class Llama(nn.Module):
    """Target and STANDALONE draft (LlamaForCausalLM in the engine)."""

    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = _Trunk(shape, vocab)
        self.lm_head = _linear(shape.hidden, vocab)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Int64 [B, T] to logits [B, T, V] and the outputs of `AUX_LAYERS`, [B, T, 3H]."""
        rope = rope_tables(ids.shape[1], self.shape.head_dim, ids.device)
        x = self.model.embed_tokens(ids)
        aux = []
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope)
            if i in AUX_LAYERS:
                aux.append(x)
        return self.lm_head(self.model.norm(x)), torch.cat(aux, dim=-1)


class _EagleLayer(nn.Module):
    """Attention sees [embedding, hidden state]; the residual carries the hidden state only."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = _norm(shape.hidden)
        self.hidden_norm = _norm(shape.hidden)
        self.self_attn = Attention(shape, 2 * shape.hidden)
        self.post_attention_layernorm = _norm(shape.hidden)
        self.mlp = MLP(shape)


class Eagle3(nn.Module):
    """EAGLE3 head (LlamaForCausalLMEagle3 in the engine).

    It has no embedding: the engine gives it the target's (eagle_worker_v2.py:223).
    """

    def __init__(self, shape: Shape, draft_vocab: int) -> None:
        super().__init__()
        self.shape = shape
        self.fc = _linear(len(AUX_LAYERS) * shape.hidden, shape.hidden)
        self.midlayer = _EagleLayer(shape)
        self.norm = _norm(shape.hidden)
        self.lm_head = _linear(shape.hidden, draft_vocab)

    def cut_vocabulary(self, rows: Tensor) -> None:
        """Keep only these rows (int64) of the output layer, in this order."""
        kept = self.lm_head.weight.detach()[rows].clone()
        self.lm_head = _linear(self.shape.hidden, len(rows)).to(kept.device)
        self.lm_head.weight = nn.Parameter(kept)

    def forward(self, embeds: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Unroll the head as the engine does, at all positions at once.

        Slot p holds the token p+1 (its embedding is `embeds[:, p]`) and predicts token p+2. Step
        0 reads the target's hidden state of position p: that is the draft-extend. Step k > 0
        reads what step k-1 wrote at p-1: that is draft step k, which finds keys of step 0 up to
        slot p-k, and one key of each later step.

        Args:
            embeds: [B, T, H], target embeddings of the tokens at positions 1..T.
            aux: [B, T, 3H], as `Llama.forward` gives it.
            steps: number of logits wanted, 1 for the draft-extend plus one per draft step.

        Returns:
            `steps` tensors of logits [B, T, draft vocabulary]; the first k slots of step k are
            not defined.
        """
        length = embeds.shape[1]
        rope = rope_tables(length, self.shape.head_dim, embeds.device)
        query, key = (
            torch.arange(length, device=embeds.device).view(-1, 1),
            torch.arange(length, device=embeds.device),
        )
        layer = self.midlayer
        hidden = self.fc(
            aux
        ).float()  # the residual stays in float32 under autocast, as in the target
        tokens = layer.input_layernorm(embeds)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        out = []
        for step in range(steps):
            if step:
                hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)
            q, k, v = layer.self_attn.project(
                torch.cat((tokens, layer.hidden_norm(hidden)), dim=-1), rope
            )
            keys.append(k)
            values.append(v)
            seen = [key <= query - step] + [key == query - step + j for j in range(1, step + 1)]
            mask = torch.cat(seen, dim=1)
            mask[:step] = (
                True  # slots that have no such draft; a row with nothing to attend to would be NaN
            )
            # Step 0 is plain causal attention, which has faster kernels than a given mask.
            how = {"attn_mask": mask} if step else {"is_causal": True}
            attended = F.scaled_dot_product_attention(
                q, torch.cat(keys, dim=2), torch.cat(values, dim=2), **how
            )
            hidden = hidden + layer.self_attn.merge(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            out.append(self.lm_head(self.norm(hidden)))
        return out
