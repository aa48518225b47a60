"""Renormalisation, slot lists and page allocation against plain loops."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from specswitch.cpu import cache_locs, paged_alloc, renorm  # noqa: E402
from specswitch.cpu.launchable import Launchable  # noqa: E402


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_probs(seed, rows=12, vocabulary=50):
    weights = torch.rand(rows, vocabulary, generator=generator(seed)) ** 6
    return weights / weights.sum(-1, keepdim=True)


# --- renormalisation ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_top_k_keeps_the_k_largest_and_scales_them_to_one(seed):
    probs = random_probs(seed)
    top_k = torch.randint(1, 60, (12,), generator=generator(seed + 100), dtype=torch.int32)
    result = renorm.top_k_renorm_prob(probs, top_k)
    for row, k, actual in zip(probs.tolist(), top_k.tolist(), result.tolist(), strict=True):
        kept = set(sorted(range(50), key=lambda t: -row[t])[:k])
        total = sum(row[t] for t in kept)
        expected = [row[t] / total if t in kept else 0.0 for t in range(50)]
        assert actual == pytest.approx(expected, abs=1e-6)


def test_top_k_keeps_tokens_tied_with_the_last():
    probs = torch.tensor([[0.4, 0.2, 0.2, 0.2]])
    result = renorm.top_k_renorm_prob(probs, torch.tensor([2]))
    assert result[0].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("seed", range(5))
def test_top_p_keeps_the_shortest_run_that_reaches_p(seed):
    probs = random_probs(seed)
    top_p = torch.rand(12, generator=generator(seed + 100)).clamp(min=0.02)
    result = renorm.top_p_renorm_prob(probs, top_p)
    for row, p, actual in zip(probs.tolist(), top_p.tolist(), result.tolist(), strict=True):
        kept, reached = set(), 0.0
        for token in sorted(range(50), key=lambda t: -row[t]):
            if reached > p:
                break
            kept.add(token)
            reached += row[token]
        expected = [row[t] / reached if t in kept else 0.0 for t in range(50)]
        assert actual == pytest.approx(expected, abs=1e-6)


def test_no_limit_changes_nothing():
    probs = random_probs(0)
    everything = torch.full((12,), 1 << 30, dtype=torch.int32)
    assert torch.allclose(renorm.top_k_renorm_prob(probs, everything), probs)
    assert torch.allclose(renorm.top_p_renorm_prob(probs, torch.ones(12)), probs)


# --- slot lists -----------------------------------------------------------------------------------


def table_and_requests(seed, rows=9, context=60, bs=5):
    table = torch.randperm(rows * context, generator=generator(seed)).view(rows, context).int()
    requests = torch.randperm(rows, generator=generator(seed + 1))[:bs]
    start = torch.randint(0, context - 20, (bs,), generator=generator(seed + 2))
    end = start + torch.randint(0, 20, (bs,), generator=generator(seed + 3))
    return table, requests, start, end


@pytest.mark.parametrize("seed", range(5))
def test_draft_slots_are_those_of_the_next_positions(seed):
    table, requests, start, _ = table_and_requests(seed)
    out = torch.empty(5 * 6, dtype=torch.int64)
    cache_locs.assign_draft_cache_locs_page_size_1(requests, table, start, out, 60, 2, 3)
    expected = []
    for request, s in zip(requests.tolist(), start.tolist(), strict=True):
        expected += table[request].tolist()[s : s + 6]
    assert out.tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_extend_slots_are_read_request_after_request(seed):
    table, requests, start, end = table_and_requests(seed)
    out = torch.full((200,), -9)
    cache_locs.assign_extend_cache_locs(requests, table, start, end, out, 60, 8)
    expected = []
    for request, s, e in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        expected += table[request].tolist()[s:e]
    assert out.tolist() == expected + [-9] * (200 - len(expected))


@pytest.mark.parametrize("seed", range(5))
def test_writing_slots_to_the_table_touches_the_given_positions_only(seed):
    table, requests, start, end = table_and_requests(seed)
    expected = table.tolist()
    slots = torch.arange(1000, 1200)
    taken = iter(slots.tolist())
    for request, s, e in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        for position in range(s, e):
            expected[request][position] = next(taken)
    cache_locs.assign_req_to_token_pool(requests, table, start, end, slots, 60, 8)
    assert table.tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_bonus_token_is_the_last_accepted_one(seed):
    tokens = torch.randint(0, 99, (6, 4), generator=generator(seed), dtype=torch.int32)
    lens = torch.randint(1, 5, (6,), generator=generator(seed + 1), dtype=torch.int32)
    out = torch.empty(6, dtype=torch.int32)
    cache_locs.fill_bonus_tokens(tokens, lens, out, 4)
    assert out.tolist() == [
        row[length - 1] for row, length in zip(tokens.tolist(), lens.tolist(), strict=True)
    ]


def test_accepted_slots_are_compacted_to_the_left():
    index = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
    out = torch.full((5,), -9)
    cache_locs.fill_accepted_out_cache_loc(index, torch.tensor([10, 11, 12, 13, 14]), out, 8)
    assert out.tolist() == [10, 12, 13, -9, -9]


def test_a_launchable_ignores_the_grid():
    calls = []
    Launchable(lambda *args: calls.append(args))[(7,)](1, 2)
    assert calls == [(1, 2)]


# --- pages ----------------------------------------------------------------------------------------

PAGE = 4


def position_slots(pages, length):
    """Slot of each of the first `length` positions of a request that owns `pages` in order."""
    return [pages[position // PAGE] * PAGE + position % PAGE for position in range(length)]


def pages_for(length):
    return (length + PAGE - 1) // PAGE


@pytest.mark.parametrize("seed", range(20))
def test_extending_fills_the_last_page_and_then_takes_pages_in_order(seed):
    g = generator(seed)
    before = torch.randint(0, 14, (5,), generator=g)
    after = before + torch.randint(0, 14, (5,), generator=g)
    order = torch.randperm(60, generator=g).tolist()
    owned, free = [], order[20:]
    for length in before.tolist():
        count = pages_for(length)
        owned.append([order.pop(0) for _ in range(count)])
    unused, expected, last = list(free), [], []
    for pages, b, a in zip(owned, before.tolist(), after.tolist(), strict=True):
        last.append(position_slots(pages, b)[-1] if b else -1)
        grown = pages + [unused.pop(0) for _ in range(pages_for(a) - pages_for(b))]
        expected += position_slots(grown, a)[b:]
    out = torch.empty(len(expected), dtype=torch.int64)
    paged_alloc.alloc_extend_kernel(
        before, after, torch.tensor(last), torch.tensor(free), out, 8, PAGE
    )
    assert out.tolist() == expected


def test_decoding_takes_a_new_page_at_a_page_boundary_only():
    # Lengths before: 3 (room in the page), 4 (page full), 8 (page full).
    out = torch.empty(3, dtype=torch.int64)
    paged_alloc.alloc_decode_kernel(
        torch.tensor([4, 5, 9]), torch.tensor([42, 11, 23]), torch.tensor([9, 7, 5]), out, 4, PAGE
    )
    assert out.tolist() == [43, 9 * PAGE, 7 * PAGE]


def test_too_few_free_pages_leave_the_output_alone():
    out = torch.full((8,), -9)
    paged_alloc.alloc_extend_kernel(
        torch.tensor([0]), torch.tensor([8]), torch.tensor([-1]), torch.tensor([3]), out, 1, PAGE
    )
    assert out.tolist() == [-9] * 8
