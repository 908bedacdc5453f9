"""Prefill: the time to the first token, in one chunk or many, over pipeline stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sweep.cost.arith import floor, maximum, minimum, where, whole
from sweep.cost.attention import prefill_attention
from sweep.cost.memory import stage_share
from sweep.cost.ops import Join, Op, op_parts, tally
from sweep.cost.step import Row, exposed, head_op, hop_op, layer_comm, layer_kernels
from sweep.cost.tokens import prefill_tokens
from sweep.point import Context, Kinds, Num, Tokens

FAR = 1e30  # a breakpoint that is never reached


def _fixed_s(row: Row, chunk: Num, attention_s: Num, kinds: Kinds) -> Num:
    """Seconds of a chunk that do not depend on its prefix; communication hides behind this much attention and more."""
    join: Join = kinds.join  # type: ignore[assignment]
    tokens = prefill_tokens(row.layout, chunk)
    kernels = tally(layer_kernels("prefill", row, tokens, kinds), join).total_s
    kernels = kernels + row.model.n_layers * row.machine.layer_s
    comm = tally(layer_comm("prefill", row, tokens, kinds), join)
    if kinds.overlap:
        comm = exposed(comm, kernels + attention_s, row.layout.overlap)
    return kernels + comm.total_s


def _attention_at(row: Row, tokens: Tokens, chunk: Num, kinds: Kinds) -> Callable[[Num], list[Op]]:
    return lambda prefix: prefill_attention(row.model, row.machine, row.layout, tokens, chunk, prefix, kinds)


def _series(first: Num, slope: Num, lo: Num, hi: Num) -> Num:
    """Sum of first + slope j over the whole numbers lo <= j < hi; 0 where hi <= lo."""
    n = maximum(hi - lo, 0.0)
    return n * (first + slope * (lo + hi - 1.0) / 2.0)


def sum_of_max(a: tuple[Num, Num], b: tuple[Num, Num], bottom: Num, lo: Num, hi: Num) -> Num:
    """Sum over lo <= j < hi of max(bottom, a0 + a1 j, b0 + b1 j), slopes not negative, in closed form.

    The bottom comes first while both lines are under it, then the line that starts higher, then the steeper one.
    """

    def first_above(line: tuple[Num, Num], level: Num) -> Num:
        start, slope = line
        reach = where(slope > 0, whole((level - start) / where(slope > 0, slope, 1.0)), FAR)
        return where(start >= level, lo, reach)

    begin = minimum(maximum(minimum(first_above(a, bottom), first_above(b, bottom)), lo), maximum(hi, lo))
    gap, closing = b[0] - a[0], a[1] - b[1]
    meet = where(closing != 0, gap / where(closing != 0, closing, 1.0), FAR)
    cut = minimum(maximum(floor(meet) + 1.0, begin), maximum(hi, begin))
    a_first = a[0] + a[1] * begin >= b[0] + b[1] * begin
    a_last = a[0] + a[1] * (hi - 1.0) >= b[0] + b[1] * (hi - 1.0)
    # without a crossing in range both ends agree and the cut does not matter
    head = where(a_first, _series(*a, begin, cut), _series(*b, begin, cut))
    tail = where(a_last, _series(*a, cut, hi), _series(*b, cut, hi))
    return bottom * maximum(begin - lo, 0.0) + head + tail


def _sum_over_chunks(
    ops_at: Callable[[Num], list[Op]], prefix: Num, chunk: Num, n: Num, breaks: list[Num], join: Join
) -> Num:
    """Seconds of prefix-dependent kernels over n equal chunks.

    Between the prefixes at which a window fills, each kernel's math and memory time are straight lines in the
    prefix; two evaluations give the line, and the sum is closed.
    """
    edges: list[Num] = [n * 0.0]
    for at in breaks:
        reached = whole((at - prefix) / chunk)
        edges.append(minimum(maximum(reached, edges[-1]), n))
    edges.append(n)
    total: Num = 0.0
    for lo, hi in itertools.pairwise(edges):
        last = maximum(hi - 1.0, lo)
        span = maximum(last - lo, 1.0)
        start_ops, end_ops = ops_at(prefix + lo * chunk), ops_at(prefix + last * chunk)
        for s, e in zip(start_ops, end_ops, strict=True):
            memory_s, memory_e = s.kv_s + s.weight_s + s.activation_s, e.kv_s + e.weight_s + e.activation_s
            slope_math, slope_memory = (e.math_s - s.math_s) / span, (memory_e - memory_s) / span
            count = hi - lo
            if join == "sum":
                seconds = _series(s.floor_s + s.math_s + memory_s, slope_math + slope_memory, count * 0.0, count)
            else:
                math, memory = (s.math_s, slope_math), (memory_s, slope_memory)
                seconds = sum_of_max(math, memory, s.floor_s, count * 0.0, count)
            total = total + where(hi > lo, seconds, 0.0) * s.count
    return total


def ttft_s(row: Row, context: Context, kinds: Kinds) -> Num:
    """Time to the first token of one request per attention group, nothing queued before it.

        (sum t_i + (P-1) max t_i) / P x stage imbalance + hops + LM head + host;   dynamic chunks: max -> mean
    over chunks of isl (1 - hit) tokens; stage imbalance = ceil(L/P) P / L.
    Source: LMSYS chunked pipeline (2026-01-15): efficiency M / (P - 1 + M) for equal chunks.
    """
    join: Join = kinds.join  # type: ignore[assignment]
    layout, p = row.layout, row.layout.pp
    cached = context.prompt * context.prefix_hit
    new = maximum(context.prompt - cached, 1.0)

    def chunk_s(chunk: Num, prefix: Num) -> Num:
        tokens = prefill_tokens(layout, chunk)
        attention = tally(_attention_at(row, tokens, chunk, kinds)(prefix), join)
        return _fixed_s(row, chunk, attention.total_s, kinds) + attention.total_s

    if not kinds.chunked:
        chunk = new
        total = chunk_s(new, cached)
        longest, count = total, 1.0
    else:
        chunk = where(layout.prefill_chunk > 0, minimum(layout.prefill_chunk, new), new)
        whole_chunks = floor(new / chunk + 1e-4)
        rest = new - whole_chunks * chunk
        rest = where(rest > 0.5, rest, 0.0)
        tokens = prefill_tokens(layout, chunk)
        ops_at = _attention_at(row, tokens, chunk, kinds)
        breaks: list[Num] = []
        if kinds.window:
            window = row.model.window
            breaks += [maximum(window - chunk / 2.0, 0.0), window]
        if kinds.sparse:
            breaks += [where(row.model.sparse_top_k > 0, maximum(row.model.sparse_top_k - chunk / 2.0, 0.0), FAR)]
        if len(breaks) == 3:
            lo, hi, extra = breaks
            breaks = [minimum(lo, extra), maximum(lo, minimum(hi, extra)), maximum(hi, extra)]
        # the first chunk attends least: what hides behind it hides behind every chunk
        fixed = _fixed_s(row, chunk, tally(ops_at(cached), join).total_s, kinds)
        total = fixed * whole_chunks + _sum_over_chunks(ops_at, cached, chunk, whole_chunks, breaks, join)
        last_full = fixed + tally(ops_at(cached + (whole_chunks - 1.0) * chunk), join).total_s
        one = maximum(rest, 1.0)
        last = where(rest > 0, chunk_s(one, cached + whole_chunks * chunk), 0.0)
        total = total + last
        count = whole_chunks + where(rest > 0, 1.0, 0.0)
        longest = maximum(last_full, last)
        longest = where(layout.dynamic_chunks > 0, total / count, longest)
    tokens = prefill_tokens(layout, chunk)
    head = op_parts(head_op("prefill", row.model, row.machine, layout, tokens), join).total_s
    hops = tally([hop_op("prefill", row.model, row.machine, layout, tokens)], join).total_s
    stage = stage_share(row.model, layout) * p
    return (total + (p - 1.0) * longest) / p * stage + hops + head + row.machine.host_s
