"""From times and bytes of a point to the columns a person asks for."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from sweep.cost.arith import maximum, where
from sweep.cost.memory import (
    count_params,
    gpus,
    held_bytes,
    kv_bytes_per_token,
    max_batch,
    request_bytes,
    weights_bytes,
)
from sweep.cost.placement import alone, tiered_max_batch, tiered_ttft, with_tiers
from sweep.cost.prefill import Prefill
from sweep.cost.prefill import prefill as prefill_of
from sweep.cost.serving import kv_transfer_s, mixed_tpot_s, request_rate
from sweep.cost.step import Load, LoadStep, Row, load_terms, step_tokens, token_time
from sweep.point import Context, Kinds, Num

BOUNDS = ("math", "weight_read", "kv_read", "activation", "comm", "latency", "prefill")
# bits of the `reasons` column, in this order
REASONS = ("capacity", "not_divisible", "over_domain", "ttft_cut", "unknown_figure", "no_format", "tpot_cut")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RowCost:
    """What a configuration alone decides."""

    accuracy: Num
    accuracy_low: Num
    accuracy_high: Num
    loss: Num
    loss_sigma: Num
    extrapolation: Num
    weights_bytes: Num
    params_total: Num
    params_active: Num
    kv_bytes_per_tok: Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class ContextCost:
    """What a configuration and a context decide."""

    ttft_s: Num
    request_bytes: Num
    max_batch: Num
    prefill_busy_s: Num  # of a stage per prompt and attention group
    prefill_chunks: Num
    prefill_req_s: Num
    kv_transfer_s: Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class PointCost:
    """What a configuration, a batch and a context decide."""

    tok_s_gpu: Num
    tok_s_user: Num
    tpot_s: Num
    request_s: Num
    ttft_s: Num
    prefill_s: Num
    concurrency: Num
    total_tok_s_gpu: Num
    tok_s_mw: Num
    usd_per_mtok: Num
    joule_per_tok: Num
    math_s: Num
    weight_read_s: Num
    kv_read_s: Num
    activation_s: Num
    comm_s: Num
    latency_s: Num
    bound: Num  # index into BOUNDS
    mfu: Num
    mbu: Num
    intensity: Num
    kv_bytes: Num
    activation_bytes: Num
    held_bytes: Num
    fits: Num  # 1 where the capacity suffices
    in_time: Num  # 1 where the time to the first token is not over its limit
    in_pace: Num  # 1 where the time per output token is not over its limit


def row_cost(row: Row) -> RowCost:
    """Parameters, weights and accuracy of one configuration."""
    params = count_params(row.model)
    return RowCost(
        accuracy=row.accuracy,
        accuracy_low=row.accuracy_low,
        accuracy_high=row.accuracy_high,
        loss=row.loss,
        loss_sigma=row.loss_sigma,
        extrapolation=row.extrapolation,
        weights_bytes=weights_bytes(row.model, row.machine, row.layout),
        params_total=params.total,
        params_active=params.active,
        kv_bytes_per_tok=kv_bytes_per_token(row.model, row.machine),
    )


def load_cost(row: Row, batch: Num, kinds: Kinds) -> Load:
    """The context-free half of the decode step; empty with tiers of memory, whose filling the context decides too."""
    if kinds.tiers:
        return Load(step=LoadStep(), plain=LoadStep())
    return load_terms(row, batch, kinds)


def context_cost(row: Row, weights: Num, context: Context, kinds: Kinds, *, prefill: bool = True) -> ContextCost:
    """Memory of one request, and its prefill unless nobody asks for it."""
    each = request_bytes(row.model, row.machine, row.layout, context.longest)
    nothing = each * 0.0
    first = Prefill(ttft_s=nothing, busy_s=nothing, chunks=nothing)
    if prefill and kinds.tiers:
        rest = prefill_of(alone(row, weights, context, kinds)[0], context, kinds)
        ttft = tiered_ttft(row, weights, context, kinds).ttft_s
        # what a reload adds to the first token keeps the stage from the next prompt
        first = Prefill(ttft_s=ttft, busy_s=rest.busy_s + (ttft - rest.ttft_s), chunks=rest.chunks)
    elif prefill:
        first = prefill_of(row, context, kinds)
    most = (
        tiered_max_batch(row, weights, each, kinds)
        if kinds.tiers
        else max_batch(weights, each, row.model, row.machine, row.layout)
    )
    return ContextCost(
        ttft_s=first.ttft_s,
        request_bytes=each,
        max_batch=most,
        prefill_busy_s=first.busy_s,
        prefill_chunks=first.chunks,
        prefill_req_s=row.layout.dpa / first.busy_s if prefill else nothing,
        kv_transfer_s=kv_transfer_s(row.model, row.machine, row.layout, context.prompt) if prefill else nothing,
    )


def largest(parts: tuple[Num, ...]) -> Num:
    """Index of the largest of a few numbers, the first of equals, as a chain of selects."""
    best, index = parts[0], parts[0] * 0.0
    for i, part in enumerate(parts[1:], start=1):
        index = where(part > best, float(i), index)
        best = maximum(best, part)
    return index


def point_cost(
    row: Row, at_row: RowCost, load: Load, at_context: ContextCost, batch: Num, context: Context, kinds: Kinds
) -> PointCost:
    """All that depends on configuration, batch and context.

    tok_s_user = 1 / TPOT         tok_s_gpu = batch x tok_s_user / gpus         request = TTFT + (osl - 1) TPOT
    Aggregated serving: the batch are the requests that decode; the prompts of those that replace them are prefilled
    between their steps, each chunk of a prompt waits for a decode step, and concurrency = batch + rate x TTFT (Little).
    """
    row, unplaced = with_tiers(row, at_row.weights_bytes, at_context.request_bytes, batch, kinds)
    if kinds.tiers:
        load = load_terms(row, batch, kinds)
    machine, layout = row.machine, row.layout
    token = token_time(row, load, batch, context.decode, kinds)
    parts, step_s = token.parts, token.step_s
    tpot_s = parts.total_s
    ttft, prefill_s, concurrency = at_context.ttft_s, tpot_s * 0.0, batch * 1.0
    if kinds.aggregated:
        beside = {"batch": batch, "osl": context.generated, "groups": layout.dpa, "phi": context.mixed}
        prefill_s = mixed_tpot_s(0.0, at_context.prefill_busy_s, **beside)
        tpot_s = mixed_tpot_s(tpot_s, at_context.prefill_busy_s, **beside)
        shared = where(context.mixed > 0, 1.0, 0.0)
        ttft = ttft + shared * at_context.prefill_chunks * step_s
        concurrency = batch + shared * request_rate(batch, tpot_s, context.generated) * ttft
    tok_s_user = 1.0 / tpot_s
    tok_s_gpu = batch * tok_s_user / gpus(layout)
    tokens = step_tokens(layout, batch, row.model.n_draft if kinds.drafting else 0.0, kinds)
    held = held_bytes(at_row.weights_bytes, at_context.request_bytes, row.model, machine, layout, tokens, batch)
    shares: tuple[Num, ...] = (
        parts.math_s,
        parts.weight_s,
        parts.kv_s,
        parts.activation_s,
        parts.comm_s,
        parts.latency_s,
    )
    if kinds.aggregated:
        shares = (*shares, prefill_s)
    return PointCost(
        tok_s_gpu=tok_s_gpu,
        tok_s_user=tok_s_user,
        tpot_s=tpot_s,
        request_s=ttft + (context.generated - 1.0) * tpot_s,
        ttft_s=ttft,
        prefill_s=prefill_s,
        concurrency=concurrency,
        total_tok_s_gpu=tok_s_gpu * ((context.prompt + context.generated) / context.generated),
        tok_s_mw=tok_s_gpu * (1e6 / machine.watts),
        usd_per_mtok=machine.usd_per_hour * (1e6 / 3600.0) / tok_s_gpu,
        joule_per_tok=machine.watts / tok_s_gpu,
        math_s=parts.math_s,
        weight_read_s=parts.weight_s,
        kv_read_s=parts.kv_s,
        activation_s=parts.activation_s,
        comm_s=parts.comm_s,
        latency_s=parts.latency_s,
        bound=largest(shares),
        mfu=parts.flops / (machine.peak_flops * step_s),
        mbu=parts.bytes / (machine.peak_bytes_per_s * step_s),
        intensity=parts.flops / parts.bytes,
        kv_bytes=held.kv,
        activation_bytes=held.activations,
        held_bytes=held.total,
        fits=where(unplaced <= 0, 1.0, 0.0) if kinds.tiers else where(held.total <= machine.hbm_bytes, 1.0, 0.0),
        in_time=where(ttft <= context.ttft_max_s, 1.0, 0.0),
        in_pace=where(tpot_s <= context.tpot_max_s, 1.0, 0.0),
    )


def evaluate_point(row: Row, batch: Num, context: Context, kinds: Kinds) -> tuple[RowCost, ContextCost, PointCost]:
    """One point, all columns: the same four functions that a sweep batches."""
    at_row = row_cost(row)
    load = load_cost(row, batch, kinds)
    at_context = context_cost(row, at_row.weights_bytes, context, kinds)
    return at_row, at_context, point_cost(row, at_row, load, at_context, batch, context, kinds)
