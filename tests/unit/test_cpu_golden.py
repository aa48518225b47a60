"""The recorder of golden vectors, and every recording in the repository against these kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from specswitch.cpu import golden  # noqa: E402
from specswitch.cpu.random_tree import random_tree_case  # noqa: E402

RECORDINGS = sorted((Path(__file__).parents[1] / "gpu" / "golden").glob("*.safetensors"))


def test_a_case_depends_on_its_arguments_alone():
    first, second = (random_tree_case(7, 4, 2, 3, 6) for _ in range(2))
    other = random_tree_case(8, 4, 2, 3, 6)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["candidates"], other["candidates"])


def test_a_tree_larger_than_the_search_is_refused():
    with pytest.raises(ValueError, match="the search has 6"):
        random_tree_case(0, 1, 2, 2, 8)


def test_a_recording_of_these_kernels_shows_no_difference(tmp_path, capsys):
    file = tmp_path / "golden" / "own.safetensors"
    assert golden.main(["record", "--out", str(file)]) == 0
    assert golden.main(["check", str(file)]) == 0
    assert "0 differences" in capsys.readouterr().out


def test_a_changed_output_is_found_and_named(tmp_path, capsys):
    file = tmp_path / "own.safetensors"
    golden.record(file, "specswitch.cpu.kernels", "cpu")
    tensors = safetensors.load_file(file)
    name = f"{golden.SHAPES[5].name}/out/greedy.accept_index"
    tensors[name][0, 0] += 1
    safetensors.save_file(tensors, file)
    assert golden.main(["check", str(file)]) == 1
    assert f"{golden.SHAPES[5].name}: greedy.accept_index" in capsys.readouterr().out


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_these_kernels_agree_with_a_recording(recording):
    assert golden.differences(recording) == []
