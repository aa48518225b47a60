"""Prompts with images: the image and its positions count alike in every mode."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Request, import_engine, shared_random_models
from harness.random_models import HIDDEN
from harness.random_vision import IMAGE_TOKEN, make_random_vision_model
from workloads import text

from specswitch.control.decision import Mode

from .matrix import PATTERNS, Case, Served, differences, serve
from .recorder import check
from .verdicts import Verdict

# 3 x 3 embeddings of one image, after the first tokens of the prompt.
SIDE, BEFORE = 3, 10
IMAGE = slice(BEFORE, BEFORE + SIDE * SIDE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_vision_model(tmp_path_factory.mktemp("vision"), {}).target


def request(number: int, image: int | None) -> Request:
    """A prompt, with an image unless `image` is None."""
    words = list(text("EAGLE")[number][:40])
    if image is None:
        return Request(words, max_new_tokens=30 + number)
    prompt = [*words[:BEFORE], *[IMAGE_TOKEN] * SIDE**2, *words[BEFORE:]]
    return Request(prompt, 30 + number, fields={"mm_inputs": _inputs(len(prompt), image)})


def _inputs(length: int, image: int) -> Any:
    """What the engine's processor makes of a prompt of `length` tokens."""
    from sglang.srt.managers.schedule_batch import (
        Modality,
        MultimodalDataItem,
        MultimodalProcessorOutput,
    )

    embeddings = torch.randn(SIDE**2, HIDDEN, generator=torch.Generator().manual_seed(image))
    places = torch.arange(SIDE**2)
    # All of an image is at one time, at its own rows and columns; text goes on behind its side.
    positions = torch.arange(length).repeat(3, 1)
    positions[:, IMAGE] = BEFORE + torch.stack([0 * places, places // SIDE, places % SIDE])
    positions[:, IMAGE.stop :] -= SIDE**2 - SIDE
    return MultimodalProcessorOutput(
        mm_items=[
            MultimodalDataItem(
                modality=Modality.IMAGE,
                precomputed_embeddings=embeddings,
                offsets=[(IMAGE.start, IMAGE.stop - 1)],
            )
        ],
        im_token_id=IMAGE_TOKEN,
        mrope_positions=positions,
        mrope_position_delta=torch.tensor([[SIDE - SIDE**2]]),
    )


@cache
def served(model: Path, pattern: str | None) -> dict[str, Served]:
    import_engine()
    paths = {"model_path": str(model)}
    if pattern is not None:
        paths["speculative_draft_model_path"] = str(shared_random_models().drafts["EAGLE3"])
    return serve(
        [
            Case("images", (request(0, 1), request(1, 2), request(2, None))),
            Case("other image", (request(0, 3),)),
        ],
        None if pattern is None else PATTERNS[pattern],
        algorithm="EAGLE3",
        **paths,
    )


def test_a_prompt_with_an_image_gets_one_answer_in_every_mode(model: Path) -> None:
    for pattern in PATTERNS:
        runs = served(model, pattern)
        for key, run in runs.items():
            assert not differences(run, served(model, None)[key]), (pattern, key)
        expected = {"target_only": {Mode.TARGET_ONLY}, "speculate": {Mode.SPECULATE}}
        assert set(runs["images"].modes) == expected.get(pattern, set(Mode))
    assert sum(r.accepted_drafts for r in served(model, "speculate")["images"].results) > 0
    check("images", Verdict.IDENTICAL)


def test_the_answers_that_were_compared_hang_on_the_image(model: Path) -> None:
    runs = served(model, None)
    assert runs["images"].results[0].output_ids != runs["other image"].results[0].output_ids
