"""The tiny pair's text, tokenizer and files, without running a model."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from array import array
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from specswitch import tiny_pair
from specswitch.tiny_pair.text import (
    BREAK,
    CHAIN_KINDS,
    EOS,
    KINDS,
    Document,
    Kind,
    document,
    prompts,
    vocabulary,
)

SHIPPED_BYTES = 12_000_000


def _read_safetensors(directory: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a checkpoint; read by hand, so that this needs no torch."""
    raw = (directory / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def _config(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tiny_pair.path(name) / "config.json").read_text())
    return content


def _pieces(doc: Document, lines: int) -> list[str]:
    return [*doc.given, *(piece for line in islice(doc.lines, lines) for piece in line)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))


# ---- where the models are


@pytest.mark.parametrize("name", tiny_pair.MODELS)
def test_path_leads_to_a_complete_model_directory(name: str) -> None:
    files = {file.name for file in tiny_pair.path(name).iterdir()}
    assert files >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_path_names_the_models_it_knows_when_asked_for_another() -> None:
    with pytest.raises(
        ValueError, match="no tiny model named 'draft': use one of target, eagle3, standalone"
    ):
        tiny_pair.path("draft")


def test_everything_shipped_stays_below_the_size_limit() -> None:
    root = tiny_pair.path("target").parent
    assert sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) < SHIPPED_BYTES


def test_import_needs_neither_torch_nor_sglang() -> None:
    code = (
        "import sys, specswitch.tiny_pair as pair; pair.prompts(1);"
        "assert not {'torch', 'sglang'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- text


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_the_same_for_the_same_seed_and_differ_for_another(kind: Kind) -> None:
    assert prompts(3, seed=5, kind=kind) == prompts(3, seed=5, kind=kind)
    assert set(prompts(3, seed=5, kind=kind)).isdisjoint(prompts(3, seed=6, kind=kind))


def test_prompts_go_through_all_kinds_and_leave_out_rounds_when_they_must_end() -> None:
    assert [text.split()[0] for text in prompts(5)] == [*KINDS, KINDS[0]]
    assert [text.split()[0] for text in prompts(4, open_ended=True)] == [
        *CHAIN_KINDS,
        CHAIN_KINDS[0],
    ]


def test_prompts_hold_no_special_token() -> None:
    for text in [*prompts(40), *prompts(40, open_ended=True)]:
        assert EOS not in text
        assert BREAK not in text


@pytest.mark.parametrize("kind", CHAIN_KINDS)
def test_a_closed_chain_quotes_its_records_in_the_order_they_name_and_starts_over(
    kind: Kind,
) -> None:
    doc = document(random.Random(1), kind, 5)
    listed = {line for line in "".join(doc.given).split("\n") if line.startswith("-")}
    walk = ["".join(line)[2:] for line in islice(doc.lines, 10)]
    assert {f"-{line}" for line in walk} == listed
    assert walk[:5] == walk[5:]
    for line, following in pairwise(walk):
        assert following.split()[0].rstrip(":") == line.split()[-1]


def test_an_open_chain_ends_once_per_walk_and_starts_over_after_the_end() -> None:
    doc = document(random.Random(2), "log", 4, open_ended=True)
    start = doc.given[len(doc.given) - doc.given[::-1].index("\n*") - 1 :]
    lines = list(islice(doc.lines, 8))
    assert [EOS in line for line in lines] == [False, False, False, True] * 2
    assert lines[3][lines[3].index(EOS) - 1] == " nobody"
    assert lines[3][lines[3].index(EOS) + 1 :] == start
    assert lines[:4] == lines[4:]


def test_rounds_change_neighbours_only_and_say_by_which_stroke() -> None:
    doc = document(random.Random(3), "rounds", 7)
    row = list(doc.given[-7:])
    for line in islice(doc.lines, 30):
        first = {" hand": 0, " back": 1}[line[1]]
        expected = list(row)
        for i in range(first, 6, 2):
            expected[i : i + 2] = expected[i : i + 2][::-1]
        assert list(line[2:]) == expected
        row = expected


@pytest.mark.parametrize(
    ("kind", "size", "open_ended", "message"),
    [
        ("ledger", 1, False, "a chain has 2 to"),
        ("rounds", 99, False, "rounds have 3 to"),
        ("rounds", 5, True, "rounds have no end"),
    ],
)
def test_a_document_that_cannot_be_is_refused(
    kind: Kind, size: int, open_ended: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        document(random.Random(0), kind, size, open_ended=open_ended)


# ---- tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_each_piece_of_a_document_is_one_token(tokenizer: Any, kind: Kind) -> None:
    for seed in range(20):
        pieces = _pieces(document(random.Random(seed), kind, 6), 8)
        ids = tokenizer.encode("".join(pieces)).ids
        assert [tokenizer.decode([i]) for i in ids] == pieces


def test_the_end_of_text_token_is_found_inside_text(tokenizer: Any) -> None:
    pieces = _pieces(document(random.Random(4), "letters", 3, open_ended=True), 3)
    ids = tokenizer.encode("".join(pieces)).ids
    assert len(ids) == len(pieces)
    assert ids.count(tokenizer.token_to_id(EOS)) == 1


@pytest.mark.parametrize(
    "text", ["", "Grüße, 東京\t\r\n\n!", "def f(x):\n    return x ** 2\n", "\x00\x7f\u00ad🙂"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_all_three_models_share_one_tokenizer() -> None:
    contents = {(tiny_pair.path(name) / "tokenizer.json").read_bytes() for name in tiny_pair.MODELS}
    assert len(contents) == 1


# ---- checkpoints


@pytest.mark.parametrize("name", tiny_pair.MODELS)
def test_configs_agree_with_the_tokenizer_and_the_target(tokenizer: Any, name: str) -> None:
    config = _config(name)
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["eos_token_id"] == tokenizer.token_to_id(EOS)
    assert config["max_position_embeddings"] >= 2048
    assert config["head_dim"] == 128


@pytest.mark.parametrize("name", ["target", "standalone"])
def test_llama_checkpoints_hold_every_weight_of_their_config(name: str) -> None:
    config, (header, _) = _config(name), _read_safetensors(tiny_pair.path(name))
    hidden, wide = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}"
        assert header[f"{prefix}.self_attn.q_proj.weight"]["shape"] == [wide, hidden]
        assert header[f"{prefix}.mlp.down_proj.weight"]["shape"] == [
            hidden,
            config["intermediate_size"],
        ]
    assert header["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], hidden]
    assert header["lm_head.weight"]["shape"] == [config["vocab_size"], hidden]


def test_eagle3_head_fits_the_target_and_reads_layers_that_it_has() -> None:
    target, head = _config("target"), _config("eagle3")
    layers = head["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    header, _ = _read_safetensors(tiny_pair.path("eagle3"))
    assert head["hidden_size"] == target["hidden_size"]
    # A layer's output is captured when the next layer starts, so the last layer's never is.
    assert all(0 <= layer < target["num_hidden_layers"] - 1 for layer in layers)
    assert header["fc.weight"]["shape"] == [
        head["hidden_size"],
        len(layers) * target["hidden_size"],
    ]
    assert header["lm_head.weight"]["shape"] == [head["draft_vocab_size"], head["hidden_size"]]


def test_eagle3_draft_vocabulary_has_the_end_of_text_and_most_of_the_text(tokenizer: Any) -> None:
    header, data = _read_safetensors(tiny_pair.path("eagle3"))
    begin, end = header["d2t"]["data_offsets"]
    difference = array("q", data[begin:end])
    ids = [draft + d for draft, d in enumerate(difference)]
    begin, end = header["t2d"]["data_offsets"]
    assert [i for i, known in enumerate(data[begin:end]) if known] == ids
    text = {tokenizer.encode(piece).ids[0] for piece in vocabulary()}
    assert tokenizer.token_to_id(EOS) in ids
    # What it lacks is rejected wherever the target says it; without that no draft ever would be.
    assert 0.8 < len(text & set(ids)) / len(text) < 0.9
