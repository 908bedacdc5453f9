"""Ways of serving in one grid, batches as large as limits allow, money and energy, SLA questions and fleets."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import sweep as package
from pipelines import chart as chart_cli
from pipelines import explain as explain_cli
from pipelines import sla as sla_cli
from pipelines import sweep as sweep_cli
from sweep.columns import BY_NAME
from sweep.cost import serving
from sweep.cost.arith import namespace
from sweep.cost.result import evaluate_point
from sweep.cost.step import load_terms, token_time
from sweep.economics import AWAKE, MEMORY_BOUND, derived, power_share
from sweep.largest import largest_batch
from sweep.point import Kinds
from sweep.report.markdown import HEADERS
from sweep.report.selection import LOWER_IS_BETTER, envelope
from tests.cost.points import DENSE, context, layout, machine, model, row

LIMIT = 0.02
GRID = [
    "grid=none",
    "model=llama_3_1_70b",
    "grid.hardware=[h100_sxm_80gb, gb300_nvl72]",
    "precision=fp8",
    "efficiency=ideal",
    "grid.layout={gpus: [4, 8], tpa: pow2, dpa: pow2}",
    "grid.serving=[decode, aggregated]",
    "grid.workload={batch: [16, max, 64], isl: [1024, 8192]}",
    f"workload.tpot_max_s={LIMIT}",
    "report=false",
    "progress=false",
]


@pytest.fixture(scope="module")
def stored(outputs: Path) -> Path:
    directory = outputs / "serving"
    assert sweep_cli.main([*GRID, "store.rows=all", f"output={directory}"]) == 0
    return directory


@pytest.fixture(scope="module")
def points(stored: Path) -> pl.DataFrame:
    return package.scan(stored).collect()


# --- a replica that prefills between its decode steps ------------------------------------------------------------


def test_the_batch_that_runs_is_the_one_of_the_closed_loop() -> None:
    """A sweep goes from the running batch to the users; the steady state goes from the users to the running batch."""
    r = row(model(DENSE), machine(), layout(tpa=2.0, dpa=2.0))
    c = context(isl=4096.0, osl=512.0, mixed=1.0)
    for batch in (8.0, 40.0, 200.0):
        with namespace(np), np.errstate(all="ignore"):
            _, at_context, cost = evaluate_point(r, np.float64(batch), c, Kinds())

            def decode_tpot(b: Any) -> Any:
                return token_time(r, load_terms(r, b, Kinds()), b, c.decode, Kinds()).parts.total_s

            steady = serving.aggregated(
                decode_tpot,
                at_context.prefill_busy_s,
                osl=c.generated,
                concurrency=cost.concurrency,
                max_batch=np.float64(1e6),
                groups=r.layout.dpa,
                first_s=cost.ttft_s,
            )
            assert float(steady.batch) == pytest.approx(batch, rel=2e-3)
            assert float(steady.tpot_s) == pytest.approx(float(cost.tpot_s), rel=2e-3)
            rate = float(cost.tok_s_gpu) * 4 / 511
            assert float(steady.requests_per_s) == pytest.approx(rate, rel=2e-3)


def test_prefill_is_what_an_aggregated_replica_adds(points: pl.DataFrame) -> None:
    keys = ["hardware", "layout.gpus", "layout.tpa", "layout.dpa", "layout.ep", "workload.isl", "workload.batch"]
    both = points.filter(pl.col("tpot_s").is_not_null() & pl.col("workload.batch").is_in([16, 64]))
    decode, mixed = (both.filter(pl.col("serving") == s).sort(keys) for s in ("decode", "aggregated"))
    mixed = mixed.join(decode.select(keys), on=keys, how="semi").sort(keys)
    decode = decode.join(mixed.select(keys), on=keys, how="semi").sort(keys)
    assert decode.height == mixed.height > 20
    assert (decode["prefill_s"] == 0).all() and (decode["concurrency"] == decode["workload.batch"]).all()
    # as many prompts are prefilled as answers end: others x T / osl, T the time of one prompt on the replica
    assert np.allclose(mixed["tpot_s"] - mixed["prefill_s"], decode["tpot_s"], rtol=1e-4)
    others = mixed["workload.batch"] / mixed["layout.dpa"] - 1
    # one chunk on one stage: the first token takes the prompt and the read of a bf16 LM head
    bandwidth = np.where(decode["hardware"] == "h100_sxm_80gb", 3.35e12, 8e12)
    head_s = 128256 * 8192 * 2 / (bandwidth * decode["layout.tpa"].to_numpy())
    one_prompt = decode["ttft_s"].to_numpy() - head_s
    assert np.allclose(mixed["prefill_s"], others.to_numpy() * one_prompt / 1024, rtol=1e-3)
    # its first token waits for one decode step, since the prompt is one chunk
    assert np.allclose(mixed["ttft_s"], decode["ttft_s"] + decode["tpot_s"], rtol=1e-4)
    rate = mixed["workload.batch"] / (mixed["tpot_s"] * 1023)
    assert np.allclose(mixed["concurrency"], mixed["workload.batch"] + rate * mixed["ttft_s"], rtol=1e-4)
    longer = mixed.filter(pl.col("workload.isl") == 8192)
    assert longer.height and (longer["bound"] == "prefill").any()


# --- workload.batch=max ------------------------------------------------------------------------------------------


def test_max_is_the_largest_batch_that_keeps_the_limits(
    points: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    given = points["workload.batch"].is_in([16, 64])
    largest = points.filter(~given & pl.col("feasible"))
    assert largest.height > 10 and (largest["tpot_s"] <= LIMIT * (1 + 1e-6)).all()
    assert (largest["workload.batch"] <= largest["max_batch"]).all()
    for point in largest.sample(3, seed=1).iter_rows(named=True):
        words = [
            "model=llama_3_1_70b", f"hardware={point['hardware']}", "precision=fp8", "efficiency=ideal",
            f"serving={point['serving']}", f"workload.isl={point['workload.isl']}", "output=json",
            *(f"layout.{k}={point[f'layout.{k}']}" for k in ("tpa", "dpa", "ep")),
        ]  # fmt: skip

        def explained(*more: str, words: list[str] = words) -> dict[str, Any]:
            capsys.readouterr()
            assert explain_cli.main([*words, *more]) == 0
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            return found

        own = explained("workload.batch=max", f"workload.tpot_max_s={LIMIT}")
        assert own["feasible"] and abs(own["workload"]["batch"] - point["workload.batch"]) <= point["layout.dpa"]
        more = explained(f"workload.batch={own['workload']['batch'] + 1}", f"workload.tpot_max_s={LIMIT}")
        assert not more["feasible"] and set(more["reasons"]) <= {"capacity", "tpot_cut"}
    impossible = points.filter(pl.col("reasons") & 2 != 0)  # has no largest batch
    assert 0 < impossible["workload.batch"].null_count() < impossible.height
    cut = points.filter(pl.col("reasons") & 64 != 0)
    assert cut.height and (cut["tpot_s"] > LIMIT).all()


def test_the_search_finds_the_last_batch_that_holds() -> None:
    edges = np.array([[1.0, 7.0, 100.0], [64.0, 0.0, 33.0]])
    found = largest_batch(np.array([[5.0, 7.0, 64.0], [0.0, 12.0, np.nan]]), lambda b: b <= edges)
    assert found.tolist() == [[1.0, 7.0, 64.0], [1.0, 1.0, 1.0]]


# --- money and energy --------------------------------------------------------------------------------------------


def test_identities_of_money(points: pl.DataFrame) -> None:
    good = points.filter("feasible")
    osl, isl = 1024.0, good["workload.isl"].to_numpy().astype(float)

    def at(name: str) -> Any:
        return good[name].to_numpy().astype(float)

    near = {"rel": 2e-4}
    assert at("usd_per_mtok") * at("tok_per_usd") == pytest.approx(np.full(good.height, 1e6), **near)
    assert at("usd_per_request") == pytest.approx(at("usd_per_mtok") * osl / 1e6, **near)
    assert at("usd_per_mtok_total") * (isl + osl) / 1e6 == pytest.approx(at("usd_per_request"), **near)
    mixed = good.filter(pl.col("serving") == "aggregated")
    parts = mixed["usd_per_mtok_input"] * mixed["workload.isl"] + mixed["usd_per_mtok_output"] * osl
    assert parts.to_numpy() / 1e6 == pytest.approx(mixed["usd_per_request"].to_numpy(), **near)
    alone = good.filter(pl.col("serving") == "decode")
    assert (alone["input_share"] == 0).all() and alone["usd_per_mtok_input"].null_count() == alone.height
    price = 3600 * at("usd_per_mtok") * at("tok_s_gpu") / 1e6
    h100 = (good["hardware"] == "h100_sxm_80gb").to_numpy()
    assert price[h100] == pytest.approx(np.full(h100.sum(), price[h100][0]), rel=1e-5)
    assert at("requests_per_s") * osl == pytest.approx(at("tok_s_gpu") * at("layout.gpus"), **near)


def test_identities_of_energy(points: pl.DataFrame) -> None:
    good = points.filter("feasible")
    assert np.allclose(good["joule_per_tok"] * good["tok_s_mw"], 1e6, rtol=1e-4)
    assert np.allclose(good["joule_per_tok_drawn"] * good["tok_s_mw_drawn"], 1e6, rtol=1e-4)
    watts = np.where(good["hardware"] == "h100_sxm_80gb", 700.0, 1400.0)
    assert np.allclose(good["watts_drawn"], good["power_share"] * watts, rtol=1e-4)
    share = good["power_share"].to_numpy()
    assert (share >= AWAKE).all() and (share <= 1.0).all()
    alone = good.filter(pl.col("serving") == "decode").row(0, named=True)
    assert alone["power_share"] == pytest.approx(power_share(alone["mfu"], alone["mbu"]), rel=1e-5)
    # decode of an H200 at saturated memory and little math: the published 300 W of 700 (arXiv 2605.11999)
    assert 700 * power_share(0.0, 1.0) == pytest.approx(300.0) and power_share(1.0, 1.0) == 1.0
    assert AWAKE < MEMORY_BOUND < 1


def test_labels_say_what_is_counted() -> None:
    for d in derived(["layout.gpus", *(k for k in BY_NAME if BY_NAME[k].level in ("point", "context", "row"))]):
        says = HEADERS.get(d.name, (d.name,))[0] + d.doc
        if "usd_per_mtok" in d.name or "tok_s_mw" in d.name or d.name == "tok_per_usd":
            assert "output" in says or "input" in says, d.name


# --- SLA and fleets ----------------------------------------------------------------------------------------------


def answers(capsys: pytest.CaptureFixture[str], *words: object) -> pl.DataFrame:
    capsys.readouterr()
    assert sla_cli.main([*map(str, words), "--format", "csv"]) == 0
    return pl.read_csv(io.StringIO(capsys.readouterr().out), infer_schema_length=None)


def test_the_best_point_under_limits(stored: Path, points: pl.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    found = answers(capsys, stored, "--ttft", 0.1, "--speed", 100, "--gpus", 4, "--by", "hardware,serving")
    asked = points.filter(
        pl.col("feasible") & (pl.col("ttft_s") <= 0.1) & (pl.col("tok_s_user") >= 100) & (pl.col("layout.gpus") <= 4)
    )
    best = {
        k: v for *k, v in asked.group_by("hardware", "serving").agg(pl.max("tok_s_gpu")).iter_rows() for k in [tuple(k)]
    }
    assert found.height == len(best) >= 2
    for r in found.iter_rows(named=True):
        assert r["tok_s_gpu"] == pytest.approx(best[r["hardware"], r["serving"]], rel=1e-6)


def test_a_fleet_is_whole_replicas(stored: Path, points: pl.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    demand = 37.0
    found = answers(capsys, stored, "--speed", 60, "--demand", demand, "--by", "hardware,serving")
    assert found.height >= 3
    for r in found.iter_rows(named=True):
        rate = r["tok_s_gpu"] * r["layout.gpus"] / 1024
        assert r["replicas"] == math.ceil(demand / rate - 1e-4) and r["fleet_gpus"] == r["replicas"] * r["layout.gpus"]
        assert (
            r["fleet_busy"] == pytest.approx(demand / (r["replicas"] * rate), rel=1e-4) and r["fleet_busy"] <= 1.00001
        )
        price, watts = {"h100_sxm_80gb": (1.78, 700), "gb300_nvl72": (3.30, 1400)}[r["hardware"]]
        assert r["fleet_usd_per_hour"] == pytest.approx(r["fleet_gpus"] * price, rel=1e-4)
        assert r["fleet_kw"] == pytest.approx(r["fleet_gpus"] * watts / 1e3, rel=1e-4)
        same = points.filter(
            pl.col("feasible") & (pl.col("tok_s_user") >= 60)
            & (pl.col("hardware") == r["hardware"]) & (pl.col("serving") == r["serving"])
        )  # fmt: skip
        per_replica = (same["tok_s_gpu"] * same["layout.gpus"] / 1024).to_numpy()
        fewest = (np.ceil(demand / per_replica - 1e-4) * same["layout.gpus"].to_numpy()).min()
        assert r["fleet_gpus"] == fewest


def test_sla_says_what_cannot_be(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sla_cli.main([str(stored), "--ttft", "1e-4", "--speed", "20"]) == 0
    out = capsys.readouterr().out
    assert "no point keeps all limits" in out and "0 (best" in out
    for words, said in (
        (["--accuracy", "65"], "--accuracy=65: is a share of 1; nearest: 0.65"),
        (["--ttft", "-1"], "--ttft=-1: must be greater than 0"),
        (["--demand", "0"], "--demand=0: requests per second must be greater than 0"),
        (["--best", "tok_s_gpus"], "--best=tok_s_gpus: no such column"),
    ):
        assert sla_cli.main([str(stored), *words]) == 1
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serving=colocated"], "serving=colocated: no such serving"),
        (["serving=aggregated", "serving.phi=3"], "serving.phi=3: must be greater than 0 and at most 2"),
        (["serving=disaggregated", "serving.gpus=1"], "serving.gpus=1: two pools need at least 2 GPUs"),
        (["serving=disaggregated", "serving.prefill={model: [dense]}"], "serving.prefill.model: the pools may differ"),
        (["workload.batch=most"], "workload.batch=most: must be a number or max"),
    ],
)
def test_bad_ways_of_serving(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_cli.main(["grid=none", *words, f"output={tmp_path / 'none'}"]) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "none").exists()


# --- charts ------------------------------------------------------------------------------------------------------


def test_envelopes_know_which_way_is_better() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({k: rng.lognormal(size=200) for k in ("tok_s_user", "ttft_s", "tok_s_gpu", "usd_per_mtok")})
    for x, y in (("tok_s_user", "tok_s_gpu"), ("ttft_s", "tok_s_gpu"), ("ttft_s", "usd_per_mtok")):
        values = np.column_stack([frame[k].to_numpy() * (-1 if k in LOWER_IS_BETTER else 1) for k in (x, y)])
        best = [not ((values >= v).all(axis=1) & (values > v).any(axis=1)).any() for v in values]
        found = envelope(frame, x, y)
        assert found.height == sum(best) and set(found[x]) == set(frame.filter(best)[x])
        assert found[x].is_sorted()


def test_a_chart_of_latency_and_money(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--x", "ttft_s", "--y", "tok_per_usd", "--line", "serving", "--out", str(tmp_path / "money")]
    assert chart_cli.main([str(stored), *words]) == 0
    drawn = (tmp_path / "money.svg").read_text()
    assert (tmp_path / "money.png").stat().st_size > 10_000
    for said in ("output tokens per dollar", "time to the first token [s]", "aggregated", "decode"):
        assert said in drawn
    for bad, said in (
        (["--x", "ttft"], "--x=ttft: no such column of numbers"),
        (["--line", "servin"], "--line=servin: no such column; nearest: serving"),
    ):
        capsys.readouterr()
        assert chart_cli.main([str(stored), *bad, "--out", str(tmp_path / "none")]) == 1
        assert said in capsys.readouterr().err and not (tmp_path / "none.svg").exists()
