"""Rows of the page: what one request can ask for."""

from __future__ import annotations

from .verdicts import Row

_PENALTY = (
    "Verification counts one token a request and step, whatever was accepted "
    "(speculative/eagle_info_v2.py:99), and gives all tokens of a step the penalties from before "
    "it."
)

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Decoding": (
        Row("greedy", "Greedy", "`temperature` 0"),
        Row(
            "logit_bias",
            "Logit bias",
            "`logit_bias`",
            "Added to the logits of every token of a step (speculative/eagle_info_v2.py:373).",
        ),
        Row("frequency_penalty", "Frequency penalty", "`frequency_penalty`", _PENALTY),
        Row("presence_penalty", "Presence penalty", "`presence_penalty`", "As above."),
        Row("repetition_penalty", "Repetition penalty", "`repetition_penalty`", "As above."),
        Row(
            "penalties_together",
            "All penalties at once, logit bias and log-probabilities with them",
            "",
            "Requests without a penalty in the same batch are answered as ever.",
        ),
        Row(
            "min_new_tokens",
            "Least number of new tokens",
            "`min_new_tokens`",
            "Verification counts steps in place of tokens (sampling/penaltylib/min_new_tokens.py:"
            "67): an answer would have to be several times as long.",
        ),
        Row(
            "min_p",
            "min-p sampling",
            "`min_p` with a `temperature`",
            "Verification ignores it: it filters by `top_k` and `top_p` only "
            "(speculative/eagle_info_v2.py:419). Greedy requests with a `min_p` are speculated "
            "for, as it changes nothing for them.",
        ),
        Row(
            "custom_logit_processor",
            "Custom logit processors",
            "`custom_logit_processor` (`--enable-custom-logit-processor`)",
            "Called by the plain sampler only (layers/sampler.py:79).",
        ),
    ),
    "Ends": (
        Row("stop_token_ids", "Stop tokens", "`stop_token_ids`, end-of-text"),
        Row(
            "stop_token_at_limit",
            "Stop token just before the length limit",
            "`max_new_tokens`",
            "SGLang alone looks at the length first, and at all tokens of a step at once "
            "(managers/schedule_batch.py:1222): it would go on to the limit. specswitch looks at "
            "each token by itself, as plain decode does.",
        ),
    ),
    "Log-probabilities": (
        Row("logprobs", "Of the output", "`return_logprob`"),
        Row("top_logprobs", "Of alternatives", "`top_logprobs_num`"),
        Row("token_ids_logprobs", "Of named tokens", "`token_ids_logprob`"),
        Row("input_logprobs", "Of the prompt", "`logprob_start_len`", "Made by the prefill."),
        Row("input_logprobs_in_chunks", "Of a prompt that is prefilled in chunks"),
        Row(
            "mixed_logprobs",
            "Different wishes in one batch",
            "",
            "And requests that ask for none.",
        ),
        Row(
            "logprobs_to_a_stop",
            "Of an answer that ends inside a step",
            "",
            "What was accepted after the end has no entry.",
        ),
        Row(
            "drawn_logprobs",
            "Of drawn tokens",
            "`temperature` 1",
            "Compared with the log-probabilities that a prefill of the same text gives.",
        ),
    ),
    "Structured output (xgrammar)": (
        Row("json_schema", "JSON schema", "`json_schema`"),
        Row("regex", "Regular expression", "`regex`"),
        Row("ebnf", "EBNF", "`ebnf`"),
        Row(
            "grammar_beside_plain",
            "With and without a grammar in one batch",
            "",
            "While a batch holds a grammar, SGLang does not overlap steps of a speculative server "
            "(managers/scheduler.py:1640), in either mode.",
        ),
        Row("grammar_logprobs", "JSON schema with log-probabilities"),
        Row("structural_tag", "Structural tags", "`structural_tag`"),
        Row("grammar_with_penalty", "With a penalty", "", "The penalty decides."),
    ),
}
