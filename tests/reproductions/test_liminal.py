"""LIMINAL (arXiv 2507.14397): Llama-3 405B at batch 1, tokens per second and user.

Inputs: 4 TiB/s = 4 x 2^40 B/s per chip, 405e9 weight bytes, 258,048 bytes of cache per token (126 layers, 8 KV heads
of 128, one byte), 126 layers, synchronisation per layer 0.6 us (TP8) or 4.5 us (TP32, TP128). Tolerance: +-0.5
token/s, the printed rounding. Three constants (bytes per second and two synchronisation times) are fitted on six
printed values, so three of them are checks and no more.
"""

from __future__ import annotations

import numpy as np
import pytest

from sweep.cost.arith import namespace
from sweep.cost.published import liminal_tok_s
from tests.reproductions._points import about, decode_ops, point

BANDWIDTH, WEIGHTS, CACHE, LAYERS = 4 * 2**40, 405e9, 258_048, 126
SYNC = {8: 0.6e-6, 32: 4.5e-6, 128: 4.5e-6}


def tokens_per_s(chips: int, context: int, *, sync: bool = True) -> float:
    with namespace(np):
        return float(
            liminal_tok_s(
                weight_bytes=WEIGHTS,
                kv_bytes_per_tok=CACHE,
                context=context,
                chips=chips,
                bytes_per_s=BANDWIDTH,
                layers=LAYERS,
                sync_s=SYNC[chips] if sync else 0.0,
            )
        )


@pytest.mark.parametrize(("chips", "short", "long"), [(8, 86, 80), (32, 290, 271), (128, 776, 743)])
def test_printed_table(chips: int, short: int, long: int) -> None:
    assert tokens_per_s(chips, 4096) == pytest.approx(short, rel=0, abs=0.5)
    assert tokens_per_s(chips, 131072) == pytest.approx(long, rel=0, abs=0.5)


def test_synchronisation_at_width() -> None:
    """At TP128 44 % of a token is synchronisation: the numeric case for width over depth."""
    assert LAYERS * SYNC[128] * tokens_per_s(128, 4096) == pytest.approx(0.44, abs=0.005)
    halved = 1 / (1 / tokens_per_s(128, 4096) - LAYERS / 2 * SYNC[128])  # half as deep, as many bytes
    assert halved > 1.25 * tokens_per_s(128, 4096)


@pytest.mark.parametrize("context", [4096, 131072])
@pytest.mark.parametrize("chips", [8, 32, 128])
def test_nearest_layout(chips: int, context: int) -> None:
    """The study spreads the cache over all chips, which is tpa = 8, kvp = n / 8; there QKV is copied kvp times.

    `tpa = n` would duplicate the cache past 8 KV heads. Weights: 0.3 % below 405e9 at eight chips (no input embedding).
    """
    fixed = (
        "model=llama_3_1_405b precision=fp8 precision.head=fp8 hardware=gb300_nvl72 hardware.domain=128 "
        f"efficiency=ideal hardware.hbm_bytes_per_s={BANDWIDTH} workload.batch=1 workload.context={context}"
    )
    e = point(fixed, f"layout.tpa=8 layout.kvp={chips // 8}")
    kv_s = sum(row["count"] * row["kv_bytes"] for row in decode_ops(e).values()) / BANDWIDTH
    weight_s = sum(row["count"] * row["weight_bytes"] for row in decode_ops(e).values()) / BANDWIDTH
    assert kv_s == about(context * CACHE / (chips * BANDWIDTH), 1e-9)
    d, vocab = 16384, 128256
    read = 405.85e9 - vocab * d  # all parameters but the input embedding
    copies = (chips // 8 - 1) * LAYERS * d * (128 + 2 * 8) * 128
    assert weight_s == about((read + copies) / (chips * BANDWIDTH), 1e-3)
    if chips == 8:
        assert 1 / (kv_s + weight_s) == about(tokens_per_s(8, context, sync=False), 5e-3)
    else:
        duplicated = point(fixed, f"layout.tpa={chips}")
        assert decode_ops(duplicated)["attention"]["kv_bytes"] == about(
            chips / 8 * decode_ops(e)["attention"]["kv_bytes"], 1e-9
        )
