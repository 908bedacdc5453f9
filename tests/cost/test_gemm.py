"""One matrix multiplication against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest

from sweep.cost.gemm import crossover_m, gemm, tile_efficiency, tiled_math_s, wave_efficiency
from sweep.cost.ops import kernel_parts
from sweep.machine import Machine, Tile, weight_bytes
from sweep.point import FORMAT_BITS
from tests.cost import points


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


def formats(weights: str, activations: str = "bf16", output: str = "bf16") -> Machine:
    return points.machine(precision={"weights": weights, "activations": activations, "output": output})


@pytest.mark.parametrize(
    ("weights", "activations", "output", "flops_per_s", "a", "b", "c"),
    [
        ("bf16", "bf16", "bf16", 1e15, 2.0, 2.0, 2.0),
        ("fp8", "fp8", "bf16", 2e15, 1.0, 1.0, 2.0),
        ("nvfp4", "nvfp4", "fp8", 4e15, 0.5625, 0.5625, 1.0),
        ("nvfp4", "bf16", "bf16", 1e15, 2.0, 0.5625, 2.0),  # the wider of the two multiplies
        ("mxfp4", "fp8", "bf16", 2e15, 1.0, 0.53125, 2.0),
        ("int4", "bf16", "bf16", 1e15, 2.0, 0.515625, 2.0),
        ("fp8_block", "fp8_block", "bf16", 2e15, 1.03125, 1.000244140625, 2.0),
        ("int8", "fp8", "bf16", 1e15, 1.0, 1.0, 2.0),  # no unit multiplies these two
    ],
)
def test_bytes_and_time(
    weights: str, activations: str, output: str, flops_per_s: float, a: float, b: float, c: float
) -> None:
    """flops 2 M N K; read M K a + N K b; write M N c; time the longer of math and memory."""
    hw, (m, n, k) = formats(weights, activations, output), (96.0, 4096.0, 1024.0)
    op = gemm("g", "decode", hw, hw.gemm_ffn, count=1.0, m=m, n=n, k=k, weight=hw.ffn_weight)
    assert op.flops == 2 * 96 * 4096 * 1024
    assert op.weight_bytes == 4096 * 1024 * b
    assert op.input_bytes == 96 * 1024 * a
    assert op.output_bytes == 96 * 4096 * c
    math_s = 2 * 96 * 4096 * 1024 / flops_per_s
    memory_s = (4096 * 1024 * b + 96 * 1024 * a + 96 * 4096 * c) / 4e12
    assert op.math_s == pytest.approx(math_s, rel=1e-12)
    longer, shorter = max(math_s, memory_s), min(math_s, memory_s)
    assert kernel_parts(op).total_s == pytest.approx(longer, rel=1e-12)
    for overlap in (0.0, 0.75):
        shown = kernel_parts(dataclasses.replace(op, overlap=overlap, floor_s=2e-6))
        assert shown.total_s == pytest.approx(2e-6 + longer + (1 - overlap) * shorter, rel=1e-12)
        assert shown.latency_s == 2e-6
        assert max(shown.math_s, shown.weight_s + shown.activation_s) == pytest.approx(longer, rel=1e-12)


def test_groups_multiply_everything() -> None:
    """Experts side by side: an expected number of them, a fraction."""
    hw = formats("fp8", "fp8")
    one, some = (
        gemm("g", "decode", hw, hw.experts, count=1.0, m=3.0, n=64.0, k=128.0, weight=1.0, groups=g) for g in (1.0, 2.5)
    )
    for key in ("flops", "weight_bytes", "input_bytes", "output_bytes", "math_s", "weight_s", "activation_s"):
        assert getattr(some, key) == pytest.approx(2.5 * getattr(one, key), rel=1e-12)
    assert (some.m, some.n, some.k, some.groups) == (3.0, 64.0, 128.0, 2.5)


def test_weights_that_are_partly_narrow() -> None:
    """quantized_fraction 0.75: bytes 0.75 x 0.5625 + 0.25 x 2, and a quarter of the math at the bf16 rate."""
    hw = points.machine(precision={"weights": "nvfp4", "activations": "nvfp4", "quantized_fraction": 0.75})
    assert hw.ffn_weight == pytest.approx(0.75 * 0.5625 + 0.25 * 2.0)
    assert hw.gemm_ffn.flops_per_s == pytest.approx(1 / (0.75 / 4e15 + 0.25 / 1e15))
    assert hw.head_weight == 2.0


def test_a_machine_without_the_format_saves_bytes_not_math() -> None:
    old = points.machine(precision={"weights": "nvfp4", "activations": "nvfp4"}, fp4_flops=None)
    assert old.gemm_ffn.flops_per_s == 1e15
    assert old.ffn_weight == 0.5625


@pytest.mark.parametrize("name", FORMAT_BITS)
def test_bytes_of_a_weight(name: str) -> None:
    scales = {"fp8_block": 32 / 128**2, "mxfp8": 8 / 32, "nvfp4": 8 / 16, "mxfp4": 8 / 32, "int4": 16 / 128}
    bare = {"fp32": 32, "bf16": 16, "fp8": 8, "fp8_block": 8, "mxfp8": 8, "int8": 8}.get(name, 4)
    assert weight_bytes(name) == (bare + scales.get(name, 0)) / 8


@pytest.mark.parametrize(("n", "k"), [(4096.0, 4096.0), (8192.0, 1024.0), (512.0, 16384.0), (1024.0, 512.0)])
def test_crossover(n: float, k: float) -> None:
    """bf16 on this machine: I = 250, M* = 2 / (0.008 - 2/N - 2/K); math and memory take equally long there."""
    hw = formats("bf16")
    found = crossover_m(n, k, hw, hw.gemm_ffn, 2.0)
    room = 2 / 250 - 2 / n - 2 / k
    assert found == pytest.approx(2 / room, rel=1e-12)
    op = gemm("g", "decode", hw, hw.gemm_ffn, count=1.0, m=found, n=n, k=k, weight=2.0)
    assert op.math_s == pytest.approx(op.weight_s + op.activation_s, rel=1e-9)


def test_no_crossover() -> None:
    """2/N + 2/K at or beyond 0.008: memory always takes longer."""
    hw = formats("bf16")
    assert math.isinf(crossover_m(500.0, 500.0, hw, hw.gemm_ffn, 2.0))
    assert math.isinf(crossover_m(64.0, 1e9, hw, hw.gemm_ffn, 2.0))


# --- tiles, waves, chains -----------------------------------------------------------------------------------------


def test_tile_and_wave_efficiency() -> None:
    assert tile_efficiency(np.float64(100), 128.0) == 100 / 128
    assert tile_efficiency(np.float64(128), 128.0) == 1
    assert tile_efficiency(np.float64(129), 128.0) == 129 / 256
    assert wave_efficiency(np.float64(100), 100.0) == 1
    assert wave_efficiency(np.float64(101), 100.0) == 101 / 200


@pytest.mark.parametrize(
    ("m", "n", "groups", "waves"),
    [
        (128, 12800, 1.0, 1),  # 100 tiles for 100 processors
        (128, 12801, 1.0, 2),
        (129, 12800, 1.0, 2),
        (128, 1280, 1.0, 0.1),  # split-K: what is not there costs nothing
        (1, 1280, 10.0, 1),  # ten experts, one token each: a tile row each
        (1, 1280, 10.001, 1),  # expected numbers are fractions: a thousandth does not open a wave
        (1, 1280, 10.2, 2),
        (128, 25600, 1.0, 2),
    ],
)
def test_waves(m: int, n: int, groups: float, waves: float) -> None:
    tile = Tile(m=128.0, n=128.0, rate=1.0)
    one_wave = 2 * 256 * 128 * 128 * 100 / 1e15
    seconds = tiled_math_s(np.float64(m), np.float64(n), 256.0, groups, 1e15, tile, 100.0)
    assert seconds == pytest.approx(waves * one_wave, rel=1e-12)


def test_the_fastest_tile_is_taken() -> None:

    tiles = (Tile(m=128.0, n=128.0, rate=1.0), Tile(m=16.0, n=128.0, rate=0.5))
    hw = dataclasses.replace(formats("bf16"), tiles=tiles)

    def math_s(m: float) -> float:
        return float(gemm("g", "decode", hw, hw.gemm_ffn, count=1.0, m=m, n=12800.0, k=256.0, weight=2.0).math_s)

    large, small = 2 * 256 * 128 * 128 * 100 / 1e15, 2 * 256 * 16 * 128 * 100 / 0.5e15
    assert math_s(1.0) == pytest.approx(small)
    assert math_s(16.0) == pytest.approx(small)
    assert math_s(33.0) == pytest.approx(3 * small)
    assert math_s(128.0) == pytest.approx(large)  # eight small waves would take four times as long
