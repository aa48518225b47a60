"""The training script: its EAGLE3 unroll against the engine's order of work, and a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from safetensors.torch import load_file  # noqa: E402
from tiny_pair_training.models import EAGLE3, Eagle3, rope_tables  # noqa: E402


def _train(*options: str) -> subprocess.CompletedProcess[str]:
    # One thread: matrices this small lose more by waiting for a second one than they gain.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPTS / "train_tiny_pair.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_unrolled_head_equals_a_head_that_drafts_token_by_token() -> None:
    torch.manual_seed(0)
    length, steps = 12, 3
    head = Eagle3(EAGLE3, 50)
    layer = head.midlayer
    embeds, aux = torch.randn(1, length, EAGLE3.hidden), torch.randn(1, length, 3 * EAGLE3.hidden)
    cos, sin = rope_tables(length, EAGLE3.head_dim, torch.device("cpu"))

    def one_slot(p: int, hidden: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]):
        x = torch.cat((layer.input_layernorm(embeds[:, p : p + 1]), layer.hidden_norm(hidden)), -1)
        q, k, v = layer.self_attn.project(x, (cos[p : p + 1], sin[p : p + 1]))
        cache.append((k, v))
        keys, values = (torch.cat(parts, dim=2) for parts in zip(*cache, strict=True))
        found = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        hidden = hidden + layer.self_attn.merge(found)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden, head.lm_head(head.norm(hidden))

    with torch.no_grad():
        unrolled = head(embeds, aux, steps)
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        for p in range(length - steps + 1):
            # The draft-extend of slot p, then draft steps that throw their KV away afterwards.
            hidden, logits = one_slot(p, head.fc(aux[:, p : p + 1]), cache)
            torch.testing.assert_close(logits, unrolled[0][:, p : p + 1])
            drafted = list(cache)
            for step in range(1, steps):
                hidden, logits = one_slot(p + step, hidden, drafted)
                torch.testing.assert_close(logits, unrolled[step][:, p + step : p + step + 1])


def test_the_script_writes_three_models_that_fit_each_other(tmp_path: Path) -> None:
    # A training this short learns nothing: the files are what is looked at.
    options = ["--minutes", "0.02", "--rows", "1", "--length", "64", "--device", "cpu"]
    done = _train(*options, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "held out: accuracy" in done.stdout
    configs = {
        name: json.loads((tmp_path / name / "config.json").read_text())
        for name in ("target", "eagle3", "standalone")
    }
    assert len({config["vocab_size"] for config in configs.values()}) == 1
    head = load_file(tmp_path / "eagle3" / "model.safetensors")
    assert head["lm_head.weight"].shape[0] == configs["eagle3"]["draft_vocab_size"]
    assert head["lm_head.weight"].dtype == torch.bfloat16
    assert int(head["t2d"].sum()) == len(head["d2t"])


def test_the_script_refuses_to_train_for_no_time(tmp_path: Path) -> None:
    done = _train("--minutes", "0", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "--minutes must be above 0" in done.stderr
