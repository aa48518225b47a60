"""What every test run shares: skips for missing hardware, hypothesis profiles."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import settings

# The machines that run these tests are shared, so a slow example is no failure.
# In CI the examples are fixed: a red run is then about the change under test.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def _cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu`, `multigpu` and `engine` tests where what they need is absent.

    PyTorch is imported only when a GPU test was collected: the unit tests start
    without it.
    """
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    on_several = [item for item in items if item.get_closest_marker("multigpu")]
    on_engine = [item for item in items if item.get_closest_marker("engine")]
    if on_gpu or on_several:
        devices = _cuda_devices()
        if devices < 1:
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if devices < 2:
            for item in on_several:
                item.add_marker(pytest.mark.skip(reason="needs two CUDA devices"))
    if on_engine and importlib.util.find_spec("sglang") is None:
        for item in on_engine:
            item.add_marker(pytest.mark.skip(reason="needs SGLang: make venv"))
