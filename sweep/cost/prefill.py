"""Prefill: the time to the first token, in one chunk or many, over pipeline stages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from sweep.cost.arith import floor, maximum, minimum, where, whole
from sweep.cost.attention import prefill_attention
from sweep.cost.memory import stage_share
from sweep.cost.ops import Op, Parts, op_parts, tally
from sweep.cost.step import Row, exposed, head_op, hop_op, layer_comm, layer_kernels
from sweep.cost.tokens import prefill_tokens
from sweep.point import Context, Kinds, Num, Tokens

FAR = 1e30  # a breakpoint that is never reached


def _fixed(row: Row, chunk: Num, kinds: Kinds) -> tuple[Num, Parts]:
    """Of a chunk, what does not depend on its prefix: seconds of kernels, and communication before any overlap."""
    tokens = prefill_tokens(row.layout, chunk)
    kernels = tally(layer_kernels("prefill", row, tokens, kinds), causes=False).total_s
    comm = tally(layer_comm("prefill", row, tokens, kinds), causes=False)
    return kernels + row.model.n_layers * row.machine.layer_s, comm


def _attention_at(row: Row, tokens: Tokens, chunk: Num, kinds: Kinds) -> Callable[[Num], list[Op]]:
    return lambda prefix: prefill_attention(row.model, row.machine, row.layout, tokens, chunk, prefix, kinds)


def _series(first: Num, slope: Num, lo: Num, hi: Num) -> Num:
    """Sum of first + slope j over the whole numbers lo <= j < hi; 0 where hi <= lo."""
    n = maximum(hi - lo, 0.0)
    return n * (first + slope * (lo + hi - 1.0) / 2.0)


def sum_of_max(a: tuple[Num, Num], b: tuple[Num, Num], n: Num) -> Num:
    """Sum over j = 0 .. n-1 of max(a0 + a1 j, b0 + b1 j) in closed form: one line leads up to where they cross."""
    gap, closing = b[0] - a[0], a[1] - b[1]
    meet = where(closing != 0, gap / where(closing != 0, closing, 1.0), FAR)
    cut = minimum(maximum(floor(meet) + 1.0, 0.0), n)
    a_first = a[0] >= b[0]
    a_last = a[0] + a[1] * (n - 1.0) >= b[0] + b[1] * (n - 1.0)
    # without a crossing in range both ends agree and the cut does not matter
    head = where(a_first, _series(*a, 0.0, cut), _series(*b, 0.0, cut))
    tail = where(a_last, _series(*a, cut, n), _series(*b, cut, n))
    return head + tail


def _sum_over_chunks(ops_at: Callable[[Num], list[Op]], prefix: Num, chunk: Num, n: Num, breaks: list[Num]) -> Num:
    """Seconds of prefix-dependent kernels over n equal chunks.

    Between the prefixes at which a window fills, each kernel's math, memory time and floor are straight lines in the
    prefix; two evaluations give the line, and the sum of t0 + max + (1 - overlap) min is closed.
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
            math = (s.math_s, (e.math_s - s.math_s) / span)
            memory = (memory_s, (memory_e - memory_s) / span)
            count = maximum(hi - lo, 0.0)
            both = _series(s.math_s + memory_s, math[1] + memory[1], 0.0, count)
            floors = _series(s.floor_s, (e.floor_s - s.floor_s) / span, 0.0, count)
            seconds = floors + s.overlap * sum_of_max(math, memory, count) + (1.0 - s.overlap) * both
            total = total + where(hi > lo, seconds, 0.0) * s.count
    return total


def _first_hidden(work_at: Callable[[Num], Num], comm_s: Num, n: Num) -> Num:
    """The first of n chunks behind whose work all communication could hide; work grows with the chunk."""
    lo, hi = n * 0.0, n
    for _ in range(14):  # 16,384 chunks
        mid = floor((lo + hi) / 2.0)
        short = work_at(mid) < comm_s
        lo, hi = where(short, minimum(mid + 1.0, hi), lo), where(short, hi, mid)
    return lo


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """The prefill of one prompt per attention group."""

    ttft_s: Num  # until its first token, nothing queued before it
    busy_s: Num  # of each stage: what passes between two prompts while the pipeline is kept full
    chunks: Num


def ttft_s(row: Row, context: Context, kinds: Kinds) -> Num:
    """Time to the first token of one request per attention group, nothing queued before it; see `prefill`."""
    return prefill(row, context, kinds).ttft_s


def prefill(row: Row, context: Context, kinds: Kinds) -> Prefill:
    """Prefill of one request per attention group, nothing queued before it.

        ttft = (sum t_i + (P-1) max t_i) / P x stage imbalance + hops + LM head + host;   dynamic chunks: max -> mean
        busy = sum t_i / P x stage imbalance
    over chunks of isl (1 - hit) tokens; stage imbalance = ceil(L/P) P / L.
    Source: LMSYS chunked pipeline (2026-01-15): efficiency M / (P - 1 + M) for equal chunks.
    """
    layout, p = row.layout, row.layout.pp
    cached = context.prompt * context.prefix_hit
    new = maximum(context.prompt - cached, 1.0)

    def chunk_s(chunk: Num, prefix: Num) -> Num:
        kernels_s, comm = _fixed(row, chunk, kinds)
        tokens = prefill_tokens(layout, chunk)
        work_s = kernels_s + tally(_attention_at(row, tokens, chunk, kinds)(prefix), causes=False).total_s
        if kinds.overlap:
            comm = exposed(comm, work_s, layout.overlap)
        return work_s + comm.total_s

    if not kinds.chunked:
        chunk = new
        total = chunk_s(new, cached)
        longest, count = total, total * 0.0 + 1.0
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
        kernels_s, comm = _fixed(row, chunk, kinds)
        comm_s, n = comm.total_s, whole_chunks
        total = (kernels_s + comm_s) * n + _sum_over_chunks(ops_at, cached, chunk, n, breaks)
        last_full = kernels_s + comm_s + tally(ops_at(cached + (n - 1.0) * chunk), causes=False).total_s
        if kinds.overlap:

            def work_at(j: Num) -> Num:
                return kernels_s + tally(ops_at(cached + j * chunk), causes=False).total_s

            few = _first_hidden(work_at, comm_s, n)
            hidden = kernels_s * few + _sum_over_chunks(ops_at, cached, chunk, few, breaks) + comm_s * (n - few)
            total = total - layout.overlap * hidden
            last_full = last_full - layout.overlap * minimum(comm_s, work_at(n - 1.0))
        one = maximum(rest, 1.0)
        last = where(rest > 0, chunk_s(one, cached + whole_chunks * chunk), 0.0)
        total = total + last
        count = whole_chunks + where(rest > 0, 1.0, 0.0)
        longest = maximum(last_full, last)
        longest = where(layout.dynamic_chunks > 0, total / count, longest)
    tokens = prefill_tokens(layout, chunk)
    head = op_parts(head_op("prefill", row.model, row.machine, layout, tokens), causes=False).total_s
    hops = tally([hop_op("prefill", row.model, row.machine, layout, tokens)], causes=False).total_s
    stage = stage_share(row.model, layout) * p
    return Prefill(
        ttft_s=(total + (p - 1.0) * longest) / p * stage + hops + head + row.machine.host_s,
        busy_s=total / p * stage,
        chunks=count,
    )
