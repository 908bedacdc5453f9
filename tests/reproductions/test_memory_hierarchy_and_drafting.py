"""Tiers of memory, and the tokens and reads of speculative decoding.

Sources: Groq and d-Matrix Corsair data sheets as the memory-hierarchy literature quotes them; speculative decoding
(arXiv 2211.17192), equation 1; DeepSeek-R1 (256 experts, 8 per token). Inputs: 230 MB at 80 TB/s per chip, 70 GB of
weights; a card of (1 + 16 x 0.067) GB at 150 TB/s whose second tier gives 0.34 TB/s. Tolerance: 1e-3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from sweep.cost.arith import namespace
from sweep.cost.published import tier_s
from sweep.cost.step import expected_tokens
from sweep.explain import Explanation, explain
from sweep.tiers import check_placement
from tests.reproductions._points import EXACT, _records, about, decode_ops, point

TB, GB, MB = 1e12, 1e9, 1e6


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with namespace(np):
        yield


@pytest.mark.parametrize(
    ("size", "bandwidth", "seconds"),
    [
        (230 * MB, 80 * TB, 2.875e-6),
        ((1 + 16 * 0.067) * GB, 150 * TB, 13.81e-6),
        (4.4 * GB, 0.34 * TB, 12.94e-3),
        (141 * GB, 4.8 * TB, 29.375e-3),
    ],
)
def test_one_sweep_of_a_memory(size: float, bandwidth: float, seconds: float) -> None:
    """All bytes in one tier are the one-tier roofline, whatever other tiers there are."""
    assert tier_s([size], [bandwidth]) == about(seconds, EXACT)
    for overlapped in (False, True):
        assert tier_s([0.0, size, 0.0], [1e15, bandwidth, 1e9], overlapped=overlapped) == size / bandwidth


def test_chips_for_the_weights() -> None:
    """70 GB of weights fill 304.3 chips of 230 MB: an SRAM-first machine is many chips of small, fast main memory."""
    shape = "model=dense precision=bf16 hardware=gb300_nvl72 efficiency=ideal workload.batch=1 workload.context=100"
    chip = f"hardware.hbm_bytes={230 * MB} hardware.hbm_bytes_per_s={80 * TB}"
    rest = 70 * GB - point(shape).memory["weights_bytes"]
    e = point(shape, chip, f"model.extra_params={rest / 2}")
    assert e.memory["weights_bytes"] / e.memory["capacity_bytes"] == about(304.3, EXACT)
    assert e.columns["reasons"] == ["capacity"]
    head = decode_ops(e)["lm_head"]
    assert head["weight_bytes"] / head["memory_s"] == about(80 * TB, EXACT)


@pytest.mark.parametrize(
    ("share", "serial", "overlapped"), [(0.5, 0.798, 0.8), (0.9, 1 / (0.9 / 150 + 0.1 / 0.4), 4.0), (1.0, 150.0, 150.0)]
)
def test_two_tiers(share: float, serial: float, overlapped: float) -> None:
    """Half the bytes at 150 TB/s and half at 0.4, one after the other: 0.798 TB/s."""
    size = 10 * GB
    parts, rates = [share * size, (1 - share) * size], [150 * TB, 0.4 * TB]
    assert size / tier_s(parts, rates) / TB == about(serial, EXACT)
    assert size / tier_s(parts, rates, overlapped=True) / TB == about(overlapped, EXACT)


@pytest.mark.parametrize(
    ("acceptance", "drafted", "tokens"),
    [
        (0.8, 1, 1.8),
        (0.7, 3, 2.533),
        (0.8, 3, 2.952),
        (0.0, 5, 1.0),
        (1.0, 3, 4.0),
        (0.9, 5, sum(0.9**i for i in range(6))),
        (0.5, 0, 1.0),
    ],
)
def test_expected_tokens(acceptance: float, drafted: int, tokens: float) -> None:
    assert expected_tokens(acceptance, float(drafted)) == about(tokens, EXACT)
    e = point(f"model=deepseek_r1 efficiency=ideal model.n_draft={drafted} model.acceptance={acceptance}")
    assert e.step["expected_tokens"] == about(tokens, EXACT)


@pytest.mark.parametrize(
    ("batch", "drafted", "tax"), [(1, 3, 3.82), (32, 3, 1.54), (1, 1, None), (8, 2, None), (512, 3, None)]
)
def test_expert_reads_of_a_verification(batch: int, drafted: int, tax: float | None) -> None:
    """DeepSeek-R1: verified tokens hit more experts; the tax shrinks once most are hit anyway."""

    def read(g: int) -> float:
        e = point(f"model=deepseek_r1 efficiency=ideal workload.batch={batch} model.n_draft={g} model.acceptance=0.8")
        return float(decode_ops(e)["experts_down"]["weight_bytes"])

    def distinct(tokens: int) -> float:
        return 256 * (1 - (1 - 8 / 256) ** tokens)

    measured = read(drafted) / read(0)
    assert measured == about(distinct(batch * (1 + drafted)) / distinct(batch), 1e-9)
    if tax is not None:
        assert measured == about(tax, 2e-3)


# --- the same anchors on the path of a point: a machine with tiers, a placement, a decode step ---------------------


def tiered_point(policy: dict[str, object], weights: float, **figures: float) -> Explanation:
    """One token of a dense model of so many bytes of weights on a machine of SRAM and a second tier, `ideal`."""
    study = _records("model=dense", "hardware=gb300_nvl72", "precision=fp8", "efficiency=ideal", "workload=chat")
    wide = {"n_layers": 16, "d_model": 1024, "n_heads": 8, "n_kv_heads": 8, "head_dim": 128, "vocab": 1}
    plain = {**wide, "tied_embeddings": True, "head": "fp8"}
    rest = weights - 16 * 4 * 1024 * 1024  # projections of attention; the FFN makes up the difference
    plain["d_ff"] = round(rest / (16 * 3 * 1024))
    far = {"hbm_bytes": 1e13, "hbm_bytes_per_s": 0.4 * TB, **figures}
    base = dict(study.base)
    for group, values in (
        ("model", {k: v for k, v in plain.items() if k != "head"}),
        ("hardware", {**far, "link_bytes_per_s": 1e12}),
        ("precision", {"head": "fp8"}),
        ("workload", {"batch": 1.0, "context": 1.0}),
    ):
        base[group] = dataclasses.replace(base[group], values={**base[group].values, **values})
    return explain(dataclasses.replace(study, base=base, placement=check_placement(policy, "test")))


def weight_rate(e: Explanation) -> float:
    """Bytes of weights of a layer over the seconds of reading them, over all layers and the head."""
    rows = [r for r in e.ops if r["phase"] == "decode" and r["weight_bytes"]]
    return float(sum(r["count"] * r["weight_bytes"] for r in rows) / e.columns["weight_read_s"])


SRAM_FIRST = {"order": ["weights", "kv", "activations"], "weights": ["sram", "hbm"], "kv": "hbm", "activations": "hbm"}


@pytest.mark.parametrize(
    ("size", "bandwidth", "seconds"),
    [(230 * MB, 80 * TB, 2.875e-6), ((1 + 16 * 0.067) * GB, 150 * TB, 13.81e-6)],
)
def test_one_sweep_of_on_chip_memory_by_a_decode_step(size: float, bandwidth: float, seconds: float) -> None:
    """Weights that fill the on-chip memory are read once per token, at its bandwidth."""
    e = tiered_point(SRAM_FIRST, size, sram_bytes=1.01 * size, sram_bytes_per_s=bandwidth)
    assert e.columns["weight_read_s"] == about(seconds, EXACT)
    sram, far = e.memory["tiers"]
    assert sram["weights_bytes"] == about(e.columns["weights_bytes"], 1e-9) and far["weights_bytes"] == 0


def test_one_sweep_of_the_second_tier_by_a_decode_step() -> None:
    """The Corsair card's LPDDR: 4.4 GB at 0.34 TB/s, 12.94 ms a token, whatever SRAM lies idle beside it."""
    policy = {"weights": "hbm", "kv": "sram", "activations": "sram"}
    e = tiered_point(policy, 4.4 * GB, sram_bytes=2 * GB, sram_bytes_per_s=150 * TB, hbm_bytes_per_s=0.34 * TB)
    assert e.columns["weight_read_s"] == about(12.94e-3, EXACT)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("reads", ["serial", "overlapped"])
def test_two_tiers_by_a_decode_step(share: float, reads: str) -> None:
    """Half the weights at 150 TB/s and half at 0.4: 0.798 TB/s, by shares and by an on-chip memory of that size."""
    parts, rates = [share, 1 - share], [150 * TB, 0.4 * TB]
    want = 1 / tier_s(parts, rates, overlapped=reads == "overlapped")
    if share == 0.5 and reads == "serial":
        assert want / TB == about(0.798, EXACT)
    fixed = {**SRAM_FIRST, "weights": [{"sram": share}, "hbm"], "reads": reads}
    by_share = tiered_point(fixed, 10 * GB, sram_bytes=1e11, sram_bytes_per_s=150 * TB)
    assert weight_rate(by_share) == about(want, EXACT)
    size = by_share.columns["weights_bytes"]
    filled = {**SRAM_FIRST, "reads": reads}
    by_room = tiered_point(filled, 10 * GB, sram_bytes=share * size, sram_bytes_per_s=150 * TB)
    assert weight_rate(by_room) == about(want, EXACT)


def test_chips_of_on_chip_memory_alone() -> None:
    """70 GB on chips of 230 MB and nothing else: 304.3 chips' worth, and 69.77 GB of it without room on one."""
    policy = {"weights": "sram", "kv": "sram", "activations": "sram"}
    e = tiered_point(policy, 70 * GB, sram_bytes=230 * MB, sram_bytes_per_s=80 * TB)
    assert e.memory["weights_bytes"] / e.memory["capacity_bytes"] == about(304.3, EXACT)
    assert e.columns["reasons"] == ["capacity"]
    assert e.memory["unplaced_bytes"] == about(69.77 * GB, EXACT)
