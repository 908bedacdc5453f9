"""Measured rows become the points that their sources mean."""

from __future__ import annotations

from typing import Any

import pytest

from sweep.calibration.rows import Catalogue, Cut, Measured, Unanswered, parse_pool, pool_cut, to_point
from sweep.config import Library

ROW = {
    "row_id": "r1",
    "source_id": "inferencex_db_fixture",
    "date": "2026-02-01",
    "model": "DeepSeek-R1-0528",
    "hardware": "B200-SXM",
    "n_gpus": "8",
    "precision": "fp8",
    "framework": "sglang",
    "tp": "8",
    "pp": "1",
    "ep": "1",
    "dp": "1",
    "isl": "1024",
    "osl": "1024",
    "concurrency_or_batch": "64",
    "disaggregated": "n",
    "mtp_speculative": "none",
}


@pytest.fixture(scope="module")
def catalogue(library: Library) -> Catalogue:
    return Catalogue(library)


def point(catalogue: Catalogue, **changed: Any) -> Measured:
    return to_point({**ROW, **changed}, catalogue)


def test_a_plain_row(catalogue: Catalogue) -> None:
    p = point(catalogue)
    assert (p.model, p.hardware) == ("deepseek_r1", "b200_sxm_180gb")
    assert p.decode == Cut(tpa=8, dpa=1, tpf=8, ep=1)
    assert (p.isl, p.osl) == pytest.approx((921.6, 921.6))  # drawn from 0.8 to 1.0 of the nominal length
    assert p.precision.weights == "fp8_block" and p.precision.kv == "fp8"
    assert (p.drafted, p.labelled, p.gpus, p.prefill_workers) == (0.0, True, 8.0, 0.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DeepSeek-V3.1", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek_r1"),
        ("Llama-3.3-70B", "llama_3_3_70b_instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama_3_1_8b"),
        ("Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3_235b_a22b"),
        ("Qwen2.5-72B-Instruct", "qwen2_5_72b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama_3_3_70b_instruct"),
        ("gpt-oss-120b", "gpt_oss_120b"),
    ],
)
def test_model_names(catalogue: Catalogue, name: str, expected: str) -> None:
    assert catalogue.model(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100-SXM", "h100_sxm_80gb"),
        ("GB200-NVL72", "gb200_nvl72"),
        ("A100-SXM4-80GB", "a100_sxm_80gb"),
        ("RTX-4090", "rtx_4090"),
        ("MI355X", "mi355x"),
        ("MI355X (1000W cap)", None),
        ("Intel-Xeon6-CPU", None),
    ],
)
def test_machine_names(catalogue: Catalogue, name: str, expected: str | None) -> None:
    assert catalogue.hardware(name) == expected


@pytest.mark.parametrize(
    ("layout", "gpus", "cut", "workers"),
    [
        ("4x(tp8,ep8,dpa=False)", 32, Cut(tpa=8, dpa=1, tpf=1, ep=8), 4),
        ("2x(tp8,ep1,dpa=False)", 16, Cut(tpa=8, dpa=1, tpf=8, ep=1), 2),
        ("1x(tp1,ep1,dpa=True)", 48, Cut(tpa=1, dpa=48, tpf=1, ep=48), 1),  # SGLang's string says nothing of its width
        ("1x(tp1,ep16,dpa=True)", 16, Cut(tpa=1, dpa=16, tpf=1, ep=16), 1),
        ("1.0x(tp1,dp8,moe_tp8,ep1)", 8, Cut(tpa=1, dpa=8, tpf=8, ep=1), 1),
        ("32 GPU, EP=8", 32, Cut(tpa=8, dpa=1, tpf=1, ep=8), 4),
        ("32 GPU, EP=32", 32, Cut(tpa=1, dpa=32, tpf=1, ep=32), 1),
        ("12 GPU, TP=12", 12, Cut(tpa=4, dpa=1, tpf=4, ep=1), 3),  # 128 heads: three workers of four
    ],
)
def test_pools(layout: str, gpus: int, cut: Cut, workers: float) -> None:
    found = pool_cut(parse_pool(layout), gpus, experts=True, heads=128)
    assert found == (cut, workers)


def test_disaggregated_gpus_are_those_of_both_pools(catalogue: Catalogue) -> None:
    p = point(
        catalogue,
        disaggregated="y",
        prefill_layout="1x(tp4,ep4,dpa=True)",
        decode_layout="4x(tp8,ep8,dpa=False)",
        prefill_gpus="4",
        decode_gpus="32",
        n_gpus="36",
    )
    assert (p.gpus, p.prefill_workers, p.decode_workers) == (36.0, 1.0, 4.0)
    assert (p.prefill.dpa, p.decode.tpa) == (4, 8)


def test_dp_attention_and_artefacts(catalogue: Catalogue) -> None:
    assert point(catalogue, dp="8", ep="8").decode == Cut(tpa=1, dpa=8, tpf=1, ep=8)
    assert point(catalogue, ep="8", decode_layout="dp_attention=True").decode.dpa == 8
    kimi = point(catalogue, model="Kimi-K2.5", n_gpus="1", tp="1", ep="16", precision="int4")
    assert kimi.decode == Cut(tpa=4, dpa=1, tpf=1, ep=4) and not kimi.rate_known
    assert kimi.precision.weights_ffn == "int4" and kimi.precision.activations == "bf16"
    two = point(catalogue, model="Llama-3.3-70B", n_gpus="8", tp="4", dp="1", precision="fp8")
    assert two.concurrency == 32 and two.gpus == 4  # two replicas share the requests


def test_formats(catalogue: Catalogue) -> None:
    hopper = point(catalogue, model="gpt-oss-120b", hardware="H100-SXM", precision="fp8").precision
    assert (hopper.weights_ffn, hopper.activations, hopper.kv) == ("mxfp4", "bf16", "bf16")
    blackwell = point(catalogue, model="gpt-oss-120b", precision="fp4").precision
    assert (blackwell.weights_ffn, blackwell.activations, blackwell.kv) == ("mxfp4", "mxfp8", "fp8")
    four = point(catalogue, precision="fp4").precision
    assert (four.weights, four.weights_attn, four.kv) == ("nvfp4", "fp8", "fp8")
    assert point(catalogue, hardware="MI355X", precision="fp4").precision.weights == "mxfp4"
    assert point(catalogue, hardware="H200-SXM").precision.kv == "bf16"  # SGLang on Hopper


def test_drafting(catalogue: Catalogue) -> None:
    assert (point(catalogue, mtp_speculative="mtp").drafted, point(catalogue, mtp_speculative="mtp").draft_kind) == (
        2.0,
        "mtp",
    )
    assert point(catalogue, mtp_speculative="mtp", framework="dynamo-trt").drafted == 3.0
    assert point(catalogue, mtp_speculative="EAGLE3 k=7").drafted == 7.0
    assert not point(catalogue, mtp_speculative="unknown").labelled
    assert point(catalogue, mtp_speculative="unknown").drafted == 0.0
    assert point(catalogue, mtp_speculative="unknown", framework="trt").drafted == 3.0
    assert point(catalogue, mtp_speculative="unknown (NVIDIA internal; likely none)").labelled


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "Unheard-Of-7B"}, "model not in the catalogue: Unheard-Of-7B"),
        ({"model": None}, "model not in the catalogue: none given"),
        ({"hardware": "A10G"}, "hardware not in the catalogue: A10G"),
        ({"precision": "", "precision_class": ""}, "precision unknown"),
        ({"tp": "", "ep": "", "dp": "", "n_gpus": "8"}, "no layout"),
        ({"tp": "", "ep": "", "dp": "", "n_gpus": ""}, "number of GPUs unknown"),
        ({"concurrency_or_batch": "all"}, "no concurrency"),
        ({"isl": "nan"}, "no prompt length"),
        ({"osl": "-3"}, "no answer length"),
        ({"tp": "3", "n_gpus": "3"}, "tp 3 does not divide 128 heads"),
        ({"disaggregated": "y"}, "no layout of a pool"),
    ],
)
def test_reasons(catalogue: Catalogue, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unanswered, match=reason):
        point(catalogue, **changed)
