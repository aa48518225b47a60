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
}
