"""Parameters and what a GPU holds, each part divided by its own split only: by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sweep.cost.memory import count_params, held_bytes, max_batch, request_bytes, weights_bytes
from sweep.cost.tokens import decode_tokens
from tests.cost import points
from tests.cost.points import DENSE, MLA, MOE

D, LAYERS, HEADS, KV, W, FF, VOCAB = 1024, 16, 16, 4, 64, 4096, 32768
NORMS = D * (2 * LAYERS + 1)


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


# --- parameters --------------------------------------------------------------------------------------------------


def test_parameters_of_llama_3_1_8b() -> None:
    """8,030,261,248, as its checkpoint has; a token multiplies all but the input embedding."""
    llama = points.model(
        {"n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "vocab": 128256}
    )
    params = count_params(llama)
    assert params.total == params.touched == 8_030_261_248
    assert params.active == 8_030_261_248 - 128256 * 4096


def test_parameters_by_hand() -> None:
    attention = LAYERS * D * W * (2 * HEADS + 2 * KV)
    dense = attention + LAYERS * 3 * D * FF + NORMS
    assert count_params(points.model(DENSE)).total == dense + 2 * VOCAB * D
    tied = count_params(points.model(DENSE, tied_embeddings=1))
    assert (tied.total, tied.active, tied.touched) == (dense + VOCAB * D,) * 3
    one, moe = 3 * D * 512, attention + NORMS + 4 * 3 * D * FF + 12 * D * 64
    params = count_params(points.model(MOE))
    assert params.total == moe + 12 * (64 + 1) * one + 2 * VOCAB * D
    assert params.active == moe + 12 * (4 + 1) * one + VOCAB * D
    two = count_params(points.model(MOE, ffn_matrices=2))
    assert params.total - two.total == D * (12 * 65 * 512 + 4 * FF)


def test_parameters_of_mla_and_its_indexer() -> None:
    params = count_params(points.model(MLA, n_experts=0, n_shared_experts=0, n_dense_layers=16))
    q, kv, nope, rope, v = 512, 256, 64, 32, 64
    down = D * (q + kv + rope)
    up = HEADS * (q * (nope + rope) + kv * (nope + v))
    index = q * 8 * 64 + D * (64 + 8)
    layer = down + up + D * HEADS * v + index + 3 * D * FF + q + kv
    assert params.total == LAYERS * layer + NORMS + 2 * VOCAB * D


# --- weights held ------------------------------------------------------------------------------------------------

SPLITS: list[tuple[dict[str, Any], dict[str, float]]] = [
    # divisor of each part; KV heads of a GPU are ceil(4 / tpa)
    ({}, {"q": 1, "kv": 4, "o": 1, "ffn": 1, "ep": 1, "tpf": 1, "table": 1}),
    ({"tpa": 4}, {"q": 4, "kv": 1, "o": 4, "ffn": 4, "ep": 1, "tpf": 4, "table": 4}),
    ({"tpa": 8}, {"q": 8, "kv": 1, "o": 8, "ffn": 8, "ep": 1, "tpf": 8, "table": 8}),
    ({"tpa": 2, "kvp": 4}, {"q": 2, "kv": 2, "o": 8, "ffn": 8, "ep": 1, "tpf": 8, "table": 8}),
    ({"tpa": 2, "kvp": 4, "wo_shard": "tpa"}, {"q": 2, "kv": 2, "o": 2, "ffn": 8, "ep": 1, "tpf": 8, "table": 8}),
    ({"tpa": 2, "kvp": 4, "ep": 4}, {"q": 2, "kv": 2, "o": 8, "ffn": 8, "ep": 4, "tpf": 2, "table": 8}),
    ({"dpa": 8, "ep": 8}, {"q": 1, "kv": 4, "o": 1, "ffn": 1, "ep": 8, "tpf": 1, "table": 1}),
    ({"dpa": 8, "ep": 4}, {"q": 1, "kv": 4, "o": 1, "ffn": 2, "ep": 4, "tpf": 2, "table": 1}),
    ({"tpa": 2, "dpa": 4, "ep": 8}, {"q": 2, "kv": 2, "o": 2, "ffn": 1, "ep": 8, "tpf": 1, "table": 2}),
]


@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize(("layout", "split"), SPLITS)
def test_split_table(layout: dict[str, Any], split: dict[str, float], pp: int) -> None:
    """fp8 attention and FFN weights, bf16 embeddings, routers and norms; 4 dense layers and 12 with experts."""
    hw = points.machine(precision={"weights": "fp8"})
    held = weights_bytes(points.model(MOE), hw, points.layout(**layout, pp=pp, redundant_slots=2))
    attention = LAYERS * D * W * (HEADS / split["q"] + 2 * split["kv"] + HEADS / split["o"])
    dense = 4 * 3 * D * FF / split["ffn"]
    shared = 12 * 3 * D * 512 / split["ffn"]
    experts = 12 * (64 / split["ep"] + 2) * 3 * D * 512 / split["tpf"]
    router = 12 * D * 64
    layers = attention + dense + shared + experts + 2 * router + 2 * NORMS
    tables = (2 if pp == 1 else 1) * 2 * VOCAB * D / split["table"]
    assert held == pytest.approx(layers / pp + tables, rel=1e-12)


@pytest.mark.parametrize(("tied", "pp", "tables"), [(0, 1, 2), (1, 1, 1), (0, 2, 1), (1, 2, 1), (1, 16, 1)])
def test_embeddings(tied: int, pp: int, tables: int) -> None:
    """Input and head: two tables on one stage, one where they are tied; with pp > 1 each end stage holds one."""
    hw, lay = points.machine(), points.layout(tpa=4, pp=pp)
    with_table = weights_bytes(points.model(DENSE, tied_embeddings=tied), hw, lay)
    without = weights_bytes(points.model(DENSE, tied_embeddings=tied, vocab=0), hw, lay)
    assert with_table - without == tables * 2 * VOCAB * D / 4


@pytest.mark.parametrize(("layers", "pp", "fullest"), [(61, 16, 4), (61, 2, 31), (16, 4, 4), (5, 5, 1)])
def test_fullest_stage(layers: int, pp: int, fullest: int) -> None:
    values = {"n_layers": layers, "vocab": 0}
    one, cut = (weights_bytes(points.model(DENSE, **values), points.machine(), points.layout(pp=p)) for p in (1, pp))
    assert cut == pytest.approx(one * fullest / layers, rel=1e-12)


def test_uneven_widths_and_experts_round_up() -> None:
    hw = points.machine()
    flat = {"n_layers": 1, "n_dense_layers": 1, "vocab": 0}
    part = weights_bytes(points.model(DENSE, **flat, d_ff=1000), hw, points.layout(tpa=16))
    none = weights_bytes(points.model(DENSE, **flat, d_ff=0), hw, points.layout(tpa=16))
    assert part - none == 2 * 3 * D * 63  # 1000 / 16 = 62.5
    values = {**MOE, "n_layers": 1, "n_dense_layers": 0, "n_shared_experts": 0, "vocab": 0, "n_experts": 60}
    held = weights_bytes(points.model(values), hw, points.layout(dpa=8, ep=8))
    bare = weights_bytes(points.model({**values, "d_expert": 0}), hw, points.layout(dpa=8, ep=8))
    assert held - bare == 2 * 8 * 3 * D * 512  # 60 / 8 = 7.5


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "share"),
    [
        ({}, 4),
        ({"tpa": 2}, 2),
        ({"tpa": 4}, 1),
        ({"tpa": 16}, 1),
        ({"kvp": 4}, 1),
        ({"tpa": 8, "kvp": 2}, 0.5),
        ({"dpa": 8}, 4),
    ],
)
def test_cache_of_a_request(layout: dict[str, Any], share: float) -> None:
    """Past tpa = n_kv_heads the cache is duplicated, not split; kvp cuts the sequence."""
    hw = points.machine(precision={"kv": "fp8"})
    each = request_bytes(points.model(DENSE), hw, points.layout(**layout), np.float64(5000))
    assert each == LAYERS * 5000 * 2 * W * share


def test_cache_kinds() -> None:
    hw, one = points.machine(precision={"kv": "fp8"}), points.layout()

    def each(tokens: float, lay: Any = one, **values: Any) -> float:
        return float(request_bytes(points.model({**DENSE, **values}), hw, lay, np.float64(tokens)))

    row = 2 * KV * W
    assert each(5000, n_window_layers=12, window=1000) == row * (4 * 5000 + 12 * 1000)
    assert each(500, n_window_layers=12, window=1000) == row * 16 * 500
    assert each(5000, k_equals_v=1) == LAYERS * 5000 * KV * W
    assert each(5000, n_linear_layers=12, state_bytes_per_layer=4096) == row * 4 * 5000 + 12 * 4096
    assert each(5000, points.layout(tpa=4), n_linear_layers=16, state_bytes_per_layer=4096) == 16 * 1024
    latent = LAYERS * 5000 * (256 + 32 + 64)  # with the indexer's keys
    for tpa in (1, 16):  # one latent for all heads: on every GPU of the group
        assert request_bytes(points.model(MLA), hw, points.layout(tpa=tpa), np.float64(5000)) == latent


def test_held_and_largest_batch() -> None:
    m, hw, lay = points.model(DENSE), points.machine("measured"), points.layout(dpa=4)
    tokens = decode_tokens(lay, np.float64(10), np.float64(0))
    held = held_bytes(5e10, 1e9, m, hw, lay, tokens, np.float64(10))
    assert held.kv == 3e9  # ten requests for four groups
    assert held.activations == 3 * 4 * 2 * D
    assert hw.reserve_bytes == 1e10
    assert held.total == 5e10 + 3e9 + held.activations + 1e10
    assert max_batch(5e10, 1e9, m, hw, lay) == 4 * 39  # 40e9 of room, a little more than 1e9 each
    assert max_batch(2e11, 1e9, m, hw, lay) == 0
