"""Two pools: the match against brute force, and what Beyond the Buzz (arXiv 2506.05508) found about disaggregation.

The study simulates Blackwell in FP4 and prints tendencies, normalised: disaggregation gains most on prompt-heavy
traffic and large models; the best ratio of context to generation GPUs falls as the limit per token tightens; so does
the tensor parallelism of decode rise. Here they come out of the roofline (`ideal`), one rack of GB200 NVL72.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweep as package
from pipelines import match as match_cli
from pipelines import sweep as sweep_cli
from sweep import disaggregate, run
from sweep.match import best_counts, match
from tests.conftest import make_study

GRID = [
    "grid=none",
    "grid.model=[llama_3_1_8b, llama_3_1_70b]",
    "hardware=gb200_nvl72",
    "precision=nvfp4",
    "efficiency=ideal",
    "grid.layout={gpus: [1, 2, 4, 8, 16], tpa: pow2, dpa: 1, pp: [1, 2]}",
    "grid.workload={batch: {pow2: [1, 512]}, isl: [1024, 8192], osl: [1024, 8192]}",
    "workload.ttft_max_s=2",
    "frontier.by=[model, workload.isl, workload.osl]",
    "report=false",
    "progress=false",
]
POOLS = ["serving=disaggregated", "serving.prefill={layout: {gpus: [1, 2, 4, 8], pp: [1, 2, 4]}}"]


@pytest.fixture(scope="module")
def disaggregated(outputs: Path) -> Path:
    directory = outputs / "disaggregated"
    assert sweep_cli.main([*GRID, *POOLS, f"output={directory}"]) == 0
    return directory


@pytest.fixture(scope="module")
def aggregated(outputs: Path) -> Path:
    directory = outputs / "aggregated"
    assert sweep_cli.main([*GRID, "serving=aggregated", "store.rows=all", f"output={directory}"]) == 0
    return directory


# --- whole numbers of replicas -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rates=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    costs=st.one_of(st.none(), st.tuples(st.floats(0.5, 20), st.floats(0.5, 20))),
    gpus=st.integers(2, 40),
)
def test_no_other_numbers_of_replicas_are_better(
    rates: tuple[float, float], sizes: tuple[int, int], costs: tuple[float, float] | None, gpus: int
) -> None:
    cost = costs or sizes
    found = best_counts(rates[0], sizes[0], rates[1], sizes[1], gpus=gpus, prefill_cost=cost[0], decode_cost=cost[1])
    best = 0.0
    for p, d in itertools.product(range(1, gpus + 1), repeat=2):
        if p * sizes[0] + d * sizes[1] <= gpus:
            best = max(best, min(p * rates[0], d * rates[1]) / (p * cost[0] + d * cost[1]))
    assert float(found.value) == pytest.approx(best, rel=1e-9)
    if best > 0:
        p, d = float(found.prefill), float(found.decode)
        assert p == int(p) >= 1 and d == int(d) >= 1 and p * sizes[0] + d * sizes[1] <= gpus
        assert float(found.requests_per_s) == pytest.approx(min(p * rates[0], d * rates[1]))


def test_unknown_rates_match_nothing() -> None:
    found = best_counts(np.array([np.nan, 0.0, 1.0]), 1, 1.0, np.array([1, 1, 90]), gpus=72)
    assert found.value.tolist() == [0.0, 0.0, 0.0]


def full_table(plan: run.Plan, where: pl.Expr) -> pl.DataFrame:
    """Every possible point of a pool, nothing pruned."""
    one = run.Run(plan, Path("unused"), config_yaml="")
    rows = np.arange(plan.space.n_rows)
    columns = {k: v.reshape(-1) for k, v in one.full_columns(rows).items()}
    ids = np.arange(len(columns["tpot_s"]), dtype=np.int64)
    frame = pl.from_arrow(one.writer(axes=True).table(ids, columns))
    assert isinstance(frame, pl.DataFrame)
    labels = [n for n, t in frame.schema.items() if t == pl.Categorical]
    return frame.with_columns(pl.col(labels).cast(pl.String)).filter(pl.col("feasible") & where)


def test_pruned_pools_lose_no_match(disaggregated: Path) -> None:
    """The match of what each pool keeps is as good, at any speed and first-token time, as that of all points."""
    both = disaggregate.pools(make_study(*GRID, *POOLS))
    prefill = full_table(both.prefill, pl.col("max_batch") >= pl.col("layout.dpa") * pl.col("layout.pp"))
    decode = full_table(both.decode, pl.lit(True))
    assert decode.height > 1.2 * package.scan(disaggregated / "decode", "frontier").collect().height
    keys = ["model", "workload.isl", "workload.osl"]
    every = match(prefill, decode, gpus=72, keys=keys, ttft_max_s=2.0)
    kept = package.scan(disaggregated).collect()
    for (model, isl, osl), group in every.group_by(keys):
        own = kept.filter(
            (pl.col("model") == model) & (pl.col("workload.isl") == isl) & (pl.col("workload.osl") == osl)
        )
        for speed, first in itertools.product((5.0, 60.0, 250.0), (0.05, 0.3, 2.0)):
            asked = (pl.col("tok_s_user") >= speed) & (pl.col("ttft_s") <= first)
            a, b = (f.filter(asked)["tok_s_gpu"].max() for f in (group, own))
            assert (a is None) == (b is None)
            if a is not None:
                assert b == pytest.approx(a, rel=1e-5), (model, isl, osl, speed, first)


def test_a_match_counts_all_gpus_and_the_transfer(disaggregated: Path) -> None:
    frame = package.scan(disaggregated).collect()
    assert frame.height and (frame["gpus"] <= 72).all() and (frame["ttft_s"] <= 2.0).all()
    near = {"rel": 1e-5}
    gpus = frame["n_prefill"] * frame["prefill.layout.gpus"] + frame["n_decode"] * frame["layout.gpus"]
    assert (gpus == frame["gpus"]).all()
    out = frame["requests_per_s"] * frame["workload.osl"]
    assert frame["tok_s_gpu"].to_numpy() == pytest.approx((out / frame["gpus"]).to_numpy(), **near)
    usd = 3600 * out * frame["usd_per_mtok"] / 1e6 / frame["gpus"]  # per GPU and hour: one machine, one price
    assert usd.to_numpy() == pytest.approx(np.full(len(usd), usd[0]), rel=1e-4)
    # the slower pool is asked for all it has, the other for less
    busy = frame.select(pl.max_horizontal("prefill_busy", "decode_busy")).to_series()
    assert busy.to_numpy() == pytest.approx(np.ones(len(busy)), **near)
    # Llama-3.1-70B: 80 layers x 2 x 8 heads x 128 fp8 x 8,192 tokens over 50 GB/s per GPU of the smaller group
    of_70b = frame.filter((pl.col("model") == "llama_3_1_70b") & (pl.col("workload.isl") == 8192))
    group = np.minimum(
        (of_70b["prefill.layout.tpa"] * of_70b["prefill.layout.pp"]).to_numpy(),
        (of_70b["layout.tpa"] * of_70b["layout.pp"]).to_numpy(),
    )
    assert of_70b["kv_transfer_s"].to_numpy() == pytest.approx(80 * 2 * 8 * 128 * 8192 / 5e10 / group, **near)
    assert (frame["kv_link_share"] <= 1.0 + 1e-6).all()


def test_matching_again_and_bad_input(
    disaggregated: Path, aggregated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    assert match_cli.main([str(disaggregated), "--gpus", "8", "--ttft", "0.5", "--out", str(out)]) == 0
    small = package.scan(out).collect()
    assert small.height and small["gpus"].max() <= 8 and small["ttft_s"].max() <= 0.5
    assert "prefill layout" in capsys.readouterr().out
    for words, said in (
        (["--gpus", "1"], "--gpus=1: two pools need at least 2 GPUs"),
        (["--out", str(out)], "exists; name a new directory"),
    ):
        assert match_cli.main([str(disaggregated), *words]) == 1
        assert said in capsys.readouterr().err
    assert match_cli.main([str(aggregated)]) == 1
    assert "sweep with serving=disaggregated" in capsys.readouterr().err
    with pytest.raises(Exception, match="two pools are two grids"):
        run.plan(make_study("grid.serving=[aggregated, disaggregated]"))


# --- what the study found ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Best:
    """The best of each way of serving at a speed."""

    gain: float  # output per GPU, two pools over one
    ratio: float  # prefill over decode GPUs
    tp: int  # of decode


@pytest.fixture(scope="module")
def best(disaggregated: Path, aggregated: Path) -> dict[tuple[str, str, int], Best]:
    two, one = package.scan(disaggregated).collect(), package.scan(aggregated).filter("feasible").collect()
    found = {}
    for model, (isl, osl), speed in itertools.product(
        ("llama_3_1_8b", "llama_3_1_70b"), ((8192, 1024), (1024, 1024), (1024, 8192)), (20, 50, 100, 200, 400)
    ):
        asked = (
            (pl.col("model") == model)
            & (pl.col("workload.isl") == isl)
            & (pl.col("workload.osl") == osl)
            & (pl.col("tok_s_user") >= speed)
        )
        a, b = (f.filter(asked).sort("tok_s_gpu", descending=True).row(0, named=True) for f in (one, two))
        traffic = f"{isl // 1024}k/{osl // 1024}k"
        gain = b["tok_s_gpu"] / a["tok_s_gpu"]
        found[model, traffic, speed] = Best(gain, b["prefill_per_decode"], int(b["layout.tpa"]))
    return found


SPEEDS = (50, 100, 200, 400)


def test_two_pools_gain_most_on_prompts_and_large_models(best: dict[tuple[str, str, int], Best]) -> None:
    for speed in SPEEDS:
        heavy, light = best["llama_3_1_70b", "8k/1k", speed].gain, best["llama_3_1_70b", "1k/8k", speed].gain
        assert heavy > 1.2 and heavy > light + 0.15, speed
        assert light == pytest.approx(1.0, abs=0.05)  # generation: nothing to gain
        assert heavy > best["llama_3_1_8b", "8k/1k", speed].gain + 0.1, speed


def test_the_best_ratio_of_pools_falls_as_tokens_must_come_faster(best: dict[tuple[str, str, int], Best]) -> None:
    for traffic in ("8k/1k", "1k/1k"):
        ratios = [best["llama_3_1_70b", traffic, speed].ratio for speed in SPEEDS]
        assert all(a >= b for a, b in itertools.pairwise(ratios)) and ratios[0] > 1.3 * ratios[-1], ratios
    # and more prompt per answer takes more prefill
    assert best["llama_3_1_70b", "8k/1k", 50].ratio > 10 * best["llama_3_1_70b", "1k/8k", 50].ratio


def test_decode_is_cut_wider_as_tokens_must_come_faster(best: dict[tuple[str, str, int], Best]) -> None:
    widths = [best["llama_3_1_70b", "1k/1k", speed].tp for speed in (20, *SPEEDS)]
    assert all(a <= b for a, b in itertools.pairwise(widths)) and widths[-1] >= 4 * widths[0], widths
