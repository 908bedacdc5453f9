"""One operation of a step, what it moves and computes, and how its time divides among causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import jax

from sweep.cost.arith import minimum, where
from sweep.machine import OpRate
from sweep.point import Num

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of one layer on one GPU in one step of one microbatch.

    `flops` and bytes are totals of the operation, `groups` of them side by side included; the `*_s` fields are what
    each resource would take alone. `m, n, k` describe one matrix multiplication of the group. An operation of a
    collective has `comm_s` and `floor_s` only.
    """

    name: str
    phase: Phase
    count: Num  # layers that have it
    m: Num = 0.0
    n: Num = 0.0
    k: Num = 0.0
    groups: Num = 1.0
    flops: Num = 0.0
    weight_bytes: Num = 0.0
    kv_bytes: Num = 0.0
    input_bytes: Num = 0.0
    output_bytes: Num = 0.0
    comm_bytes: Num = 0.0
    math_s: Num = 0.0
    weight_s: Num = 0.0
    kv_s: Num = 0.0
    activation_s: Num = 0.0
    comm_s: Num = 0.0
    floor_s: Num = 0.0
    chain_s: Num = 0.0  # what one processor needs to walk the inner dimension, however many work side by side
    overlap: Num = 1.0  # of math and memory, and of both with the chain


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds by cause, and what was computed and moved meanwhile. The six seconds add up to the time."""

    math_s: Num = 0.0
    weight_s: Num = 0.0
    kv_s: Num = 0.0
    activation_s: Num = 0.0
    comm_s: Num = 0.0
    latency_s: Num = 0.0
    flops: Num = 0.0
    bytes: Num = 0.0

    @property
    def total_s(self) -> Num:
        """Their sum, in an order that adds the small causes first."""
        return self.latency_s + self.comm_s + self.activation_s + self.math_s + self.weight_s + self.kv_s

    def __add__(self, other: Parts) -> Parts:
        return Parts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Parts)})

    def scaled(self, factor: Num) -> Parts:
        """All of it, `factor` times."""
        return Parts(**{f.name: getattr(self, f.name) * factor for f in fields(Parts)})


def kernel_parts(op: Op) -> Parts:
    """Time of one kernel by cause.

        t = t0 + join(join(t_math, t_mem), t_chain)        join(a, b) = max(a, b) + (1 - overlap) min(a, b)

    overlap = 1 is the roofline, overlap = 0 the sum. What is longer of math and memory is charged in full, what is
    shorter by what shows of it; memory time is shared among its bytes; the floor and what shows of the chain are
    latency.
    Source: Williams et al., Roofline (CACM 2009); the partial overlap replaces the p-norms that fit operator tables
    by something linear, and the chain (K steps of a GEMM that one processor takes one after the other) explains why
    deep and narrow GEMMs are slow; both were chosen on held-out rows (see `sweep.calibration.operators`).
    """
    memory_s = op.weight_s + op.kv_s + op.activation_s
    computes = op.math_s >= memory_s
    shows = 1.0 - op.overlap
    of_memory = where(computes, shows, 1.0)
    latency_s = op.floor_s
    if not _absent(op.chain_s):
        both = op.math_s + memory_s - op.overlap * minimum(op.math_s, memory_s)
        latency_s = latency_s + op.chain_s - op.overlap * minimum(op.chain_s, both)
    return Parts(
        math_s=op.math_s * where(computes, 1.0, shows),
        weight_s=op.weight_s * of_memory,
        kv_s=op.kv_s * of_memory,
        activation_s=op.activation_s * of_memory,
        latency_s=latency_s,
        flops=op.flops,
        bytes=op.weight_bytes + op.kv_bytes + op.input_bytes + op.output_bytes,
    )


def kernel_s(op: Op) -> Num:
    """The time of one kernel as a whole: what `kernel_parts` adds up to, in half the operations."""
    memory_s = op.weight_s + op.kv_s + op.activation_s
    both = op.math_s + memory_s - op.overlap * minimum(op.math_s, memory_s)
    if _absent(op.chain_s):
        return both + op.floor_s
    return both + (op.floor_s + op.chain_s - op.overlap * minimum(op.chain_s, both))


def _absent(x: Num) -> bool:
    """Whether a number is the plain 0 of an operation that has no such part, so that no code is made for it."""
    return isinstance(x, float) and x == 0.0


def comm_parts(op: Op) -> Parts:
    """Time of one collective: its bytes are communication, its start-up is latency."""
    return Parts(comm_s=op.comm_s, latency_s=op.floor_s)


def is_collective(op: Op) -> bool:
    """Whether the operation moves bytes between GPUs."""
    return op.name in COLLECTIVES


COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "pipeline_hop"}
)


def op_parts(op: Op, *, causes: bool = True) -> Parts:
    """Time of one operation of one layer by cause; without causes all of it as latency, and nothing counted."""
    if not causes:
        return Parts(latency_s=op.comm_s + op.floor_s if is_collective(op) else kernel_s(op))
    return comm_parts(op) if is_collective(op) else kernel_parts(op)


def tally(ops: Iterable[Op], *, causes: bool = True) -> Parts:
    """Sum over operations, each as often as layers have it."""
    total = Parts()
    for op in ops:
        total = total + op_parts(op, causes=causes).scaled(op.count)
    return total


def kernel(
    name: str,
    phase: Phase,
    rate: OpRate,
    *,
    count: Num,
    flops: Num,
    weight_bytes: Num = 0.0,
    kv_read_bytes: Num = 0.0,
    kv_write_bytes: Num = 0.0,
    input_bytes: Num = 0.0,
    output_bytes: Num = 0.0,
    math_s: Num | None = None,
    chain_s: Num = 0.0,
    floor_s: Num | None = None,
    m: Num = 0.0,
    n: Num = 0.0,
    k: Num = 0.0,
    groups: Num = 1.0,
) -> Op:
    """An operation of math and memory at the rates of its kind.

    Args:
        rate: FLOP/s, bytes/s and floor of the kind of kernel.
        count: layers that have it.
        flops, *_bytes: totals on this GPU in this layer and step. New cache entries count as written activations.
        math_s: seconds of math where flops / rate is not all of it (tiles and waves).
        chain_s: seconds that one processor needs for the inner dimension, hidden like math and memory.
        floor_s: the floor where it is more than that of an empty kernel.
    """
    # reciprocals are a configuration's own: a division less for every load
    per_read, per_input = 1.0 / rate.read_bytes_per_s, 1.0 / rate.input_bytes_per_s
    per_write = 1.0 / rate.write_bytes_per_s
    weight_s, kv_s = weight_bytes * per_read, kv_read_bytes * per_read
    activation_s = input_bytes * per_input + (output_bytes + kv_write_bytes) * per_write
    if rate.held_slowdown is not None:  # memory in several tiers
        weight_s, kv_s = weight_s * rate.held_slowdown, kv_s * rate.held_slowdown
        activation_s = rate.act_slowdown * (input_bytes * per_input + output_bytes * per_write)
        activation_s = activation_s + kv_write_bytes * (per_write * rate.held_slowdown)
    return Op(
        name=name,
        phase=phase,
        count=count,
        m=m,
        n=n,
        k=k,
        groups=groups,
        flops=flops,
        weight_bytes=weight_bytes,
        kv_bytes=kv_read_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes + kv_write_bytes,
        math_s=flops * (1.0 / rate.flops_per_s) if math_s is None else math_s,
        weight_s=weight_s,
        kv_s=kv_s,
        activation_s=activation_s,
        floor_s=rate.t0_s if floor_s is None else floor_s,
        chain_s=chain_s,
        overlap=rate.overlap,
    )
