"""What a benchmark run holds constant: model, server settings, workload.

Two results may be compared or merged only when these are equal, so they are one
value that is written into every result file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError

SHAPES = Path(__file__).parent / "shapes"
#: Config-only models: what is measured with dummy weights when no model is named.
DEFAULT_MODEL = SHAPES / "llama-8b"
DEFAULT_DRAFT = SHAPES / "llama-8b-eagle3"

_SHAPE_KEYS = (
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
#: In place of a file of prompts: the held-out texts of the pair that ships with the package.
TINY_PAIR = "tiny-pair"
#: A hub model's vocabulary is not looked up; hardly any is smaller than this.
_UNKNOWN_VOCABULARY = 32000


@dataclass(frozen=True)
class Setup:
    """Settings common to all arms of a run.

    Attributes:
        model, draft_model: local folders or hub names.
        weights: "dummy" (random, only speed means anything) or "real".
        acceptance: acceptance length that the thresholds are made for; simulated when
            `simulated`, otherwise the user's estimate, or None when no arm needs one.
        steps: draft steps of EAGLE3 (topk 1).
        input_len, output_len: tokens of a request; every request emits exactly `output_len`.
        prompts: file of texts to send, or TINY_PAIR; None sends random token ids.
        server_args, env: given to the servers of every arm as they are.
    """

    model: str
    draft_model: str
    weights: str
    simulated: bool
    acceptance: float | None
    steps: int
    tp: int
    device: str
    attention_backend: str | None
    max_running: int
    decode_log_interval: int
    input_len: int
    output_len: int
    prompts: str | None
    seed: int
    server_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.simulated and self.acceptance is None:
            raise BenchmarkError("--simulate needs --acceptance: which length to simulate")
        if self.acceptance is not None and not 1 <= self.acceptance <= self.steps + 1:
            raise BenchmarkError(
                f"--acceptance {self.acceptance} is impossible with {self.steps} draft steps: "
                f"give 1 to {self.steps + 1}"
            )
        if self.weights == "dummy" and not self.simulated:
            raise BenchmarkError(
                "dummy weights accept no drafts: add --simulate, or name real weights with --model"
            )

    def to_json(self) -> dict[str, Any]:
        """The setup as plain JSON values, with the shape of both models when they are local.

        Paths are reduced to their last part: they mean nothing on another machine.
        """
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        values["model"], values["draft_model"] = _label(self.model), _label(self.draft_model)
        values["prompts"] = Path(self.prompts).name if self.prompts else None
        values["model_shape"] = model_shape(self.model)
        values["draft_shape"] = model_shape(self.draft_model)
        return values

    @property
    def vocabulary(self) -> int:
        """Number of token ids that both models know, for random prompts."""
        shapes = [model_shape(path) or {} for path in (self.model, self.draft_model)]
        return min(int(shape.get("vocab_size", _UNKNOWN_VOCABULARY)) for shape in shapes)


def _label(model: str) -> str:
    return Path(model).name if Path(model).exists() else model


def model_shape(model: str) -> dict[str, Any] | None:
    """The sizes in a local model's config.json; None for a hub name.

    Raises BenchmarkError when the file is there and cannot be read.
    """
    path = Path(model) / "config.json"
    if not path.exists():
        return None
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"cannot read {path}: {error}") from error
    return {key: config[key] for key in _SHAPE_KEYS if key in config}
