"""Attention against softmax written out, and trees against SGLang's own beam search."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from harness import run_scenario

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
SLOTS, CONTEXT = 400, 64


class Pool:
    """KV buffers filled with random numbers, in the form the back end asks for."""

    def __init__(self, generator):
        import torch

        self.keys, self.values = torch.randn(
            2, SLOTS, KV_HEADS, HEAD_DIM, generator=generator
        ).unbind()

    def set_kv_buffer(self, layer, slots, k, v):
        self.keys[slots], self.values[slots] = k, v

    def get_key_buffer(self, layer_id):
        return self.keys

    def get_value_buffer(self, layer_id):
        return self.values


def layer(**fields):
    from sglang.srt.layers.radix_attention import AttentionType

    defaults = {
        "layer_id": 0,
        "tp_q_head_num": HEADS,
        "tp_k_head_num": KV_HEADS,
        "qk_head_dim": HEAD_DIM,
        "v_head_dim": HEAD_DIM,
        "scaling": HEAD_DIM**-0.5,
        "is_cross_attention": False,
        "attn_type": AttentionType.DECODER,
        "sliding_window_size": -1,
        "logit_cap": 0.0,
    }
    return SimpleNamespace(**(defaults | fields))


def batch(mode, seq_lens, generator, new, **fields):
    """A forward batch whose requests have `new` rows each, at random slots."""
    import torch

    bs = len(seq_lens)
    table = torch.randperm(SLOTS, generator=generator)[: bs * CONTEXT].view(bs, CONTEXT)
    return SimpleNamespace(
        forward_mode=mode,
        seq_lens=torch.tensor(seq_lens),
        req_pool_indices=torch.randperm(bs, generator=generator),
        req_to_token_pool=SimpleNamespace(req_to_token=table.int()),
        token_to_kv_pool=Pool(generator),
        rows=[new] * bs if isinstance(new, int) else new,
        **fields,
    )


def naive(q, forward_batch, visible):
    """Attention head by head and row by row; visible[b][row] lists the positions a row sees."""
    import torch

    pool, out, at = forward_batch.token_to_kv_pool, [], 0
    for b, rows in enumerate(forward_batch.rows):
        request = int(forward_batch.req_pool_indices[b])
        slots = forward_batch.req_to_token_pool.req_to_token[request]
        for row in range(rows):
            seen = slots[torch.tensor(visible[b][row])].long()
            for head in range(HEADS):
                keys = pool.keys[seen, head * KV_HEADS // HEADS]
                values = pool.values[seen, head * KV_HEADS // HEADS]
                query = q[at].view(HEADS, HEAD_DIM)[head]
                weights = ((keys @ query) * HEAD_DIM**-0.5).softmax(0)
                out.append(weights @ values)
            at += 1
    return torch.stack(out).view(-1, HEADS * HEAD_DIM)


def compare(backend, forward_batch, visible, generator):
    """Runs the back end, new keys and values included, and holds it against `naive`."""
    import torch

    rows = sum(forward_batch.rows)
    last = [positions[-1] for of_request in visible for positions in of_request]
    requests = [
        int(forward_batch.req_pool_indices[b])
        for b, count in enumerate(forward_batch.rows)
        for _ in range(count)
    ]
    # A row's own position is the last it sees.
    forward_batch.out_cache_loc = forward_batch.req_to_token_pool.req_to_token[
        torch.tensor(requests), torch.tensor(last)
    ].long()
    q = torch.randn(rows, HEADS * HEAD_DIM, generator=generator)
    k, v = torch.randn(2, rows, KV_HEADS, HEAD_DIM, generator=generator).unbind()
    run = (
        backend.forward_decode if forward_batch.forward_mode.is_decode() else backend.forward_extend
    )
    backend.init_forward_metadata(forward_batch)
    out = run(q, k, v, layer(), forward_batch)
    torch.testing.assert_close(out, naive(q, forward_batch, visible), rtol=1e-4, atol=1e-5)


def backend(**fields):
    from specswitch.cpu.attention import CpuAttnBackend

    return CpuAttnBackend(SimpleNamespace(device="cpu"), **fields)


def check_decode():
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    generator = torch.Generator().manual_seed(0)
    lens = [1, 17, 40]
    compare(
        backend(),
        batch(ForwardMode.DECODE, lens, generator, 1),
        [[list(range(length))] for length in lens],
        generator,
    )


def check_draft_step():
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        lens = [3, 20]
        # Step i writes position len + i and sees everything up to it.
        compare(
            backend(draft_step=step),
            batch(ForwardMode.DECODE, lens, generator, 1),
            [[list(range(length + step + 1))] for length in lens],
            generator,
        )


def check_extend():
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    for mode in (ForwardMode.EXTEND, ForwardMode.DRAFT_EXTEND_V2):
        generator = torch.Generator().manual_seed(1)
        lens, new = [5, 30, 7], [5, 4, 1]
        forward_batch = batch(mode, lens, generator, new, extend_seq_lens=torch.tensor(new))
        visible = [
            [list(range(length - count + row + 1)) for row in range(count)]
            for length, count in zip(lens, new, strict=True)
        ]
        compare(backend(), forward_batch, visible, generator)


def check_verify():
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from specswitch.cpu import kernels
    from specswitch.cpu.golden import run_kernels
    from specswitch.cpu.random_tree import random_tree_case

    for seed, (topk, depth, n) in enumerate([(1, 3, 4), (4, 5, 8), (2, 3, 6)]):
        case = random_tree_case(seed, 4, topk, depth, n)
        built = run_kernels(case, topk, depth, kernels, "cpu")
        lens = case["seq_lens"].tolist()
        visible, at = [], 0
        for length in lens:
            mask = built["full.tree_mask"][at : at + n * (length + n)].view(n, length + n)
            at += mask.numel()
            visible.append([row.nonzero().flatten().tolist() for row in mask])
        generator = torch.Generator().manual_seed(seed)
        spec_info = SimpleNamespace(draft_token_num=n, custom_mask=built["full.tree_mask"])
        forward_batch = batch(ForwardMode.TARGET_VERIFY, lens, generator, n, spec_info=spec_info)
        compare(backend(), forward_batch, visible, generator)


@pytest.mark.parametrize("check", [check_decode, check_draft_step, check_extend, check_verify])
def test_attention_equals_softmax_written_out(check):
    run_scenario(check)


def test_layers_that_would_be_computed_wrongly_are_refused():
    def refuse(**fields):
        with pytest.raises(NotImplementedError) as caught:
            backend().forward_decode(None, None, None, layer(**fields), None)
        return str(caught.value)

    assert "sliding-window" in run_scenario(refuse, sliding_window_size=128)
    assert "logit cap" in run_scenario(refuse, logit_cap=30.0)


def test_drafting_with_branches_is_refused():
    def refuse():
        from specswitch.cpu.attention import CpuMultiStepDraftBackend

        with pytest.raises(NotImplementedError) as caught:
            CpuMultiStepDraftBackend(SimpleNamespace(device="cpu"), topk=2, speculative_num_steps=3)
        return str(caught.value)

    assert "--speculative-eagle-topk 1" in run_scenario(refuse)


def search_with_the_engine(seed, topk, depth, n):
    """The engine's own beam search over random scores.

    Returns parent list, selected numbers, and each selected token's path spelled in vocabulary
    entries, where the vocabulary entry of a proposal spells the beam it came from.
    """
    import torch
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    generator = torch.Generator().manual_seed(seed)
    hidden = torch.zeros(1, 1)
    # Every proposal is a new vocabulary entry; `parent` remembers what it was proposed after.
    parent, fresh, scores = {}, iter(range(10**6)), None
    score_list, token_list, parents_list = [], [], []
    beams = [None]
    for step in range(depth):
        probabilities = (torch.rand(len(beams), topk, generator=generator) * 0.9 + 0.05).sort(
            dim=-1, descending=True
        )
        entries = [[next(fresh) for _ in range(topk)] for _ in beams]
        for beam, row in zip(beams, entries, strict=True):
            parent |= dict.fromkeys(row, beam)
        tokens = torch.tensor(entries)
        hidden = torch.zeros(len(beams), 1)
        inputs, hidden, scores, info = select_top_k_tokens(
            step, probabilities.values, tokens, hidden, scores, topk
        )
        beams = inputs.flatten().tolist()
        score_list.append(info[0])
        token_list.append(info[1])
        parents_list.append(info[2])
    parent_list, selected, draft = organize_draft_results(score_list, token_list, parents_list, n)
    paths = []
    for entry in draft[0].tolist():
        path = [entry]
        while parent[path[0]] is not None:
            path.insert(0, parent[path[0]])
        paths.append(path)
    return parent_list, selected, draft[0].tolist(), paths


@pytest.mark.parametrize(("topk", "depth", "n"), [(1, 1, 2), (1, 5, 6), (2, 3, 6), (4, 5, 8)])
def test_trees_of_the_engine_s_own_search_are_linked_as_the_search_proposed_them(topk, depth, n):
    def links():
        from specswitch.cpu.tree import ancestors, parent_nodes

        found = []
        for seed in range(10):
            parent_list, selected, draft, paths = search_with_the_engine(seed, topk, depth, n)
            parents = parent_nodes(parent_list[0].tolist(), selected[0].tolist(), topk)
            spelled = [
                [draft[node - 1] for node in reversed(path) if node != 0]
                for path in ancestors(parents)
            ]
            found.append((spelled[1:], paths))
        return found

    for spelled, paths in run_scenario(links):
        assert spelled == paths
