"""SGLang 0.5.12.post1: what a server will be, told from its arguments before any weight is read.

Reached as ``compat.release().plans``. Line numbers are those of the released wheel, relative to
``sglang/srt/``.
"""

from __future__ import annotations

from typing import Any


def server_args(words: list[str]) -> Any:
    """The engine's ``ServerArgs`` of a command line, completed (server_args.py:7723).

    Reads the configuration of the models, not their weights.
    """
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args(words)


def load_plugins() -> None:
    """What every process of the engine does first (plugins/__init__.py:105)."""
    from sglang.srt.plugins import load_plugins as load

    load()


def speculative_workers() -> list[str]:
    """What ``--speculative-worker`` takes on an engine with the native patch
    (speculative/worker_plugin.py, patched)."""
    from sglang.srt.speculative.worker_plugin import spec_worker_names

    names: list[str] = spec_worker_names()
    return names


def attention_backends(arguments: Any) -> tuple[str | None, str | None]:
    """(prefill, decode) attention backend (server_args.py:7194)."""
    prefill, decode = arguments.get_attention_backends()
    return prefill, decode


def pool_rows(arguments: Any) -> int:
    """Rows of the request pool at most: one a request, and one for padding
    (model_executor/model_runner_kv_cache_mixin.py:824, mem_cache/memory_pool.py:146)."""
    rows: int = arguments.max_running_requests // arguments.dp_size + 1
    return rows


def target_config(arguments: Any) -> Any:
    """The target's ``ModelConfig`` (server_args.py:7185)."""
    return arguments.get_model_config()


def draft_input_width(arguments: Any) -> int | None:
    """As ``draft_input_width`` of a running worker, from the models' configurations.

    See model_executor/model_runner.py:418 and speculative/eagle_info.py:877.
    """
    if arguments.speculative_algorithm == "STANDALONE":
        return None
    target = target_config(arguments)
    width: int = target.spec_hidden_size
    if arguments.speculative_algorithm != "EAGLE3":
        return width
    from sglang.srt.configs.model_config import ModelConfig

    draft = ModelConfig.from_server_args(
        arguments,
        model_path=arguments.speculative_draft_model_path,
        model_revision=arguments.speculative_draft_model_revision,
        is_draft_model=True,
    )
    eagle = getattr(draft.hf_config, "eagle_config", None) or {}
    if not eagle.get("use_aux_hidden_state", True):
        return width
    layers = eagle.get("eagle_aux_hidden_state_layer_ids")
    hidden: int = target.hidden_size
    if layers:
        return len(layers) * hidden
    number = getattr(target.hf_config, "num_aux_hidden_states", None) or 3
    return number * int(getattr(target.hf_config, "target_hidden_size", hidden))
