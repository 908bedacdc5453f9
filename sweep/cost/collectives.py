"""Collectives inside and across the scale-up domain, as each GPU of the group sees them.

`m` is the whole message: what a GPU holds after an all-gather, before a reduce, or hands out in an all-to-all, its
own share included. Ranks: tpa innermost, then kvp, dpa, pp; tpf innermost, then ep.
"""

from __future__ import annotations

from sweep.cost.arith import maximum, minimum, where
from sweep.cost.ops import Op, Phase
from sweep.machine import Link, Machine
from sweep.point import Num


def inside(group: Num, stride: Num, domain: Num) -> Num:
    """Members of a group that one scale-up domain holds: min(n, D / stride), at least 1."""
    return maximum(minimum(group, domain / stride), 1.0)


def start_s(link: Link, group: Num, n_in: Num) -> Num:
    """Start-up of a collective: t0 + more per rank up to 16, and the network's own where the group leaves the domain.

    Source: small-message latencies of the operator tables (2 to 16 GPUs; beyond 16 no slope is measured).
    """
    alone = group <= 1.0
    t = link.t0_s + link.t0_rank_s * minimum(group, 16.0)
    t = t + where(group > n_in, link.scaleout_t0_s, 0.0)
    return where(alone, 0.0, t)


def _two_levels(inner_bytes: Num, outer_bytes: Num, link: Link, group: Num, n_in: Num) -> Num:
    """Seconds of what goes over the scale-up link and of what leaves the domain; the two add."""
    leaves = group > n_in
    outer = where(leaves, link.scaleout_bytes_per_s, 1.0)
    used = where(n_in > 1.0, link.bytes_per_s, 1.0)
    return inner_bytes * (1.0 / used) + outer_bytes * where(leaves, 1.0 / outer, 0.0)


def all_reduce(phase: Phase, machine: Machine, *, count: Num, message: Num, group: Num, stride: Num = 1.0) -> Op:
    """All-reduce: two-shot, one-shot where that is faster, in-network where the switches reduce.

        two-shot     t0 + 2 m (n-1)/n / bw;  beyond the domain a second one with m/n_in over n/n_in members
        one-shot     t0' + m (n-1) / bw:     everybody sends everything; wins for small m through its smaller start-up
        in-network   m / bw instead of 2 m (n-1)/n / bw
    Source: NCCL tests (bus bandwidth); one-shot and two-shot kernels of TensorRT-LLM and FlashInfer, which switch near
    1 MiB of traffic. Ignores congestion between groups.
    """
    link = machine.reduce
    n_in = inside(group, stride, machine.domain)
    n_out = group / n_in
    share = 2.0 * (n_in - 1.0) / n_in
    reduced = message * where(machine.in_network > 0, minimum(share, 1.0), share)
    outer = message * (2.0 * (n_out - 1.0) / (n_in * n_out))
    two_s, two_t0_s = _two_levels(reduced, outer, link, group, n_in), start_s(link, group, n_in)
    sent = message * maximum(group - 1.0, 0.0)
    one_s = sent * (1.0 / where(group > 1.0, link.bytes_per_s, 1.0))
    one_t0_s = where(group > 1.0, link.one_shot_s + link.one_shot_rank_s * minimum(group, 16.0), 0.0)
    one_shot = (group <= n_in) & (one_s + one_t0_s < two_s + two_t0_s)
    return Op(
        name="all_reduce",
        phase=phase,
        count=count,
        comm_bytes=where(one_shot, sent, reduced + outer),
        comm_s=where(one_shot, one_s, two_s),
        floor_s=where(one_shot, one_t0_s, two_t0_s),
    )


def gather(name: str, phase: Phase, machine: Machine, *, count: Num, message: Num, group: Num, stride: Num = 1.0) -> Op:
    """All-gather or reduce-scatter: m (n-1)/n / bw inside, then m/n_in over n/n_in members between domains.

    Source: NCCL tests (bus bandwidth).
    """
    link = machine.gather
    n_in = inside(group, stride, machine.domain)
    n_out = group / n_in
    inner = message * ((n_in - 1.0) / n_in)
    outer = message * ((n_out - 1.0) / (n_in * n_out))
    return Op(
        name=name,
        phase=phase,
        count=count,
        comm_bytes=inner + outer,
        comm_s=_two_levels(inner, outer, link, group, n_in),
        floor_s=start_s(link, group, n_in),
    )


def exchange(
    name: str, phase: Phase, machine: Machine, link: Link, *, count: Num, message: Num, group: Num, stride: Num = 1.0
) -> Op:
    """All-to-all: (n_in-1)/n of the message inside the domain and (n-n_in)/n out of it; the two add.

    Source: DeepSeek-V3 (arXiv 2412.19437) dispatch and combine; Helix (arXiv 2507.07120) all-to-all.
    """
    n_in = inside(group, stride, machine.domain)
    inner = message * ((n_in - 1.0) / group)
    outer = message * ((group - n_in) / group)
    return Op(
        name=name,
        phase=phase,
        count=count,
        comm_bytes=inner + outer,
        comm_s=_two_levels(inner, outer, link, group, n_in),
        floor_s=start_s(link, group, n_in),
    )


def pipeline_hop(phase: Phase, machine: Machine, *, message: Num, gpus: Num, stages: Num) -> Op:
    """One hop of activations to the next stage, on the scale-up link if all GPUs of the replica fit in one domain."""
    link = machine.hop
    outside = gpus > machine.domain
    piped = stages > 1.0
    bandwidth = where(outside, link.scaleout_bytes_per_s, link.bytes_per_s)
    t0 = link.t0_s + where(outside, link.scaleout_t0_s, 0.0)
    sent = where(piped, message, 0.0)
    return Op(
        name="pipeline_hop",
        phase=phase,
        count=stages - 1.0,
        comm_bytes=sent,
        comm_s=sent * (1.0 / where(piped, bandwidth, 1.0)),
        floor_s=where(piped, t0, 0.0),
    )
