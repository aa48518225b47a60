"""SGLang 0.5.12.post1: where its verification answers otherwise than its plain decode.

Reached as ``compat.release().exactness``. Plain decode samples in layers/sampler.py; speculation
samples in ``EagleVerifyInputV2Mixin.sample`` (speculative/eagle_info_v2.py:333). What the two do
alike, they do alike by the reading of both and by the tests: temperature, top_k, top_p,
``logit_bias`` (373), grammars (383). What they do not is listed here. Line numbers are those of the
released wheel, relative to ``sglang/srt/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.session.session_controller import Session


@dataclass(frozen=True)
class Option:
    """Something a request can ask for that speculation answers otherwise.

    Attributes:
        name: as a client writes it.
        why: what speculation does instead, as a verb.
        asked: whether a request asks for it, on a server with these arguments.
        possible: whether any request can ask for it there.
    """

    name: str
    why: str
    asked: Callable[[Req, Any], bool]
    possible: Callable[[Any], bool] = lambda _: True


def _is_sampled(request: Req, _server_args: Any = None) -> bool:
    # Temperature 0 arrives as top_k 1 (sampling/sampling_params.py:113).
    return request.sampling_params.top_k > 1


def _argmax_only() -> bool:
    """Whether verification takes the likeliest token at any temperature
    (speculative/eagle_info_v2.py:396)."""
    from sglang.srt.utils.common import is_hip, is_npu

    return bool(is_hip() or is_npu())


# Penalties: one token a request and step is counted (speculative/eagle_info_v2.py:99-116), however
# many were accepted, and all tokens of a step get the penalties from before it (358).
_COUNTED = "counts one token a step, however many it accepts"

OPTIONS: tuple[Option, ...] = (
    Option("frequency_penalty", _COUNTED, lambda r, _: r.sampling_params.frequency_penalty != 0.0),
    Option("presence_penalty", _COUNTED, lambda r, _: r.sampling_params.presence_penalty != 0.0),
    Option(
        "repetition_penalty", _COUNTED, lambda r, _: r.sampling_params.repetition_penalty != 1.0
    ),
    # A penalizer too (sampling/penaltylib/min_new_tokens.py:67).
    Option(
        "min_new_tokens",
        "counts steps in place of tokens",
        lambda r, _: r.sampling_params.min_new_tokens > 0,
    ),
    # Plain: layers/sampler.py:229 and 486. Verification filters by top_k and top_p only (419-431).
    # For a greedy request it changes nothing.
    Option("min_p", "ignores it", lambda r, _: r.sampling_params.min_p > 0 and _is_sampled(r)),
    # Plain: layers/sampler.py:79. Without the server's flag the engine refuses such requests
    # (managers/tokenizer_manager.py:901).
    Option(
        "custom_logit_processor", "does not call it", lambda r, _: bool(r.custom_logit_processor)
    ),
    # The scheduler takes row i for request i (managers/scheduler_output_processor_mixin.py:600).
    # Verification leaves a row for each draft token of each request, or none where the draft needs
    # none (STANDALONE), so a step gives one row at most, and one of another request.
    Option(
        "return_hidden_states",
        "gives one row a step, of some draft token",
        lambda r, _: r.return_hidden_states,
    ),
    # Plain: layers/sampler.py:220, with --enable-deterministic-inference only, where requests
    # without a seed have 42 (sampling/sampling_batch_info.py:100). Verification draws from the
    # process's generator (speculative/eagle_info_v2.py:435).
    Option(
        "sampling_seed",
        "ignores it",
        lambda r, args: args.enable_deterministic_inference and _is_sampled(r),
        lambda args: args.enable_deterministic_inference,
    ),
    Option(
        "temperature",
        "ignores it on this platform",
        lambda r, _: _is_sampled(r) and _argmax_only(),
        lambda _: _argmax_only(),
    ),
)


def loose_thresholds(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with thresholds that the engine can be started with, or told at run time
    (managers/scheduler.py:3500); each says what to change.

    Below 1.0 verification accepts a draft with more than its probability
    (speculative/eagle_info_v2.py:454).
    """
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        threshold = values.get(name, 1.0)
        if isinstance(threshold, (int, float)) and threshold < 1.0:
            yield (
                f"{name} {threshold} accepts drafts that the target would not have drawn: set it "
                "to 1.0"
            )


def server_problems(server_args: Any) -> Iterator[str]:
    """What makes every answer of a server depend on the mode; each says what to change."""
    yield from loose_thresholds(vars(server_args))
    # Plain decode alone goes through a sampler that a plug-in has registered
    # (layers/sampler.py:449).
    backend = server_args.sampling_backend
    if backend not in (None, "flashinfer", "pytorch", "ascend"):
        yield (
            f"--sampling-backend {backend} is not used by speculation: set it to flashinfer or "
            "pytorch"
        )


def inherited_options(model_config: Any) -> dict[str, float]:
    """Options that chat requests ask for without saying so, with their values.

    With ``--sampling-defaults model``, the default, a chat request takes what it leaves open from
    the model's generation_config.json (configs/model_config.py:1329,
    entrypoints/openai/serving_chat.py:213).
    """
    defaults = model_config.get_default_sampling_params()
    neutral = {"repetition_penalty": 1.0, "min_p": 0.0}
    return {
        name: defaults[name]
        for name, value in neutral.items()
        if defaults.get(name, value) != value
    }


def simulated_acceptance() -> float | None:
    """Length at which the engine feigns acceptance (speculative/spec_utils.py:46), None: it does
    not."""
    from sglang.srt.speculative.spec_utils import SIMULATE_ACC_LEN

    return SIMULATE_ACC_LEN if SIMULATE_ACC_LEN > 0 else None


def filter_as_plain_decode() -> None:
    """Let verification take the tokens that both top_k and top_p leave, as plain decode does.

    Plain decode looks at both on the probabilities as they are (``filter_apply_order="joint"``,
    layers/sampler.py:240, and likewise 484). Verification scales what top_k
    leaves up to 1 and applies top_p to that (speculative/eagle_info_v2.py:419-431), which leaves
    fewer tokens where a request asks for both. Applied the other way round the two are the joint
    filter: both keep a head of the sorted tokens, and top_k does not look at how large they are.

    Replaces the two functions in the module of the verification, which calls one right after the
    other. To be called once a process, before the first batch; further calls do nothing.
    """
    from sglang.srt.speculative import eagle_info_v2

    if not hasattr(eagle_info_v2, "top_k_renorm_prob"):
        return  # a platform that verifies by argmax
    if hasattr(eagle_info_v2.top_p_renorm_prob, _REPAIRED):
        return
    top_k_first, top_p_second = eagle_info_v2.top_k_renorm_prob, eagle_info_v2.top_p_renorm_prob
    held: list[torch.Tensor] = []

    def hold(probabilities: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
        held.append(top_ks)
        return probabilities

    def filter_jointly(probabilities: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
        return top_k_first(top_p_second(probabilities, top_ps), held.pop())

    setattr(filter_jointly, _REPAIRED, True)
    eagle_info_v2.top_k_renorm_prob = hold
    eagle_info_v2.top_p_renorm_prob = filter_jointly


def draw_as_plain_decode() -> None:
    """Let verification refuse every draft that the target excludes.

    It accepts a draft when a uniform number is not above the draft's probability
    (``uniform_samples`` in speculative/eagle_info_v2.py:435 and 441; the kernel compares with
    ``<=``). That number is a multiple of 2^-24 and may be 0, so one in 2^24 drafts that a filter,
    a grammar or temperature 0 leaves no probability would be accepted. The numbers are raised to
    half of the smallest above 0, which no probability that matters can tell.

    Replaces the kernel in the module of the verification. To be called once a process, before the
    first batch; further calls do nothing.
    """
    from sglang.srt.speculative import eagle_info_v2

    if not hasattr(eagle_info_v2, "tree_speculative_sampling_target_only"):
        return  # a platform that verifies by argmax
    verify = eagle_info_v2.tree_speculative_sampling_target_only
    if hasattr(verify, _REPAIRED):
        return

    def verify_possible(*args: Any, uniform_samples: torch.Tensor, **kwargs: Any) -> None:
        verify(*args, uniform_samples=uniform_samples.clamp_(min=2.0**-25), **kwargs)

    setattr(verify_possible, _REPAIRED, True)
    eagle_info_v2.tree_speculative_sampling_target_only = verify_possible


def end_as_plain_decode() -> None:
    """Let a request end where plain decode ends it, whatever a step emits after that.

    The engine looks at all tokens of a step at once, the length first (managers/schedule_batch.py
    :1222): an answer that is complete within the step that also reaches ``max_new_tokens`` goes on
    to that length. A stop string is looked for at the very end of the answer (1116), where a step
    that goes on after it hides it; and where it is found, the tokens after it are kept, with their
    log-probabilities and in the count of tokens. So where either can happen, each token is looked
    at by itself, as in plain decode. What was accepted after the end stays with the request, which
    owns its KV slots, and is not sent (933).

    Replaces the engine's function. To be called once a process; further calls do nothing.
    """
    from sglang.srt.managers.schedule_batch import Req

    check = Req.check_finished
    if hasattr(check, _REPAIRED):
        return

    def check_one_by_one(self: Req, new_accepted_len: int = 1) -> None:
        wanted = self.sampling_params
        if new_accepted_len == 1 or not (
            len(self.output_ids) >= wanted.max_new_tokens
            or wanted.stop_strs
            or wanted.stop_regex_strs
        ):
            # Stop tokens the engine finds wherever in a step they are.
            check(self, new_accepted_len)
            return
        tokens = self.output_ids[-new_accepted_len:]
        del self.output_ids[-new_accepted_len:]
        for number, token in enumerate(tokens, 1):
            self.output_ids.append(token)
            check(self, 1)
            if self.finished():
                if self.finished_len is None:
                    self.finished_len = len(self.output_ids)
                self.output_ids += tokens[number:]
                break

    setattr(check_one_by_one, _REPAIRED, True)
    Req.check_finished = check_one_by_one


def continue_as_plain_decode() -> None:
    """Let a session go on from where its last answer ended.

    The next prompt of a session is the last one with its answer
    (session/session_controller.py:189). To that the engine counts what was accepted after the end,
    unless the session is a streaming one (session/streaming_session.py:508). A request that has
    ended owns no KV any more when the next one is made, so those tokens can go.

    Replaces the engine's function. To be called once a process; further calls do nothing.
    """
    from sglang.srt.session.session_controller import Session

    create = Session.create_req
    if hasattr(create, _REPAIRED):
        return

    def create_after_the_end(self: Session, *args: Any, **kwargs: Any) -> Req:
        if not self.streaming:
            for node in self.req_nodes.values():
                if node.req.finished_len is not None:
                    del node.req.output_ids[node.req.finished_len :]
        return create(self, *args, **kwargs)

    setattr(create_after_the_end, _REPAIRED, True)
    Session.create_req = create_after_the_end


_REPAIRED = "specswitch_repaired"
