"""Where the CPU versions are bound in each supported SGLang release: the one module with its names.

A function here receives a module that has just been imported, before any other module copied names
from it. To support another release, add its table to `BINDINGS`; functions whose targets did not
move can be shared.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from specswitch.cpu import environment
from specswitch.cpu.errors import CpuEngineError
from specswitch.cpu.launchable import Launchable

Binding = Callable[[ModuleType], None]


def _eagle_utils(module: Any) -> None:
    from specswitch.cpu import tree, verify

    module.sgl_build_tree_kernel_efficient = tree.build_tree_kernel_efficient

    # The engine's function knows CUDA, HIP, MUSA and NPU; on anything else it returns its outputs
    # unwritten (speculative/eagle_utils.py:173), so the whole function is replaced.
    def verify_tree_greedy_func(
        predicts: Any,
        accept_index: Any,
        accept_token_num: Any,
        candidates: Any,
        retrieve_index: Any,
        retrieve_next_token: Any,
        retrieve_next_sibling: Any,
        target_predict: Any,
        topk: int = -1,
    ) -> tuple[Any, Any, Any]:
        verify.verify_tree_greedy(
            predicts,
            accept_index,
            accept_token_num,
            candidates,
            retrieve_index,
            retrieve_next_token,
            retrieve_next_sibling,
            target_predict,
        )
        return predicts, accept_index, accept_token_num

    module.verify_tree_greedy_func = verify_tree_greedy_func


def _eagle_info_v2(module: Any) -> None:
    from specswitch.cpu import cache_locs, renorm, verify

    module.top_k_renorm_prob = renorm.top_k_renorm_prob
    module.top_p_renorm_prob = renorm.top_p_renorm_prob
    module.tree_speculative_sampling_target_only = verify.tree_speculative_sampling_target_only
    # Read by assign_extend_cache_locs_func() alone (speculative/eagle_info_v2.py:570), which
    # returns None when no branch fits; this makes it launch the kernel below, or the real one in
    # the interpreter.
    module._is_cuda = True
    if not environment.triton_interpreted():
        _replace_kernels(
            module,
            cache_locs,
            "assign_draft_cache_locs_page_size_1",
            "assign_extend_cache_locs",
            "fill_accepted_out_cache_loc",
            "fill_bonus_tokens",
        )


def _spec_utils(module: Any) -> None:
    from specswitch.cpu import cache_locs

    if not environment.triton_interpreted():
        _replace_kernels(module, cache_locs, "assign_req_to_token_pool")


def _draft_utils(module: Any) -> None:
    # The factory has no entry for torch_native (speculative/draft_utils.py:43).
    def create_decode_backend(self: Any) -> Any:
        # With one step the draft model is never run in decode mode (eagle_worker_v2.py:360).
        if self.speculative_num_steps == 1:
            return None
        from specswitch.cpu.attention import CpuMultiStepDraftBackend

        return CpuMultiStepDraftBackend(
            self.draft_model_runner, self.topk, self.speculative_num_steps
        )

    def create_draft_extend_backend(self: Any) -> Any:
        from specswitch.cpu.attention import CpuAttnBackend

        return CpuAttnBackend(self.draft_model_runner)

    module.DraftBackendFactory.create_decode_backend = create_decode_backend
    module.DraftBackendFactory.create_draft_extend_backend = create_draft_extend_backend


def _attention_registry(module: Any) -> None:
    def create_torch_native_backend(runner: Any) -> Any:
        from specswitch.cpu.attention import CpuAttnBackend

        return CpuAttnBackend(runner)

    module.register_attention_backend("torch_native")(create_torch_native_backend)


def _memory_pool(module: Any) -> None:
    # Compiles and launches a Triton kernel on construction (mem_cache/memory_pool.py:850);
    # move_kv_cache() does not use it when SGLANG_NATIVE_MOVE_KV_CACHE is set.
    module.MHATokenToKVPool._init_kv_copy_and_warmup = lambda self: None


def _allocator(module: Any) -> None:
    from specswitch.cpu import paged_alloc

    if not environment.triton_interpreted():
        _replace_kernels(module, paged_alloc, "alloc_decode_kernel", "alloc_extend_kernel")


def _xgrammar_backend(module: Any) -> None:
    # The engine's version masks logits with a Triton kernel and refuses a CPU
    # (constrained/xgrammar_backend.py:114); the library has a CPU kernel of its own.
    def apply_vocab_mask(self: Any, logits: Any, vocab_mask: Any) -> None:
        import xgrammar

        xgrammar.apply_token_bitmask_inplace(logits, vocab_mask)

    module.XGrammarGrammar.apply_vocab_mask = apply_vocab_mask


def _server_args(module: Any) -> None:
    from specswitch.cpu import server_args

    cls = module.ServerArgs
    complete, from_cli_args, check = (
        cls.__post_init__,
        cls.from_cli_args.__func__,
        cls.check_server_args,
    )

    @functools.wraps(complete)
    def post_init(self: Any) -> None:
        server_args.fill_defaults(self)
        complete(self)

    # Refusals come after the constructor, so that a plug-in that hooks it speaks first: from the
    # command line at once and in one line, for users of the class when the engine starts.
    @functools.wraps(from_cli_args)
    def from_cli_args_or_exit(subject: Any, args: Any) -> Any:
        try:
            result = from_cli_args(subject, args)
            server_args.refuse_unsupported(result)
        except CpuEngineError as error:
            sys.exit(f"specswitch: {error}")
        return result

    @functools.wraps(check)
    def check_server_args(self: Any) -> None:
        server_args.refuse_unsupported(self)
        check(self)

    cls.__post_init__ = post_init
    cls.from_cli_args = classmethod(from_cli_args_or_exit)
    cls.check_server_args = check_server_args


def _model_runner(module: Any) -> None:
    # On ARM it would call operators of sgl_kernel to bind threads to cores
    # (model_executor/model_runner.py:1234).
    module._is_cpu_arm64 = False


def _replace_kernels(module: Any, source: Any, *names: str) -> None:
    for name in names:
        if not hasattr(module, name):
            raise AttributeError(
                f"{module.__name__} has no kernel {name}: this release needs its own bindings"
            )
        setattr(module, name, Launchable(getattr(source, name)))


_SRT = "sglang.srt."

BINDINGS: Mapping[str, Mapping[str, Binding]] = {
    "0.5.12.post1": {
        _SRT + "server_args": _server_args,
        _SRT + "speculative.eagle_utils": _eagle_utils,
        _SRT + "speculative.eagle_info_v2": _eagle_info_v2,
        _SRT + "speculative.spec_utils": _spec_utils,
        _SRT + "speculative.draft_utils": _draft_utils,
        _SRT + "layers.attention.attention_registry": _attention_registry,
        _SRT + "mem_cache.memory_pool": _memory_pool,
        _SRT + "mem_cache.allocator": _allocator,
        _SRT + "constrained.xgrammar_backend": _xgrammar_backend,
        _SRT + "model_executor.model_runner": _model_runner,
    },
}
