"""The catalogue against published numbers: parameters, cache bytes, dense rates, links, capacities.

The formulas here are written from the models' own code and share nothing with the package, and every anchor is a
published number, not a second copy of a formula: a formula and its copy can be wrong together (MaxText pull request
4017, where shared experts were three times too narrow in both).
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from sweep.point import Hardware, Model, names

CONF = Path(__file__).resolve().parent.parent / "conf"
MODELS = sorted(p.stem for p in (CONF / "model").glob("*.yaml") if p.stem != "hf")  # hf reads a file
MACHINES = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))

MODEL_WORDS = {"name", "published", "release", "hf_id", "status", "source", "note"}
HARDWARE_WORDS = {
    "name", "vendor", "year", "unit", "generation", "status", "unverified", "price_date", "prices", "powers",
    "source", "note",
}  # fmt: skip
# memory tiers beside the main memory
TIER_KEYS = {
    "sram_bytes", "sram_bytes_per_s", "host_bytes", "host_bytes_per_s", "nvme_bytes", "nvme_bytes_per_s",
}  # fmt: skip
INVENTED = {"dense", "moe"}


@cache
def model(stem: str) -> DictConfig:
    config = OmegaConf.load(CONF / "model" / f"{stem}.yaml")
    assert isinstance(config, DictConfig)
    return config


@cache
def machine(stem: str) -> DictConfig:
    config = OmegaConf.load(CONF / "hardware" / f"{stem}.yaml")
    assert isinstance(config, DictConfig)
    return config


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


class Shape:
    """A model's figures with the defaults of the record: null or absent is what the record says it is."""

    def __init__(self, config: DictConfig) -> None:
        def given(key: str, default: Any) -> Any:
            value = config.get(key)
            return default if value is None else value

        self.layers, self.d, self.heads = config.n_layers, config.d_model, config.n_heads
        self.kv_heads = given("n_kv_heads", self.heads)
        self.key = given("head_dim", self.d / self.heads)
        self.value = given("v_head_dim", self.key)
        self.gate = given("attn_gate", False)
        self.one_tensor = given("k_equals_v", False)
        self.window_layers = given("n_window_layers", 0)
        self.linear_layers = given("n_linear_layers", 0)
        self.full_layers = given("n_full_layers", self.layers - self.window_layers - self.linear_layers)
        self.window_kv_heads = given("window_kv_heads", self.kv_heads)
        self.window_key = given("window_head_dim", self.key)
        self.window_value = given("window_v_head_dim", given("v_head_dim", self.window_key))
        self.latent, self.rope, self.nope = (given(k, 0) for k in ("kv_lora_rank", "qk_rope_dim", "qk_nope_dim"))
        self.q_rank = given("q_lora_rank", 0)
        self.index_heads, self.index_dim = given("index_heads", 0), given("index_dim", 0)
        self.index_layers = given("n_index_layers", self.full_layers if self.index_heads else 0)
        self.in_width, self.out_width = given("linear_in_width", 0), given("linear_out_width", 0)
        self.state = given("state_bytes_per_layer", 0)
        self.experts, self.top_k, self.expert = (given(k, 0) for k in ("n_experts", "top_k", "d_expert"))
        self.shared = given("d_shared", given("n_shared_experts", 0) * self.expert)
        self.dense_layers = given("n_dense_layers", 0 if self.experts else self.layers)
        self.moe_layers = given("n_moe_layers", self.layers - self.dense_layers if self.experts else 0)
        self.narrower = given("latent_ratio", 1)
        self.matrices, self.d_ff = given("ffn_matrices", 3), given("d_ff", 0)
        self.table = config.vocab * self.d
        self.tied = config.tied_embeddings
        self.extra = given("extra_params", 0)


def grouped_attention(s: Shape, kv_heads: float, key: float, value: float, one_tensor: bool) -> float:
    query = s.d * s.heads * key * (2 if s.gate else 1)
    return query + s.d * kv_heads * (key if one_tensor else key + value) + s.heads * value * s.d


def latent_attention(s: Shape) -> float:
    width = s.nope + s.rope
    query = s.d * s.q_rank + s.q_rank + s.q_rank * s.heads * width if s.q_rank else s.d * s.heads * width
    up = s.latent * s.heads * (s.nope + s.value)
    return query + s.d * (s.latent + s.rope) + s.latent + up + s.heads * s.value * s.d


def parameters(s: Shape, experts: float) -> float:
    """All parameters but the input and output embeddings, with so many routed experts in a layer."""
    full = latent_attention(s) if s.latent else grouped_attention(s, s.kv_heads, s.key, s.value, s.one_tensor)
    window = grouped_attention(s, s.window_kv_heads, s.window_key, s.window_value, False)
    index = (s.q_rank or s.d) * s.index_heads * s.index_dim + s.d * (s.index_dim + s.index_heads)
    linear = s.d * (s.in_width + s.out_width)
    expert = s.matrices * (s.d / s.narrower) * s.expert
    projections = 2 * s.d * s.d / s.narrower if s.narrower > 1 else 0
    moe = experts * expert + s.d * s.experts + s.matrices * s.d * s.shared + projections
    mixers = s.full_layers * full + s.window_layers * window + s.index_layers * index + s.linear_layers * linear
    ffn = s.dense_layers * s.matrices * s.d * s.d_ff + s.moe_layers * moe
    return mixers + ffn + s.d * (2 * s.layers + 1) + s.extra


def total(stem: str) -> float:
    s = Shape(model(stem))
    return parameters(s, s.experts) + s.table * (1 if s.tied else 2)


def active(stem: str) -> dict[str, float]:
    """The three counts in use: nobody has said which one "active parameters" means."""
    s = Shape(model(stem))
    body = parameters(s, s.top_k)
    head = 0 if s.tied else s.table
    return {"everything": body + s.table + head, "no input table": body + s.table, "no tables": body}


def cache_bytes(stem: str) -> tuple[float, float, float]:
    """Per token of the context, per token inside the window, per sequence; all layers, two bytes per element."""
    s = Shape(model(stem))
    per_token = s.latent + s.rope if s.latent else s.kv_heads * (s.key if s.one_tensor else s.key + s.value)
    growing = s.full_layers * per_token + s.index_layers * s.index_dim
    bounded = s.window_layers * s.window_kv_heads * (s.window_key + s.window_value)
    return 2 * growing, 2 * bounded, s.linear_layers * s.state


# Published totals that are more than 2 % from the count, with the reason.
TOTAL_EXCEPTIONS = {
    "llama_2_7b": (-0.037, "the name is nominal"),
    "kimi_k2_instruct": (0.026, "1T is nominal"),
    "kimi_k2_5": (0.026, "1T is nominal"),
    "kimi_linear_48b_a3b": (0.023, "48B is nominal"),
    "ernie_4_5_21b_a3b": (0.039, "21B is nominal"),
    "gemma_3_4b_it": (-0.098, "the published figure includes the vision tower of 0.42e9"),
    "gemma_3_12b_it": (-0.036, "the published figure includes the vision tower of 0.42e9"),
    "gemma_4_26b_a4b": (-0.030, "26B is nominal, and the text stack alone is counted"),
}
# Published active counts that no convention meets within 2 %.
ACTIVE_EXCEPTIONS = {
    "qwen3_next_80b_a3b": (0.084, "A3B is nominal"),
    "kimi_linear_48b_a3b": (0.036, "A3B is nominal"),
    "ernie_4_5_21b_a3b": (0.029, "A3B is nominal"),
    "grok_1": (-0.026, "86B is a press figure; xAI says a quarter of the weights"),
    "qwen3_5_122b_a10b": (-0.023, "A10B is nominal"),
    "granite_4_0_h_small": (-0.022, "9B is nominal"),
    "deepseek_v2_lite": (0.021, "2.4B leaves out the input embedding and is rounded down"),
    "qwen3_5_397b_a17b": (0.0205, "A17B is nominal"),
    "llama_2_7b": (-0.037, "the name is nominal"),
    "gemma_3_4b_it": (-0.098, "the published figure includes the vision tower of 0.42e9"),
    "gemma_3_12b_it": (-0.036, "the published figure includes the vision tower of 0.42e9"),
}
# Every weight of the checkpoint, counted one by one.
EXACT_TOTALS = {
    "llama_3_1_8b": 8_030_261_248,
    "llama_3_1_70b": 70_553_706_496,
    "llama_3_1_405b": 405_853_388_800,
    "qwen3_32b": 32_762_123_264,
    "qwen3_235b_a22b": 235_093_634_560,
    "deepseek_v3": 671_026_419_200,
    "gpt_oss_120b": 116_829_156_672,
}
# (per token of the context, per token inside the window, per sequence)
CACHE_BYTES = {
    "llama_3_1_8b": (131_072, 0, 0),
    "llama_3_1_70b": (327_680, 0, 0),
    "llama_3_1_405b": (516_096, 0, 0),
    "qwen3_235b_a22b": (192_512, 0, 0),
    "deepseek_v3": (61 * 576 * 2, 0, 0),
    "kimi_k2_instruct": (70_272, 0, 0),
    "deepseek_v3_2": (70_272 + 61 * 128 * 2, 0, 0),
    "gpt_oss_120b": (36_864, 36_864, 0),
    "llama_4_scout_17b_16e": (49_152, 147_456, 0),
    "llama_4_maverick_17b_128e": (49_152, 147_456, 0),
    "gemma_3_27b_it": (81_920, 425_984, 0),
    "qwen3_5_397b_a17b": (30_720, 0, 192_061_440),
    "nemotron_3_super_120b_a12b": (8_192, 0, 170_229_760),
    "kimi_k3": (27_648, 0, 449_372_160),
    "deepseek_v4_flash": (6_880, 44_032, 0),
    "deepseek_v4_pro": (9_848, 62_464, 0),
    "mimo_v2_flash": (23_040, 199_680, 0),
    "step_3": (62_464, 0, 0),
    "longcat_flash": (64_512, 0, 0),
    "glm_5_2": (95_232, 0, 0),
    "falcon_h1_34b": (147_456, 0, 304_201_728),
}
WINDOWS = {"gpt_oss_120b": 128, "llama_4_scout_17b_16e": 8192, "gemma_3_27b_it": 1024, "deepseek_v4_flash": 128}


@pytest.mark.parametrize("stem", MODELS)
def test_model_file(stem: str) -> None:
    config = model(stem)
    assert slug(config.name) == stem
    assert set(config) <= set(names(Model)) | MODEL_WORDS
    assert set(config) >= MODEL_WORDS
    for key in set(config) & set(names(Model)):
        assert isinstance(config[key], int | float), f"{key} is text"
    for key in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "vocab", "tied_embeddings", "max_context"):
        assert config.get(key) is not None, key
    for key in ("params_total", "params_active"):
        assert config.published[key] is None or isinstance(config.published[key], float)
    invented = stem in INVENTED
    assert config.status in ({"hypothetical"} if invented else
                             {"confirmed", "mirrored", "defaults", "community", "recalled"})  # fmt: skip
    assert invented or config.source


@pytest.mark.parametrize("stem", MODELS)
def test_model_shape(stem: str) -> None:
    s = Shape(model(stem))
    assert s.heads % s.kv_heads == 0 and s.heads % s.window_kv_heads == 0
    assert s.top_k <= s.experts
    if s.latent:
        assert s.kv_heads == 1 and s.key == s.nope + s.rope
    if s.window_layers:
        assert model(stem).window > 0
    if s.linear_layers:
        assert s.state > 0 and s.in_width > s.out_width > 0


@pytest.mark.parametrize("stem", [m for m in MODELS if model(m).published.params_total is not None])
def test_total_parameters(stem: str) -> None:
    error = total(stem) / model(stem).published.params_total - 1
    if stem in TOTAL_EXCEPTIONS:
        known, reason = TOTAL_EXCEPTIONS[stem]
        assert error == pytest.approx(known, abs=0.001), reason
    else:
        assert abs(error) <= 0.02


@pytest.mark.parametrize("stem", [m for m in MODELS if model(m).published.params_active is not None])
def test_active_parameters(stem: str) -> None:
    published = model(stem).published.params_active
    error = min((count / published - 1 for count in active(stem).values()), key=abs)
    if stem in ACTIVE_EXCEPTIONS:
        known, reason = ACTIVE_EXCEPTIONS[stem]
        assert error == pytest.approx(known, abs=0.001), reason
    else:
        assert abs(error) <= 0.02


@pytest.mark.parametrize(("stem", "exact"), EXACT_TOTALS.items())
def test_exact_totals(stem: str, exact: int) -> None:
    assert total(stem) == pytest.approx(exact, rel=0.003)


@pytest.mark.parametrize(("stem", "published"), [("gpt_oss_120b", 5.13e9), ("deepseek_v3", 37e9), ("step_3", 38e9)])
def test_active_without_input_table(stem: str, published: float) -> None:
    """Makers who leave out the input embedding, which a token does not multiply: the count of the cost model."""
    assert active(stem)["no input table"] == pytest.approx(published, rel=0.015)


def test_exceptions_are_about_models() -> None:
    assert set(TOTAL_EXCEPTIONS) | set(ACTIVE_EXCEPTIONS) | set(EXACT_TOTALS) | set(CACHE_BYTES) <= set(MODELS)


@pytest.mark.parametrize(("stem", "expected"), CACHE_BYTES.items())
def test_cache_bytes(stem: str, expected: tuple[float, float, float]) -> None:
    assert cache_bytes(stem) == expected


@pytest.mark.parametrize(("stem", "window"), WINDOWS.items())
def test_windows(stem: str, window: int) -> None:
    assert model(stem).window == window


def test_models_that_share_a_backbone() -> None:
    for one, other in (("deepseek_v3", "deepseek_r1"), ("glm_4_5", "glm_4_6"), ("minimax_m2", "minimax_m2_5")):
        assert total(one) == total(other)
        assert cache_bytes(one) == cache_bytes(other)


RATES = ("fp32_flops", "bf16_flops", "fp8_flops", "int8_flops", "fp4_flops")


@pytest.mark.parametrize("stem", MACHINES)
def test_machine_file(stem: str) -> None:
    config = machine(stem)
    figures = set(config) - HARDWARE_WORDS
    assert slug(config.name) == stem
    assert figures <= set(names(Hardware)) | TIER_KEYS
    for key in ("name", "vendor", "year", "unit", "generation", "status", "unverified", "source", "note"):
        assert key in config, key
    for key in figures:
        assert isinstance(config[key], int | float) and config[key] > 0, key
    assert config.status in {"measured", "confirmed", "announced", "estimated"}
    assert set(config.unverified) <= figures
    assert ("usd_per_hour" in config) == ("price_date" in config)
    assert any(rate in config for rate in RATES), "a machine without rates is not to be swept"
    assert "hbm_bytes_per_s" in config or "sram_bytes_per_s" in config
    assert ("hbm_bytes" in config) == ("hbm_bytes_per_s" in config)
    assert "scaleout_latency_s" not in config  # nobody publishes it


@pytest.mark.parametrize("stem", MACHINES)
def test_units_are_si(stem: str) -> None:
    """A figure in TFLOPS, GB, GB/s or microseconds would be orders of magnitude away."""
    config = machine(stem)
    within = dict.fromkeys(RATES, (1e13, 1.3e17)) | {
        "hbm_bytes": (1e10, 2e12),
        "hbm_bytes_per_s": (2e11, 5e13),
        "sram_bytes": (1e7, 5e10),
        "sram_bytes_per_s": (1e13, 3e16),
        "host_bytes": (1e11, 2e12),
        "nvme_bytes": (1e12, 1e13),
        "link_bytes_per_s": (2e10, 2e12),
        "host_link_bytes_per_s": (3e10, 1e12),
        "scaleout_bytes_per_s": (1e10, 4e11),
        "link_latency_s": (1e-7, 1e-5),
        "watts": (50, 2000),
        "usd_per_hour": (0.3, 10),
        "domain": (1, 10_000),
    }
    for key, (low, high) in within.items():
        if key in config:
            assert low <= config[key] <= high, key


# Dense rates as ratios that a rule of thumb gets wrong: rates are read per format, never scaled from another one.
RATIOS = [
    ("tpu_v6e_trillium", "fp8_flops", "bf16_flops", 1.0),
    ("tpu_v6e_trillium", "int8_flops", "bf16_flops", 2.0),
    ("gaudi_3", "fp8_flops", "bf16_flops", 1.0),
    ("trainium3", "fp4_flops", "fp8_flops", 1.0),
    ("b300_sxm_288gb", "int8_flops", "bf16_flops", 0.0682),
    ("gb300_nvl72", "int8_flops", "bf16_flops", 0.066),
    ("b300_sxm_288gb", "fp4_flops", "fp8_flops", 3.0),
    ("gb300_nvl72", "fp4_flops", "fp8_flops", 3.0),
    ("rubin_vr200_nvl72_ex_nvl144", "fp8_flops", "bf16_flops", 4.375),
    ("tpu_8i_inference", "fp8_flops", "bf16_flops", 8.0),
    ("h100_sxm_80gb", "fp8_flops", "bf16_flops", 2.0),
    ("b200_sxm_180gb", "fp4_flops", "fp8_flops", 2.0),
    ("mi355x", "fp4_flops", "fp8_flops", 2.0),
]


@pytest.mark.parametrize(("stem", "over", "under", "ratio"), RATIOS)
def test_rate_ratios(stem: str, over: str, under: str, ratio: float) -> None:
    assert machine(stem)[over] / machine(stem)[under] == pytest.approx(ratio, rel=2e-3)


# bf16 in flop/s: (dense, what vendors also print: with 2:4 sparsity, or for two dies, or of another product)
DENSE_NOT_SPARSE = {
    "a100_sxm_80gb": (312e12, 624e12),
    "h100_sxm_80gb": (989.4e12, 1979e12),
    "h100_pcie_80gb": (756.5e12, 1513e12),
    "h100_nvl_94gb": (835.5e12, 1671e12),
    "h200_sxm_141gb": (989.4e12, 1979e12),
    "h800_sxm_80gb": (989.4e12, 1979e12),
    "b100": (1.75e15, 3.5e15),
    "b200_sxm_180gb": (2.25e15, 4.5e15),
    "gb200_nvl72": (2.5e15, 5e15),
    "b300_sxm_288gb": (2.25e15, 4.5e15),
    "mi300x": (1307.4e12, 2614.9e12),
    "mi355x": (2516e12, 5033e12),
    "trainium2": (667e12, 2563e12),
    "gaudi_3": (1677e12, 1835e12),
}
# (fp8 dense, fp4 dense) in flop/s
NARROW_RATES = {
    "h100_sxm_80gb": (1978.9e12, None),
    "b200_sxm_180gb": (4.5e15, 9e15),
    "gb200_nvl72": (5e15, 10e15),
    "b300_sxm_288gb": (4.5e15, 13.5e15),
    "gb300_nvl72": (5e15, 15e15),
    "rubin_vr200_nvl72_ex_nvl144": (17.5e15, 35e15),
    "mi355x": (5033e12, 10066e12),
    "a100_sxm_80gb": (None, None),
}


@pytest.mark.parametrize(("stem", "rates"), DENSE_NOT_SPARSE.items())
def test_peaks_are_dense(stem: str, rates: tuple[float, float]) -> None:
    dense, quoted = rates
    assert machine(stem).bf16_flops == pytest.approx(dense, rel=1e-3)
    assert machine(stem).bf16_flops < 0.95 * quoted


@pytest.mark.parametrize(("stem", "rates"), NARROW_RATES.items())
def test_narrow_rates(stem: str, rates: tuple[float | None, float | None]) -> None:
    assert (machine(stem).get("fp8_flops"), machine(stem).get("fp4_flops")) == rates


def test_no_rate_is_derived_from_another_format() -> None:
    """Rates in circulation that are halves or doubles of another format's rate stay open."""
    for stem, rate in (
        ("dgx_spark_gb10", "bf16_flops"),
        ("dgx_spark_gb10", "fp8_flops"),
        ("huawei_ascend_910c", "int8_flops"),
        ("arc_pro_b60", "fp8_flops"),
        ("rubin_ultra_kyber_nvl144_nvl576", "bf16_flops"),
        ("tpu_8i_inference", "fp4_flops"),
        ("tpu7x_ironwood", "int8_flops"),
    ):
        assert rate not in machine(stem)


# One direction, per GPU, in bytes/s; vendors print twice that.
ONE_DIRECTION = {
    "a100_sxm_80gb": 300e9,
    "h100_sxm_80gb": 450e9,
    "h200_sxm_141gb": 450e9,
    "h800_sxm_80gb": 200e9,
    "b200_sxm_180gb": 900e9,
    "gb200_nvl72": 900e9,
    "gb300_nvl72": 900e9,
    "mi300x": 448e9,
    "tpu7x_ironwood": 600e9,
    "microsoft_maia_200": 1400e9,
    "trainium2": 640e9,
}


@pytest.mark.parametrize(("stem", "rate"), ONE_DIRECTION.items())
def test_links_are_one_directional(stem: str, rate: float) -> None:
    assert machine(stem).link_bytes_per_s == rate


@pytest.mark.parametrize("stem", MACHINES)
def test_no_link_is_twice_its_generation(stem: str) -> None:
    """PCIe x16 and ports per direction: gen4 32, gen5 64, gen6 128 GB/s; NVLink-C2C 450, of Rubin 900."""
    config = machine(stem)
    if config.vendor == "NVIDIA" and "host_link_bytes_per_s" in config:
        assert config.host_link_bytes_per_s in {31.5e9, 63e9, 121e9, 450e9, 900e9}


# Bytes as the driver reports them, in MiB.
DRIVER_MIB = {
    "h100_sxm_80gb": 81_559,
    "h200_sxm_141gb": 143_771,
    "l40s": 46_068,
    "l4": 23_034,
    "b200_sxm_180gb": 183_359,
    "gb200_nvl72": 189_471,
    "b300_sxm_288gb": 275_040,
    "gb300_nvl72": 284_208,
}


@pytest.mark.parametrize(("stem", "mebibytes"), DRIVER_MIB.items())
def test_capacity_is_what_the_driver_reports(stem: str, mebibytes: int) -> None:
    assert math.isclose(machine(stem).hbm_bytes, mebibytes * 2**20, rel_tol=1e-6)


def test_products_that_are_taken_for_each_other() -> None:
    h100, h200 = machine("h100_sxm_80gb"), machine("h200_sxm_141gb")
    assert h100.bf16_flops == h200.bf16_flops
    assert (h100.hbm_bytes_per_s, h200.hbm_bytes_per_s) == (3.35e12, 4.8e12)
    b200, gb200 = machine("b200_sxm_180gb"), machine("gb200_nvl72")
    b300, gb300 = machine("b300_sxm_288gb"), machine("gb300_nvl72")
    for board, rack in ((b200, gb200), (b300, gb300)):
        assert rack.bf16_flops / board.bf16_flops == pytest.approx(10 / 9)
        assert (board.domain, rack.domain) == (8, 72)
        assert board.hbm_bytes != rack.hbm_bytes
        assert board.host_link_bytes_per_s < rack.host_link_bytes_per_s
    assert machine("h800_sxm_80gb").link_bytes_per_s < h100.link_bytes_per_s
    assert machine("h800_sxm_80gb").hbm_bytes_per_s == h100.hbm_bytes_per_s  # not 4 TB/s


def test_sram_machines_have_no_main_memory() -> None:
    for stem in ("groq_lpu_v1", "groq_3_lpu_lp30_lpx_rack", "cerebras_wse_3_cs_3"):
        config = machine(stem)
        assert config.sram_bytes > 0 and config.sram_bytes_per_s > 0
        assert "hbm_bytes" not in config and "hbm_bytes_per_s" not in config


# The highest published price per GPU-hour and its date.
PRICES = {
    "h100_sxm_80gb": 1.78,
    "h200_sxm_141gb": 2.05,
    "b200_sxm_180gb": 2.60,
    "b300_sxm_288gb": 3.00,
    "gb200_nvl72": 2.60,
    "gb300_nvl72": 3.30,
    "mi300x": 1.30,
    "mi325x": 1.60,
    "mi355x": 2.10,
    "rtx_pro_6000_blackwell_server": 0.75,
    "rubin_vr200_nvl72_ex_nvl144": 3.57,
    "tpu_v6e_trillium": 2.70,
}


@pytest.mark.parametrize(("stem", "price"), PRICES.items())
def test_prices_are_dated(stem: str, price: float) -> None:
    assert machine(stem).usd_per_hour == price
    assert str(machine(stem).price_date).startswith("2026")


def test_announced_machines_are_tagged() -> None:
    announced = {m for m in MACHINES if machine(m).status == "announced"}
    assert {"rubin_vr200_nvl72_ex_nvl144", "mi455x_mi400_helios_rack", "tpu_8i_inference", "b100"} <= announced
    assert not announced & {"h100_sxm_80gb", "b200_sxm_180gb", "gb200_nvl72", "gb300_nvl72", "mi355x"}


def test_counts() -> None:
    assert len(set(MODELS) - INVENTED) == 95
    assert len(MACHINES) == 53
