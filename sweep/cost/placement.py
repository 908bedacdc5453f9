"""Where bytes live: classes of them fill tiers of memory in order, and what that does to reads.

Only machines whose memory is a hierarchy come here (`Kinds.tiers` is empty otherwise, and nothing of this is compiled).
A class takes what is left of a tier, step by step; reads of a class then go at the mean rate of what it took.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from sweep.cost.arith import ceil_div, floor, maximum, minimum, repeat, where
from sweep.cost.memory import (
    ACTIVATION_BYTES,
    expert_bytes,
    held_bytes,
    request_bytes,
    weights_bytes,
)
from sweep.cost.prefill import ttft_s
from sweep.cost.step import Row, step_tokens
from sweep.machine import Machine, Memory
from sweep.point import Context, Kinds, Num

WEIGHTS, EXPERTS, KV, ACTIVATIONS, PREFIX = range(5)  # the classes of `sweep.tiers`
_SEARCH = 24  # halvings: up to 16 million requests, which float32 still counts


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Placed:
    """Bytes of each class in each tier of one GPU, and those that found no room."""

    taken: tuple[tuple[Num, ...], ...]  # [class][tier]
    sizes: tuple[Num, ...]  # of each class
    left: tuple[Num, ...]  # of each class, without room
    unplaced: Num  # their sum


def place(memory: Memory, steps: tuple[tuple[int, int], ...], sizes: tuple[Num, ...]) -> Placed:
    """Fill the tiers: each step gives a class what it still needs of what a tier still has.

        take = min(bytes left of the class, room left in the tier, share x bytes of the class)

    Args:
        memory: room in each tier; largest share of its class that a step may place.
        steps: class and tier of each step, in order.
        sizes: bytes of each class.
    """
    left, room = list(sizes), list(memory.tier_bytes)
    taken: list[list[Num]] = [[0.0] * len(room) for _ in sizes]
    for (of, tier), share in zip(steps, memory.share, strict=True):
        take = minimum(minimum(left[of], room[tier]), share * sizes[of])
        left[of] = left[of] - take
        room[tier] = room[tier] - take
        taken[of][tier] = taken[of][tier] + take
    unplaced: Num = 0.0
    for rest in left:
        unplaced = unplaced + rest
    return Placed(taken=tuple(tuple(t) for t in taken), sizes=sizes, left=tuple(left), unplaced=unplaced)


def slowdown(memory: Memory, placed: Placed, of: int) -> Num:
    """Seconds per byte of a class over those of the fastest tier: the mean over tiers, or overlapped the slowest part.

        serial: sum_t bytes_t slowdown_t / bytes         overlapped: max_t of the same

    Reads hit the tiers in proportion to the bytes that lie there. A class of no bytes is read at full rate; bytes that
    found no room, of a point that does not fit, count as in the slowest tier.
    Source: the sum and the maximum of section 7 of the cost model (LIMINAL, arXiv 2507.14397).
    """
    slowest: Num = 1.0
    for slow in memory.slowdown:
        slowest = maximum(slowest, slow)
    one_by_one = placed.left[of] * slowest
    longest = one_by_one
    for size, slow in zip(placed.taken[of], memory.slowdown, strict=True):
        one_by_one = one_by_one + size * slow
        longest = maximum(longest, size * slow)
    inside = placed.sizes[of]
    seconds = where(memory.overlapped > 0, longest, one_by_one) / where(inside > 0, inside, 1.0)
    return where(inside > 0, seconds, 1.0)


def slowed(machine: Machine, memory: Memory, placed: Placed) -> Machine:
    """The machine with the rates at which each kind of kernel reads what it reads from where that lies."""
    act = slowdown(memory, placed, ACTIVATIONS)
    weights, experts, kv = (slowdown(memory, placed, of) for of in (WEIGHTS, EXPERTS, KV))
    changed: dict[str, Any] = {}
    for names, held in (
        (("gemm_attn", "gemm_ffn", "gemm_head"), weights),
        (("experts",), experts),
        (("attention", "mla", "prefill", "state"), kv),
    ):
        for name in names:
            changed[name] = dataclasses.replace(getattr(machine, name), held_slowdown=held, act_slowdown=act)
    return dataclasses.replace(machine, **changed)


def _sizes(row: Row, weights: Num, kv: Num, activations: Num) -> tuple[Num, ...]:
    memory = row.machine.memory
    assert memory is not None
    experts = expert_bytes(row.model, row.machine, row.layout)
    dense = maximum(weights_bytes(row.model, row.machine, row.layout, experts=False), 0.0)
    return (dense, minimum(experts, weights), kv, activations, memory.idle_per_running * kv)


def of_step(row: Row, weights: Num, per_request: Num, batch: Num, kinds: Kinds) -> Placed:
    """Where the bytes of a running batch lie on one GPU.

    Args:
        weights: bytes of weights, experts included.
        per_request: bytes of cache of one request at its longest context.
        batch: requests in flight per replica.
    """
    memory = row.machine.memory
    assert memory is not None
    drafted = row.model.n_draft if kinds.drafting else 0.0
    tokens = step_tokens(row.layout, batch, drafted, kinds)
    held = held_bytes(weights, per_request, row.model, row.machine, row.layout, tokens, batch)
    return place(memory, kinds.tiers, _sizes(row, weights, held.kv, held.activations))


def with_tiers(row: Row, weights: Num, per_request: Num, batch: Num, kinds: Kinds) -> tuple[Row, Num]:
    """The row as its running batch finds it, and the bytes that found no room; as it is where memory is one tier."""
    if not kinds.tiers:
        return row, 0.0
    memory = row.machine.memory
    assert memory is not None
    placed = of_step(row, weights, per_request, batch, kinds)
    return dataclasses.replace(row, machine=slowed(row.machine, memory, placed)), placed.unplaced


def tiered_max_batch(row: Row, weights: Num, per_request: Num, kinds: Kinds) -> Num:
    """The largest number of requests whose bytes all find room: dpa times the largest per attention group.

    Room falls with every request, so the number is found by halving.
    """
    memory = row.machine.memory
    assert memory is not None
    each_act = ACTIVATION_BYTES * row.model.d_model * (1.0 + row.model.n_draft)
    total: Num = 0.0
    for room in memory.tier_bytes:
        total = total + room
    hi = minimum(maximum(floor(total / (per_request + each_act)), 0.0), 2.0**_SEARCH)
    start = _sizes(row, weights, per_request, each_act)

    def halve(bounds: tuple[Num, Num]) -> tuple[Num, Num]:
        lo, hi = bounds
        mid = ceil_div(lo + hi, 2.0)
        grown = (start[WEIGHTS], start[EXPERTS], mid * start[KV], mid * start[ACTIVATIONS], mid * start[PREFIX])
        fits = place(memory, kinds.tiers, grown).unplaced <= 0
        return where(fits, mid, lo), where(fits, hi, maximum(mid - 1.0, lo))

    return row.layout.dpa * repeat(_SEARCH, halve, (hi * 0.0, hi))[0]


def alone(row: Row, weights: Num, context: Context, kinds: Kinds) -> tuple[Row, Placed | None]:
    """The row as one prompt finds it with nothing else in memory, and where its bytes and its prefix lie."""
    if not kinds.tiers:
        return row, None
    memory = row.machine.memory
    assert memory is not None
    m, layout = row.model, row.layout
    cached = context.prompt * context.prefix_hit
    kv = request_bytes(m, row.machine, layout, context.longest)
    prefix = request_bytes(m, row.machine, layout, cached) * where(cached > 0, 1.0, 0.0)
    sizes = (*_sizes(row, weights, kv, ACTIVATION_BYTES * m.d_model)[:PREFIX], prefix)
    placed = place(memory, kinds.tiers, sizes)
    return dataclasses.replace(row, machine=slowed(row.machine, memory, placed)), placed


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Reload:
    """What a prefix costs that waits in a slower tier: read back, or computed again."""

    bytes: Num  # of the prefix outside the running cache's own tier, on one GPU
    reload_s: Num
    rest_s: Num  # prefill of what is not in the prefix
    recompute_s: Num  # prefill of all of it
    with_reload_s: Num
    ttft_s: Num
    break_even_bytes_per_s: Num  # reload bandwidth at which both take as long


def tiered_ttft(row: Row, weights: Num, context: Context, kinds: Kinds) -> Reload:
    """Time to the first token of one request per attention group on a machine with nothing else in its memory.

        serial: reload + rest      overlapped: max(reload, rest)      fastest: the smaller of that and computing all

    The reload moves the prefix's share outside of the running cache's first tier, at that tier's rate and the share
    of it that prefill attention's reads reach.
    Break-even bandwidth: bytes / (recompute - rest), overlapped bytes / recompute.
    Source: the reload-or-recompute comparison of hierarchical KV caches (CacheGen, arXiv 2310.07240; Mooncake,
        arXiv 2407.00079).
    """
    memory = row.machine.memory
    quiet, placed = alone(row, weights, context, kinds)
    assert memory is not None and placed is not None
    rest_s = ttft_s(quiet, context, kinds)
    if not kinds.reload:
        zero = rest_s * 0.0
        return Reload(
            bytes=zero,
            reload_s=zero,
            rest_s=rest_s,
            recompute_s=rest_s,
            with_reload_s=rest_s,
            ttft_s=rest_s,
            break_even_bytes_per_s=zero,
        )
    per_byte = 1.0 / row.machine.prefill.read_bytes_per_s
    away: Num = 0.0
    serial: Num = 0.0
    longest: Num = 0.0
    for size, slow, home in zip(placed.taken[PREFIX], memory.slowdown, memory.home, strict=True):
        outside = size * (1.0 - home)
        seconds = outside * slow * per_byte
        away, serial, longest = away + outside, serial + seconds, maximum(longest, seconds)
    reload_s = where(memory.overlapped > 0, longest, serial)
    recompute_s = ttft_s(quiet, dataclasses.replace(context, prefix_hit=context.prefix_hit * 0.0), kinds)
    both = where(memory.reload_overlapped > 0, maximum(reload_s, rest_s), reload_s + rest_s)
    saved = where(memory.reload_overlapped > 0, recompute_s, recompute_s - rest_s)
    return Reload(
        bytes=away,
        reload_s=reload_s,
        rest_s=rest_s,
        recompute_s=recompute_s,
        with_reload_s=both,
        ttft_s=where(memory.reload_fastest > 0, minimum(both, recompute_s), both),
        break_even_bytes_per_s=away / where(saved > 0, saved, float("nan")),
    )
