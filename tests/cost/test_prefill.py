"""Chunked prefill in closed form against plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.cost.ops import op_parts
from sweep.cost.prefill import sum_of_max, ttft_s
from sweep.cost.step import Row, head_op
from sweep.cost.tokens import prefill_tokens
from tests.cost import points
from tests.cost.points import DENSE, MLA, MOE


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


level = st.floats(0, 10, allow_subnormal=False).map(lambda x: round(x, 3))
slope = st.one_of(st.just(0.0), st.floats(0, 3, allow_subnormal=False).map(lambda x: round(x, 3)))


@settings(deadline=None, derandomize=True, max_examples=400)
@given(a=st.tuples(level, slope), b=st.tuples(level, slope), n=st.integers(0, 60))
def test_sum_of_max(a: tuple[float, float], b: tuple[float, float], n: int) -> None:
    """Sum over 0 <= j < n of max(a0 + a1 j, b0 + b1 j).

    A crossing within a thousandth of a whole number may fall on either side of it, where the lines differ by as little.
    """
    expected = sum(max(a[0] + a[1] * j, b[0] + b[1] * j) for j in range(n))
    with points.numbers():
        found = sum_of_max(
            (np.float64(a[0]), np.float64(a[1])),
            (np.float64(b[0]), np.float64(b[1])),
            np.float64(n),
        )
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 + 4e-3 * (n > 0))


def first_token_s(row: Row, prompt: float, hit: float = 0.0) -> float:
    return float(ttft_s(row, points.context(isl=prompt, osl=1, prefix_hit=hit), points.all_kinds()))


def looped_s(
    values: dict[str, Any],
    layout: dict[str, Any],
    efficiency: str,
    prompt: int,
    chunk: int,
    cached: int,
    **figures: float,
) -> float:
    """One chunk after the other, each a prefill of its own whose prefix is cached."""
    hw = points.machine(efficiency, **figures)
    whole = points.row(points.model(values), hw, points.layout(**layout))
    head = head_op("prefill", whole.model, hw, whole.layout, prefill_tokens(whole.layout, np.float64(chunk)))
    after = op_parts(head).total_s + hw.host_s
    total = 0.0
    for start in range(cached, prompt, chunk):
        end = min(start + chunk, prompt)
        total += first_token_s(whole, end, start / end) - after
    return total + float(after)


WINDOWS = {"n_window_layers": 12, "window": 3000}
SPARSE = {**DENSE, "sparse_top_k": 5000, "index_heads": 8, "index_dim": 64}


@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
@pytest.mark.parametrize(
    ("prompt", "chunk", "cached"), [(20_000, 1000, 0), (20_500, 1000, 0), (16_000, 512, 4000), (700, 1000, 0)]
)
@pytest.mark.parametrize(
    ("values", "layout"),
    [
        (DENSE, {}),
        ({**DENSE, **WINDOWS}, {"tpa": 2}),
        (SPARSE, {}),
        ({**SPARSE, **WINDOWS}, {}),
        (MLA, {"tpa": 4}),
        (MOE, {"dpa": 4, "ep": 4}),
        (MOE, {"tpa": 2, "kvp": 4, "ep": 4}),
    ],
)  # fmt: skip
def test_closed_form(
    values: dict[str, Any], layout: dict[str, Any], efficiency: str, prompt: int, chunk: int, cached: int
) -> None:
    row = points.row(points.model(values), points.machine(efficiency), points.layout(**layout, prefill_chunk=chunk))
    found = first_token_s(row, prompt, cached / prompt)
    # tiles make MLA's expansion of the prefix a staircase, through whose ends the closed form draws a line
    rel = 1e-3 if efficiency == "measured" and values is MLA else 1e-6
    assert found == pytest.approx(looped_s(values, layout, efficiency, prompt, chunk, cached), rel=rel)


@pytest.mark.parametrize("values", [DENSE, {**DENSE, **WINDOWS}])
@pytest.mark.parametrize("overlap", [0.5, 1.0])
def test_closed_form_with_overlap(values: dict[str, Any], overlap: float) -> None:
    """Communication that is shorter than the layers' work hides by the share that is asked for."""
    layout = {"tpa": 4, "overlap": overlap}
    hw = points.machine(link_bytes_per_s=2e12)
    row = points.row(points.model(values), hw, points.layout(**layout, prefill_chunk=4000))
    found = first_token_s(row, 40_000)
    loop = looped_s(values, layout, "ideal", 40_000, 4000, 0, link_bytes_per_s=2e12)
    assert found == pytest.approx(loop, rel=1e-6)
    plain = points.row(points.model(values), hw, points.layout(tpa=4, prefill_chunk=4000))
    assert found < 0.99 * first_token_s(plain, 40_000)


@pytest.mark.parametrize("overlap", [0.5, 1.0])
def test_closed_form_where_early_chunks_hide_little(overlap: float) -> None:
    """Communication longer than the work of the first chunks and shorter than that of the last."""
    layout = {"tpa": 8, "overlap": overlap}
    row = points.row(points.model(), points.machine(link_bytes_per_s=1e10), points.layout(**layout, prefill_chunk=1000))
    loop = looped_s(DENSE, layout, "ideal", 20_000, 1000, 0, link_bytes_per_s=1e10)
    plain = points.row(points.model(), points.machine(link_bytes_per_s=1e10), points.layout(tpa=8, prefill_chunk=1000))
    found = first_token_s(row, 20_000)
    assert found == pytest.approx(loop, rel=1e-6) and found < first_token_s(plain, 20_000)


def test_one_chunk_is_the_whole_prompt() -> None:
    m, hw = points.model(), points.machine()
    none, one = (first_token_s(points.row(m, hw, points.layout(prefill_chunk=c)), 3000) for c in (0, 3000))
    assert none == pytest.approx(one, rel=1e-12)


def test_hops_and_stages() -> None:
    """(sum t + (P - 1) max t) / P x ceil(L/P) P / L: 16 layers over 3 stages, one chunk: all of it, 18/16 times."""
    m, hw = points.model(DENSE, vocab=0), points.machine(link_bytes_per_s=1e30)
    one, three = (first_token_s(points.row(m, hw, points.layout(pp=p)), 3000) for p in (1, 3))
    assert three == pytest.approx(one * 18 / 16, rel=1e-6)
    real = points.machine()
    hop = 2 * 3000 * 1024 * 2 / 4e11  # two hops of the residual stream
    slow = first_token_s(points.row(m, real, points.layout(pp=3)), 3000)
    assert slow - three == pytest.approx(hop, rel=1e-5)
