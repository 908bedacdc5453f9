"""Who works on how many tokens: shares rounded up, by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sweep.cost.arith import ceil_div, floor, whole
from sweep.cost.tokens import decode_tokens, ffn_gpus, microbatches, prefill_tokens, stage_gpus
from tests.cost import points


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


@pytest.mark.parametrize(
    ("layout", "batch", "drafted", "expected"),
    [
        # dpa = 1: every GPU has every token
        (
            {"tpa": 8},
            10,
            0,
            {"total": 10, "requests": 10, "project": 10, "attend": 10, "ffn": 10, "owned": 10, "head": 10},
        ),
        (
            {"tpa": 8},
            10,
            2,
            {"total": 30, "requests": 10, "project": 30, "attend": 30, "ffn": 30, "owned": 30, "head": 30},
        ),
        # ten requests for four groups: three on the busiest; 20 tokens over ep = 2 and over four GPUs
        ({"dpa": 4, "ep": 2}, 10, 1, {"total": 20, "requests": 3, "attend": 6, "ffn": 10, "owned": 5, "head": 6}),
        ({"dpa": 4, "ep": 4}, 9, 0, {"total": 9, "requests": 3, "attend": 3, "ffn": 3, "owned": 3}),
        ({"tpa": 2, "dpa": 4, "ep": 8}, 9, 0, {"total": 9, "requests": 3, "ffn": 2, "owned": 2}),
        # fewer requests than groups: the busiest still has one
        ({"dpa": 8, "ep": 8}, 3, 0, {"total": 3, "requests": 1, "ffn": 1, "owned": 1}),
        # four microbatches of three, two and so on: the largest has three, one for each of three groups
        ({"dpa": 4, "ep": 4, "pp": 4}, 10, 0, {"total": 3, "requests": 1, "ffn": 1, "owned": 1}),
        ({"pp": 4, "microbatches": 2}, 10, 1, {"total": 10, "requests": 5, "ffn": 10}),
    ],
)
def test_decode(layout: dict[str, Any], batch: int, drafted: int, expected: dict[str, int]) -> None:
    tokens = dataclasses.asdict(decode_tokens(points.layout(**layout), np.float64(batch), np.float64(drafted)))
    assert {k: tokens[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("layout", "chunk", "expected"),
    [
        ({"tpa": 8}, 1000, {"total": 1000, "project": 1000, "attend": 1000, "ffn": 1000, "owned": 1000, "head": 1}),
        ({"tpa": 2, "kvp": 8}, 1000, {"total": 1000, "project": 125, "attend": 1000, "ffn": 1000}),
        ({"kvp": 8}, 1001, {"project": 126, "attend": 1001}),
        ({"dpa": 4, "ep": 4}, 1000, {"total": 4000, "attend": 1000, "ffn": 1000, "owned": 1000, "requests": 1}),
        ({"dpa": 4, "ep": 2}, 1001, {"total": 4004, "ffn": 2002, "owned": 1001}),
    ],
)
def test_prefill(layout: dict[str, Any], chunk: int, expected: dict[str, int]) -> None:
    """One request per attention group: the experts see a chunk of each."""
    tokens = dataclasses.asdict(prefill_tokens(points.layout(**layout), np.float64(chunk)))
    assert {k: tokens[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("pp", "asked", "batch", "found"), [(4, 0, 10, 4), (4, 0, 3, 3), (4, 8, 10, 8), (4, 8, 3, 3), (1, 0, 10, 1)]
)
def test_microbatches(pp: int, asked: int, batch: int, found: int) -> None:
    assert microbatches(points.layout(pp=pp, microbatches=asked), np.float64(batch)) == found


def test_gpus() -> None:
    lay = points.layout(tpa=2, kvp=4, dpa=1, pp=3)
    assert (stage_gpus(lay), ffn_gpus(lay)) == (8, 8)
    assert ffn_gpus(points.layout(tpa=2, kvp=4, ffn_tied=1)) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_up_is_exact(dtype: type) -> None:
    """Every quotient of whole numbers, exact multiples included, in the precision that a sweep runs in."""
    rng = np.random.default_rng(0)
    b = rng.integers(1, 5000, 20_000)
    a = b * rng.integers(0, 4_000_000 // b) + rng.integers(-1, 2, b.size)
    a = np.maximum(a, 0)
    assert (ceil_div(a.astype(dtype), b.astype(dtype)) == -(-a // b)).all()


def test_rounding_of_fractions() -> None:
    """A thousandth above a whole number is rounding error, not another wave."""
    assert whole(np.float64(3.0005)) == 3
    assert whole(np.float64(3.01)) == 4
    assert floor(np.float64(3.99)) == 3
