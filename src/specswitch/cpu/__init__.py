"""Runs the unmodified SGLang engine, speculation included, on a machine without a GPU.

SGLang's speculative path calls kernels that exist only for accelerators. This package supplies them
in PyTorch and binds them while the engine is being imported; no file of SGLang is edited. It exists
for the demo, for tests and for trying a configuration out: it is correct, not fast.

Two ways in, and nothing happens without one of them:

* ``SPECSWITCH_CPU=1`` in the environment. The installed file ``specswitch-cpu.pth`` makes every
  Python process that inherits the variable load this package just before it imports ``sglang``: the
  server, its spawned scheduler and detokenizer, a script that uses ``sglang.Engine``. It refuses to
  load where CUDA is present; ``SPECSWITCH_CPU=force`` hides the GPUs from the process instead.
* ``specswitch.cpu.install()`` before ``sglang`` is imported, which also sets the variable for child
  processes.

``SPECSWITCH_CPU_TRITON=1`` runs SGLang's own small Triton kernels in Triton's interpreter instead
of the PyTorch versions here; slower, for checking that both give the same tokens.

Importing this module imports neither torch nor sglang.
"""

from __future__ import annotations

from specswitch.cpu.errors import CpuEngineError
from specswitch.cpu.install import install, is_installed

__all__ = ["CpuEngineError", "install", "is_installed"]
