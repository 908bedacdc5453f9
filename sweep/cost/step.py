"""A decode step: from operations of a layer to the time of an output token.

In two halves, because the context enters attention alone: `load_step` is what a configuration and a batch decide,
`finish_step` adds the attention of one context. One point is the one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from sweep.cost.arith import ceil_div, exp, log, maximum, minimum, where
from sweep.cost.attention import decode_attention, helix_exchange, projections
from sweep.cost.collectives import pipeline_hop
from sweep.cost.ffn import ffn_ops, layer_collectives
from sweep.cost.gemm import gemm
from sweep.cost.memory import gpus, stage_share
from sweep.cost.ops import Op, Parts, Phase, kernel, op_parts, tally
from sweep.cost.tokens import decode_tokens, microbatches
from sweep.machine import MESSAGE_BYTES, Machine
from sweep.point import Kinds, Layout, Model, Num, Tokens

EXCHANGES = frozenset({"dispatch", "combine"})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Row:
    """A configuration: everything of a point but batch and context."""

    model: Model
    machine: Machine
    layout: Layout
    skew: Num  # Zipf exponent of expert popularity
    accuracy: Num  # proxy score, decided by model and formats alone
    loss: Num
    loss_sigma: Num
    accuracy_low: Num
    accuracy_high: Num
    extrapolation: Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class LoadStep:
    """A step of one microbatch without its attention."""

    layers: Parts = Parts()  # kernels of all layers; where nothing can overlap, the collectives too
    comm: Parts = Parts()  # collectives that can hide behind kernels
    exchange: Parts = Parts()  # dispatch and combine, where two batches overlap
    head: Parts = Parts()
    hop: Parts = Parts()  # all hops of one microbatch


def elementwise(phase: Phase, model: Model, machine: Machine, tokens: Tokens) -> Op:
    """Norms, residuals, rotary: reads and writes of the residual stream, nothing under `ideal`."""
    moved = tokens.attend * model.d_model * MESSAGE_BYTES * machine.elementwise / 2.0
    return kernel(
        "elementwise", phase, machine.state, count=model.n_layers, flops=0.0, input_bytes=moved, output_bytes=moved
    )


def head_op(phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens) -> Op:
    """The LM head: vocab / (tpa kvp) x d_model."""
    n = model.vocab / (layout.tpa * layout.kvp)
    return gemm(
        "lm_head",
        phase,
        machine,
        machine.gemm_head,
        count=1.0,
        m=tokens.head,
        n=n,
        k=model.d_model,
        weight=machine.head_weight,
    )


def hop_op(phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens) -> Op:
    """A pipeline hop: the residual stream of the attention group's tokens."""
    message = tokens.attend * (model.d_model * MESSAGE_BYTES)
    return pipeline_hop(phase, machine, message=message, gpus=gpus(layout), stages=layout.pp)


def layer_kernels(phase: Phase, row: Row, tokens: Tokens, kinds: Kinds) -> list[Op]:
    """Kernels of all layers that do not depend on the context."""
    m, hw, lay = row.model, row.machine, row.layout
    ops = projections(phase, m, hw, lay, tokens, kinds) + ffn_ops(phase, m, hw, lay, tokens, row.skew, kinds)
    return [*ops, elementwise(phase, m, hw, tokens)] if kinds.elementwise else ops


def layer_comm(phase: Phase, row: Row, tokens: Tokens, kinds: Kinds) -> list[Op]:
    """Collectives of all layers."""
    m, hw, lay = row.model, row.machine, row.layout
    return helix_exchange(phase, m, hw, lay, tokens, kinds) + layer_collectives(phase, m, hw, lay, tokens, kinds)


def halves(layout: Layout, batch: Num, kinds: Kinds) -> Num:
    """Passes over the layers in one step: two where two-batch overlap splits a microbatch of two requests or more."""
    if not kinds.two_batch:
        return 1.0
    per_microbatch = ceil_div(batch, microbatches(layout, batch))
    return where(layout.two_batch > 0, minimum(per_microbatch, 2.0), 1.0)


def step_tokens(layout: Layout, batch: Num, drafted: Num, kinds: Kinds) -> Tokens:
    """Tokens of one pass over the layers."""
    if not kinds.two_batch:
        return decode_tokens(layout, batch, drafted)
    mb = microbatches(layout, batch)
    passes = halves(layout, batch, kinds)
    part = ceil_div(ceil_div(batch, mb), passes)
    return decode_tokens(layout, part * mb, drafted)


def load_step(row: Row, batch: Num, drafted: Num, kinds: Kinds) -> LoadStep:
    """What configuration and batch decide of a step of one microbatch.

    Args:
        row: the configuration.
        batch: requests in flight per replica.
        drafted: drafted tokens per request that this step verifies.
        kinds: what occurs among the points evaluated together.
    """
    tokens = step_tokens(row.layout, batch, drafted, kinds)
    causes = kinds.causes
    layers = tally(layer_kernels("decode", row, tokens, kinds), causes=causes)
    comm_ops = layer_comm("decode", row, tokens, kinds)
    layers = layers + Parts(latency_s=row.model.n_layers * row.machine.layer_s)
    exchange, comm = Parts(), Parts()
    if kinds.two_batch:
        exchange = tally([op for op in comm_ops if op.name in EXCHANGES], causes=causes)
        comm_ops = [op for op in comm_ops if op.name not in EXCHANGES]
    if kinds.overlap or kinds.hop_b or kinds.two_batch:
        if kinds.hop_b:  # the Helix all-to-all is paid with the attention it hides behind
            hidden = helix_exchange("decode", row.model, row.machine, row.layout, tokens, kinds)
            comm_ops = comm_ops[len(hidden) :]
        comm = tally(comm_ops, causes=causes)
    else:
        layers = layers + tally(comm_ops, causes=causes)
    return LoadStep(
        layers=layers,
        comm=comm,
        exchange=exchange,
        head=op_parts(head_op("decode", row.model, row.machine, row.layout, tokens), causes=causes),
        hop=tally([hop_op("decode", row.model, row.machine, row.layout, tokens)], causes=causes),
    )


def hop_b_exposed(requests: Num, attention_s: Num, comm_s: Num) -> Num:
    """Communication that Helix's HOP-B leaves exposed, B requests, seconds per request.

        t_attn + (B - 1) max(t_attn, t_comm) + t_comm  -  B t_attn
    Source: Helix (arXiv 2507.07120), section 2.3.
    """
    pipelined = attention_s + (requests - 1.0) * maximum(attention_s, comm_s) + comm_s
    return pipelined - requests * attention_s


def _hop_b(row: Row, tokens: Tokens, attention: list[Op], kinds: Kinds) -> tuple[Parts, Parts]:
    """Helix exchange of all layers: what HOP-B leaves of it, and all of it where HOP-B is off."""
    exchanges = helix_exchange("decode", row.model, row.machine, row.layout, tokens, kinds)
    kernels = [op for op in attention if op.name == "attention"]
    on = row.layout.hop_b > 0
    left, untouched = Parts(), Parts()
    for kernel_op, comm_op in zip(kernels, exchanges, strict=True):  # both list full, window, MLA
        a, c = op_parts(kernel_op, causes=kinds.causes), op_parts(comm_op, causes=kinds.causes)
        each = tokens.requests
        seconds = hop_b_exposed(each, a.total_s / each, c.total_s / each)
        share = where(on, seconds / where(c.total_s > 0, c.total_s, 1.0), 0.0)
        left = left + c.scaled(share * kernel_op.count)
        untouched = untouched + c.scaled(where(on, 0.0, kernel_op.count))
    return left, untouched


def exposed(comm: Parts, work_s: Num, overlap: Num) -> Parts:
    """Communication left when a share of it hides behind work: comm - overlap min(comm, work)."""
    seconds = comm.comm_s + comm.latency_s
    hidden = overlap * minimum(seconds, work_s)
    return comm.scaled(1.0 - hidden / where(seconds > 0, seconds, 1.0))


def one_pass(row: Row, load: LoadStep, batch: Num, drafted: Num, context: Num, kinds: Kinds) -> Parts:
    """All layers for one microbatch, exposed collectives included.

    HOP-B and two-batch overlap hide their own messages; of all others a share hides behind the kernels.
    """
    tokens = step_tokens(row.layout, batch, drafted, kinds)
    attention = decode_attention(row.model, row.machine, row.layout, tokens, context, kinds)
    kernels = load.layers + tally(attention, causes=kinds.causes)
    if not (kinds.overlap or kinds.hop_b or kinds.two_batch):
        return kernels
    work_s, total, rest = kernels.total_s, kernels, load.comm
    if kinds.hop_b and kinds.helix:
        left, untouched = _hop_b(row, tokens, attention, kinds)
        total, rest = total + left, rest + untouched
    passes = halves(row.layout, batch, kinds)
    if kinds.two_batch:
        split = passes > 1.0  # a single request has no other half to hide behind
        alternating = load.exchange.scaled(where(split, 1.0, 0.0))
        total = total + exposed(alternating, work_s, 1.0)
        rest = rest + load.exchange.scaled(where(split, 0.0, 1.0))
        work_s = maximum(work_s - alternating.total_s, 0.0)  # no work hides two messages
    total = total + exposed(rest, work_s, row.layout.overlap)
    return total.scaled(passes) if kinds.two_batch else total


def finish_step(row: Row, load: LoadStep, batch: Num, drafted: Num, context: Num, kinds: Kinds) -> Parts:
    """Time of one decode step by cause, pipeline and host included.

        t_step = max(t_layers + (P-1) hop + head,  mb (slowest + hop)) + host,   slowest = t_layers ceil(L/P)/L + head/P
    What the step waits for other microbatches is latency, written by its causes so that nothing cancels. FLOPs and
    bytes are those of the mean GPU over the whole step: all stages and microbatches, divided by the stages.
    Source: GPipe/Megatron pipeline schedule for decode; section 6 of the cost model.
    """
    layout, p = row.layout, row.layout.pp
    layers = one_pass(row, load, batch, drafted, context, kinds)
    mb = microbatches(layout, batch)
    t_layers, t_head = layers.total_s, load.head.total_s
    hop_s = load.hop.total_s / where(p > 1.0, p - 1.0, 1.0)
    wait = t_layers * (mb * stage_share(row.model, layout) - 1.0) + t_head * (mb / p - 1.0) + hop_s * (mb - p + 1.0)
    wait = maximum(wait, 0.0)
    host_s = row.machine.host_s + ceil_div(batch, layout.dpa) * row.machine.request_s
    total = layers + load.head + load.hop + Parts(latency_s=host_s + wait)
    share = mb / p
    return Parts(
        math_s=total.math_s,
        weight_s=total.weight_s,
        kv_s=total.kv_s,
        activation_s=total.activation_s,
        comm_s=total.comm_s,
        latency_s=total.latency_s,
        flops=total.flops * share,
        bytes=total.bytes * share,
    )


def expected_tokens(acceptance: Num, drafted: Num) -> Num:
    """Tokens that a step yields: sum of a^i for i = 0..g, (1 - a^(g+1)) / (1 - a), g + 1 at a = 1.

    Source: speculative decoding (arXiv 2211.17192), equation 1.
    """
    certain = acceptance >= 1.0
    a = where(certain, 0.5, maximum(acceptance, 1e-30))
    return where(certain, drafted + 1.0, (1.0 - exp((drafted + 1.0) * log(a))) / (1.0 - a))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Load:
    """The context-free half of a step, verified and, where tokens are drafted, plain."""

    step: LoadStep
    plain: LoadStep


def load_terms(row: Row, batch: Num, kinds: Kinds) -> Load:
    """What configuration and batch decide; the undrafted step too, since drafting costs a share of it."""
    if not kinds.drafting:
        step = load_step(row, batch, 0.0, kinds)
        return Load(
            step=step, plain=LoadStep(layers=Parts(), comm=Parts(), exchange=Parts(), head=Parts(), hop=Parts())
        )
    return Load(step=load_step(row, batch, row.model.n_draft, kinds), plain=load_step(row, batch, 0.0, kinds))


@dataclass(frozen=True, kw_only=True)
class Token:
    """The time of one output token by cause, and the step it comes from."""

    parts: Parts  # per output token; FLOPs and bytes per step
    step_s: Num


def token_time(row: Row, load: Load, batch: Num, context: Num, kinds: Kinds) -> Token:
    """Time per output token: t_step / expected tokens, and g draft_cost undrafted steps where tokens are drafted."""
    if not kinds.drafting:
        parts = finish_step(row, load.step, batch, 0.0, context, kinds)
        return Token(parts=parts, step_s=parts.total_s)
    g = row.model.n_draft
    verify = finish_step(row, load.step, batch, g, context, kinds)
    plain = finish_step(row, load.plain, batch, 0.0, context, kinds)
    both = verify + plain.scaled(g * row.model.draft_cost)
    step_s = both.total_s
    per = 1.0 / expected_tokens(row.model.acceptance, g)
    parts = Parts(
        math_s=both.math_s * per,
        weight_s=both.weight_s * per,
        kv_s=both.kv_s * per,
        activation_s=both.activation_s * per,
        comm_s=both.comm_s * per,
        latency_s=both.latency_s * per,
        flops=both.flops,
        bytes=both.bytes,
    )
    return Token(parts=parts, step_s=step_s)
