"""Rows of the page: sampling, and how requests are served."""

from __future__ import annotations

from .verdicts import Row

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Sampling": (
        Row(
            "temperature",
            "Temperature",
            "`temperature` above 0",
            "Each token is compared with the distribution that the target's weights give without "
            "SGLang. A request drawn twice gives two answers, in one mode as in two.",
        ),
        Row("top_k", "top-k", "`top_k`"),
        Row("top_p", "top-p", "`top_p`"),
        Row(
            "top_k_and_top_p",
            "top-k and top-p at once",
            "",
            "SGLang's verification applies the second filter to what the first has scaled up "
            "(speculative/eagle_info_v2.py:419), plain decode both to the probabilities as they "
            "are (layers/sampler.py:240). specswitch lets verification do as plain decode does.",
        ),
        Row(
            "greedy_beside_draws",
            "Greedy requests in a batch with drawing ones",
            "`temperature` 0",
            "SGLang's verification draws for the whole batch then, and accepts one in 2^24 drafts "
            "that have no probability (speculative/eagle_info_v2.py:435: a uniform number may be "
            "0). specswitch raises that number.",
        ),
        Row(
            "sampling_seed",
            "Seeds",
            "`sampling_seed` (`--enable-deterministic-inference`)",
            "Verification draws from the generator of the process "
            "(speculative/eagle_info_v2.py:435). With the flag, requests without a seed have 42, "
            "so all that draw are decoded target-only. Without the flag SGLang ignores seeds, with "
            "speculation or without (sampling/sampling_batch_info.py:94). In plain decode too the "
            "answer to a seed depends on whether another request of the batch filters "
            "(layers/sampler.py:216). Tested with the flag set past SGLang's own check, which "
            "wants attention of a GPU.",
        ),
    ),
    "Hidden states": (
        Row(
            "hidden_states",
            "EAGLE",
            "`return_hidden_states` (`--enable-return-hidden-states`)",
            "The row that a speculative step returns is that of a draft token, and but for the "
            "first request of the batch of another request's "
            "(managers/scheduler_output_processor_mixin.py:600).",
        ),
        Row(
            "hidden_states_eagle3",
            "EAGLE3",
            "as above",
            "Alike in all modes, and not those of a server without speculation: an EAGLE3 server "
            "returns what its draft reads, the states of several layers side by side.",
        ),
        Row(
            "hidden_states_standalone",
            "STANDALONE",
            "as above",
            "Alike in all modes. Those of the prompt are missing, as a STANDALONE server does not "
            "keep them (speculative/eagle_worker_v2.py:748).",
        ),
    ),
    "Strings that end an answer, and streams": (
        Row(
            "stop_strings",
            "Stop strings",
            "`stop`",
            "SGLang alone looks for them once a step, at the end of the answer "
            "(managers/schedule_batch.py:1185): it would miss one, or keep what comes after it.",
        ),
        Row("stop_regex", "Stop patterns", "`stop_regex`", "As above."),
        Row("ignore_eos", "Going on past the end of text", "`ignore_eos`"),
        Row(
            "stream",
            "Streaming, with log-probabilities",
            "`stream`",
            "The same answer in other pieces: a speculative step sends several tokens at once.",
        ),
        Row("stream_to_a_stop", "Streaming up to a stop string"),
        Row(
            "text_to_a_stop",
            "Text up to a stop string, over HTTP",
            "`stop`, `no_stop_trim`",
            "Whole and streamed: nothing of the stop string is sent.",
        ),
        Row("streamed_text", "Streamed completions, over HTTP", "`/v1/completions`, `stream`"),
        Row("several_answers", "Several answers to a request", "`n`"),
    ),
    "Sessions": (
        Row(
            "session",
            "A session's requests, each going on from an answer",
            "`session_params`",
            "SGLang alone goes on from all that was accepted, past a stop token "
            "(session/session_controller.py:189); specswitch lets a session go on from the end.",
        ),
        Row(
            "streaming_session",
            "A streaming session",
            "`streaming` of `open_session` (`--enable-streaming-session`)",
            "`cached_tokens` may be lower after target-only steps: a prefix is kept as far as the "
            "draft's KV goes.",
        ),
    ),
    "Drafts": (
        Row("draft_eagle", "EAGLE", "`--speculative-algorithm EAGLE`"),
        Row("draft_eagle3", "EAGLE3", "`EAGLE3`"),
        Row("draft_standalone", "A separate small model", "`STANDALONE`"),
        Row(
            "draft_nextn",
            "The MTP head of the model itself",
            "`EAGLE` or `NEXTN`",
            "Tested with MiMo's. Heads of models with experts or latent attention load the same "
            "way and were not run; models with recurrent state are refused.",
        ),
    ),
    "Images and adapters": (
        Row(
            "images",
            "Images in the prompt",
            "",
            "Tested with a Qwen2.5-VL (M-RoPE) and an EAGLE3 head, images given as embeddings. "
            "Drafts that have M-RoPE themselves need `draft_sync.mode: off`.",
        ),
        Row("lora", "LoRA", "`--enable-lora`", "One line says so before a model is loaded."),
    ),
}
