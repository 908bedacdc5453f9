"""The vectorised model against the independent scalar one: blocks of the nested evaluation, not single points.

`tests/oracle.py` was written from the formulas alone and shares no code with `sweep`. Here whole blocks of the demo's
own grid, and of grids that mix attention kinds, drafting, overlap and chunks, are evaluated as a sweep does, and
points are drawn from them.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from sweep import run
from sweep.config import Study, conf_dir
from sweep.point import Layout, Model, names
from sweep.space import Space, row_reasons
from tests import oracle
from tests.conftest import make_study

COLUMNS = [
    "tpot_s",
    "ttft_s",
    "request_s",
    "tok_s_user",
    "tok_s_gpu",
    "total_tok_s_gpu",
    "math_s",
    "weight_read_s",
    "kv_read_s",
    "activation_s",
    "comm_s",
    "latency_s",
    "mfu",
    "mbu",
    "intensity",
    "weights_bytes",
    "kv_bytes",
    "activation_bytes",
    "held_bytes",
    "max_batch",
    "params_total",
    "params_active",
    "kv_bytes_per_tok",
    "usd_per_mtok",
    "tok_s_mw",
    "joule_per_tok",
]
PARTS = ("math_s", "weight_read_s", "kv_read_s", "activation_s", "comm_s", "latency_s")
HARDWARE = [
    "fp32_flops",
    "bf16_flops",
    "fp8_flops",
    "int8_flops",
    "fp4_flops",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "n_sm",
    "domain",
    "link_bytes_per_s",
    "host_link_bytes_per_s",
    "scaleout_bytes_per_s",
    "watts",
    "usd_per_hour",
    "sram_bytes",
    "sram_bytes_per_s",
    "host_bytes",
    "host_bytes_per_s",
    "nvme_bytes",
    "nvme_bytes_per_s",
    "remote_bytes",
    "remote_bytes_per_s",
]


def scalar_point(space: Space, row: int, i_batch: int, i_context: int, efficiency: str) -> dict[str, Any]:
    """What the scalar model says of a point of a grid."""
    i_model, i_machine, i_layout = (int(i[0]) for i in space.indices(np.array([row])))
    per_hardware = len(space.machines) // len(space.hardware)
    hardware = space.hardware[i_machine // per_hardware].values
    precision = space.precision[(i_machine % per_hardware) // (per_hardware // len(space.precision))].values
    model = {k: float(getattr(space.model, k)[i_model]) for k in names(Model)}
    model["max_context"] = None
    layout: dict[str, Any] = {k: float(getattr(space.layout, k)[i_layout]) for k in names(Layout)}
    layout["wo_shard"] = "n" if layout["wo_shard"] else "tpa"
    for key in ("microbatches", "prefill_chunk"):
        layout[key] = layout[key] or None
    c = space.context
    fixed = c.prompt[i_context] == c.longest[i_context]
    workload = {
        "batch": float(space.batch[i_batch]),
        "context": float(c.decode[i_context]) if fixed else None,
        "isl": float(c.prompt[i_context]),
        "osl": float(c.generated[i_context]),
        "prefix_hit": float(c.prefix_hit[i_context]),
        "routing_skew": float(space.skew[i_layout]),
    }
    figures = {k: hardware[k] for k in HARDWARE}
    about = space.hardware[i_machine // per_hardware].about
    constants = preset(efficiency, about.get("generation"), about.get("vendor"))
    plan = space.machines[i_machine].plan
    policy = plan and placement(plan.placement.id)
    phi = float(c.mixed[i_context])
    found = oracle.evaluate(model, figures, dict(precision), layout, workload, constants, policy, phi)
    return {"prefill_s": 0.0, "concurrency": workload["batch"], **found}  # what a replica that only decodes has


@functools.cache
def placement(name: str) -> dict[str, Any]:
    """A placement as its file says it."""
    loaded = OmegaConf.to_container(OmegaConf.load(conf_dir() / "placement" / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(k): v for k, v in loaded.items()}


@functools.cache
def preset(name: str, generation: Any, vendor: Any) -> dict[str, Any] | None:
    """The constants of a preset for a chip, read from its file; `ideal` is the scalar model's own.

    A generation that is not in the file takes the newest one of its vendor, the later in the file of one year.
    """
    if name == "ideal":
        return None
    loaded = OmegaConf.load(conf_dir() / "efficiency" / f"{name}.yaml")
    kin = [
        (own.get("year"), i, own) for i, own in enumerate(loaded.generations.values()) if own.get("vendor") == vendor
    ]
    own = loaded.generations.get(str(generation)) or (max(kin, key=lambda k: k[:2])[2] if kin else {})
    merged = OmegaConf.to_container(OmegaConf.merge(loaded, own))
    assert isinstance(merged, dict)
    return {str(k): v for k, v in merged.items()}


def compare(study: Study, n: int, seed: int, rel: float = 1e-4) -> int:
    """Draw points of a study from evaluated blocks and compare all columns; returns how many were compared."""
    plan = run.plan(study)
    space = plan.space
    engine = run.Run(plan, Path("unused"), config_yaml="")
    rng = np.random.default_rng(seed)
    rows = rng.choice(space.n_rows, size=min(space.n_rows, 40_000), replace=False)
    rows = rows[(row_reasons(space, rows) == 0) & engine.filters.rows(rows)][:2048]
    assert len(rows), "no possible configuration was drawn"
    columns = engine.full_columns(rows)
    shown = [*COLUMNS, *(k for k in ("prefill_s", "concurrency") if k in columns)]
    reasons = ("capacity",)
    compared = 0
    for _ in range(n):
        r, b, c = (int(rng.integers(k)) for k in (len(rows), len(space.batch), space.n_contexts))
        expected = scalar_point(space, int(rows[r]), b, c, study.efficiency_id)
        got = {k: float(v[r, b, c]) for k, v in columns.items()}
        where = f"row {rows[r]} batch {space.batch[b]} context {space.context.decode[c]}"
        for key in shown:
            want, have = expected[key], got[key]
            if want is None:
                assert math.isnan(have), (where, key, have)
                continue
            if key == "max_batch":
                i_layout = int(space.indices(rows[r : r + 1])[2][0])
                step = float(space.layout.dpa[i_layout])
                assert abs(have - want) <= step + rel * want, (where, key, have, want)
                continue
            scale = expected["tpot_s"] if key in (*PARTS, "prefill_s") else abs(want)
            assert abs(have - want) <= rel * scale, (where, key, have, want)
        assert set(expected["reasons"]) <= set(reasons), (where, expected["reasons"])
        room = abs(
            expected["held_bytes"] / float(space.machines[int(space.indices(rows[r : r + 1])[1][0])].machine.hbm_bytes)
            - 1
        )
        if room > 1e-5:  # a point that fits to the last byte may fall on either side in float32
            assert got["feasible"] == (not expected["reasons"]), where
        parts = [expected[k] for k in (*PARTS, *(("prefill_s",) if "prefill_s" in columns else ()))]
        top = sorted(parts)[-2:]
        if top[1] - top[0] > 1e-5 * expected["tpot_s"]:
            assert int(got["bound"]) == int(np.argmax(parts)), where
        compared += 1
    return compared


@pytest.mark.usefixtures("shipped_compiles")
@pytest.mark.parametrize("efficiency", ["measured", "ideal"])
def test_500_points_of_the_demo(efficiency: str) -> None:
    """The demo as it ships, and under the roofline itself."""
    assert compare(make_study("experiment=demo", f"efficiency={efficiency}"), 500, seed=1) == 500


MIXED = "grid.layout={gpus: [1, 8, 16, 72], tpa: pow2, kvp: pow2, dpa: divisors, ep: divisors, pp: [1, 2]"


@pytest.mark.parametrize(
    ("seed", "overrides"),
    [
        (
            2,
            [
                "grid.model=[gemma_3_27b_it, gemma_4_26b_a4b, deepseek_v3_2, qwen3_next_80b_a3b, gpt_oss_20b, "
                "nemotron_3_super_120b_a12b, kimi_linear_48b_a3b, llama_4_maverick_17b_128e, mimo_v2_flash]",
                MIXED + ", wo_shard: [n, tpa], overlap: [0, 0.5], redundant_slots: [0, 2]}",
            ],
        ),
        (
            3,
            [
                "grid.model=[{family: moe, grid: {n_draft: [0, 3], acceptance: [0.7], draft_cost: [0.1]}}, "
                "{family: dense, grid: {n_draft: [2], acceptance: [1.0]}}]",
                MIXED + ", hop_b: [false, true], microbatches: [1, 4], prefill_chunk: [512, 8192]"
                ", dynamic_chunks: [true, false]}",
                "grid.serving=[decode, aggregated]",
                "grid.workload={batch: [1, 7, 64, 1000], isl: [1000, 30000], osl: [128, 1000], prefix_hit: [0, 0.5]}",
            ],
        ),
        (
            4,
            [
                "grid.model=[gpt_oss_120b, gemma_2_27b, deepseek_v3, glm_5]",
                "grid.precision=[bf16, fp8_block, nvfp4, w4a8, int4, mxfp4]",
                MIXED + ", prefill_chunk: [256, 1024, 4096]}",
                "grid.workload={batch: [1, 5, 512], context: [100, 3000, 50000, 1000000]}",
            ],
        ),
        (
            5,
            [
                "grid.model=[qwen3_235b_a22b, deepseek_v3]",
                MIXED + "}",
                "grid.workload={batch: [1, 16], routing_skew: [0, 0.6], context: [4096]}",
            ],
        ),
    ],
)
def test_mixed_grids(seed: int, overrides: list[str]) -> None:
    hardware = "grid.hardware=[h100_sxm_80gb, gb300_nvl72, mi300x]"
    load = (
        []
        if any("grid.workload" in o for o in overrides)
        else [
            "grid.workload={batch: pow2}".replace("pow2", "{pow2: [1, 256]}"),
        ]
    )
    assert compare(make_study("grid=none", "efficiency=ideal", hardware, *overrides, *load), 150, seed) == 150


def test_tiers_of_memory() -> None:
    """A cache that overflows and comes back, on machines with and without flash, as a sweep evaluates it.

    Every shipped placement is held to the scalar model in `test_tiers.py`.
    """
    study = make_study(
        "grid=none",
        "efficiency=ideal",
        "placement=offload_kv",
        "grid.hardware=[b200_sxm_180gb, gb300_nvl72]",
        "grid.model=[llama_3_1_70b]",
        "precision=fp8",
        "grid.layout={gpus: [1, 2, 8], tpa: pow2, dpa: divisors}",
        "grid.workload={batch: [1, 30, 700], isl: [2000, 50000], osl: [500], prefix_hit: [0, 0.8]}",
    )
    assert compare(study, 80, seed=6) == 80


def test_presets_do_not_mix_in_one_grid() -> None:
    """An axis of efficiencies gives each preset what a grid of its own would: tiles and floors stay apart."""
    words = [
        "grid=none",
        "grid.model=[deepseek_v3]",
        "hardware=gb300_nvl72",
        "grid.layout={gpus: [16], dpa: [16], ep: [8, 16]}",
    ]
    words.append("grid.workload={batch: [3, 100, 3000], context: [4096]}")

    def columns(*more: str) -> dict[str, np.ndarray]:
        plan = run.plan(make_study(*words, *more))
        return run.Run(plan, Path("unused"), config_yaml="").full_columns(np.arange(plan.space.n_rows))

    both = columns("grid.efficiency=[ideal, measured]")
    n_layouts = 2
    for i, name in enumerate(("ideal", "measured")):
        alone = columns(f"efficiency={name}")
        for key in ("tpot_s", "ttft_s", "held_bytes", "math_s", "latency_s"):
            assert np.allclose(both[key][i * n_layouts : (i + 1) * n_layouts], alone[key], rtol=2e-6), (name, key)
