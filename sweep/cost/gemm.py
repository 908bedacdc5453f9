"""Matrix multiplication: M tokens times K inputs, N outputs."""

from __future__ import annotations

import functools

from sweep.cost.arith import ceil_div, maximum, minimum, where, whole
from sweep.cost.ops import Op, Phase, kernel
from sweep.machine import Machine, OpRate, Tile
from sweep.point import Num


def tile_efficiency(size: Num, tile: Num) -> Num:
    """Share of a tiled dimension that is real work: size / (ceil(size / tile) tile).

    Source: NVIDIA matrix-multiplication guide, tile quantization.
    """
    return size / (ceil_div(size, tile) * tile)


def wave_efficiency(tiles: Num, n_sm: Num) -> Num:
    """Share of the processors that is busy over all waves: tiles / (ceil(tiles / S) S).

    Source: NVIDIA matrix-multiplication guide, wave quantization.
    """
    return tiles / (whole(tiles / n_sm) * n_sm)


def crossover_m(n: Num, k: Num, machine: Machine, rate: OpRate, weight: Num) -> Num:
    """Tokens from which on a GEMM computes longer than it moves bytes; infinite where that never happens.

    M* = b / (2 / I - a / N - c / K),   I = FLOP/s over bytes/s;  a, b, c bytes of input, weight, output elements,
    inputs and outputs by as much heavier as they move more slowly than weights
    """
    read = rate.read_bytes_per_s
    held, moved = (1.0, 1.0) if rate.held_slowdown is None else (rate.held_slowdown, rate.act_slowdown)
    inputs = machine.act / n * (read / rate.input_bytes_per_s)
    outputs = machine.out / k * (read / rate.write_bytes_per_s)
    per_token = 2.0 * read / rate.flops_per_s - (inputs + outputs) * moved
    return where(per_token > 0, held * weight / where(per_token > 0, per_token, 1.0), float("inf"))


def tiled_math_s(m: Num, n: Num, k: Num, groups: Num, flops_per_s: Num, tile: Tile, n_sm: Num) -> Num:
    """Seconds of math when the output is cut into whole tiles that are dealt to processors in whole waves.

        t = 2 K Tm Tn S waves / peak,   waves = ceil(ceil(M/Tm) ceil(N/Tn) groups / S)

    which is flops / (peak eff_tile eff_wave). Fewer tiles than processors are no lost wave: the library
    splits K over the idle ones.
    Source: NVIDIA matrix-multiplication guide (tiles and waves; split-K).
    """
    waves = ceil_div(m, tile.m) * (ceil_div(n, tile.n) * groups * (1.0 / n_sm))
    waves = where(waves < 1.0, waves, whole(waves))
    return waves * (2.0 * k * tile.m * tile.n * n_sm / (flops_per_s * tile.rate))


def gemm(
    name: str,
    phase: Phase,
    machine: Machine,
    rate: OpRate,
    *,
    count: Num,
    m: Num,
    n: Num,
    k: Num,
    weight: Num,
    groups: Num = 1.0,
    tiled: bool = True,
) -> Op:
    """`groups` multiplications of M x K by K x N on one GPU.

        flops = 2 M N K      read = M K a + N K b      write = M N c

    Args:
        rate: what the kind of GEMM reaches.
        count: layers that have it.
        m: tokens of one multiplication; below 1 where an expert is seldom hit.
        n, k: outputs and inputs on this GPU.
        weight: bytes per weight.
        groups: multiplications side by side (experts, heads), a fraction where it is an expected number.
        tiled: whole tiles in whole waves. Not for experts: grouped kernels take tiles as small as 8 tokens and deal
            them to processors as they come, and tables of them fit better without (7.6 against 9.3 % per kernel).
    Returns: an operation; the fastest tile of the machine's set decides its math, and K its chain: one processor
        takes the K steps of its tile in order.
    Source: NVIDIA AI Model Co-Design (bytes of all three operands; block scales count).
    """
    flops = m * (2.0 * n * k * groups)
    math_s = m * (2.0 * n * k * groups * (1.0 / rate.flops_per_s))
    if tiled and machine.tiles:
        by_tile = [tiled_math_s(m, n, k, groups, rate.flops_per_s, tile, machine.n_sm) for tile in machine.tiles]
        math_s = maximum(math_s, functools.reduce(minimum, by_tile))
    return kernel(
        name,
        phase,
        rate,
        count=count,
        flops=flops,
        weight_bytes=n * k * weight * groups,
        input_bytes=m * (k * machine.act * groups),
        output_bytes=m * (n * machine.out * groups),
        math_s=math_s,
        chain_s=k * rate.chain_s,
        m=m,
        n=n,
        k=k,
        groups=groups,
    )
