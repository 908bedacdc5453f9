"""Bands: what residuals make of them, whether they hold on rows that they did not see, and how they carry over."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import sweep as sweep_cli
from sweep import store
from sweep.calibration import bands
from sweep.calibration.bands import KINDS, Residuals
from sweep.columns import BANDS, FACTORS, NEEDS, ends
from sweep.config import Library, conf_dir
from sweep.machine import band_of
from sweep.space import bands as bands_of_rows
from sweep.space import build
from tests.conftest import make_study

# --- from residuals ----------------------------------------------------------------------------------------------


def made(n: int = 3000, seed: int = 0, **spread: float) -> Residuals:
    """Residuals of a known spread: generations and makers are shifted, everything else is noise."""
    rng = np.random.default_rng(seed)
    group = {
        "curve": rng.integers(0, 5, n).astype(str),
        "model": rng.integers(0, 12, n).astype(str),
        "chip": rng.integers(0, 8, n).astype(str),
        "generation": rng.integers(0, 6, n).astype(str),
        "vendor": rng.integers(0, 3, n).astype(str),
    }
    shift = {w: rng.normal(0.0, spread.get(w, 0.0), 12)[group[w].astype(int)] for w in group}
    noise = {metric: rng.normal(0.0, 0.2, n) for metric in KINDS}
    first = rng.random(n)
    noise["request"] = np.log(first * np.exp(noise["ttft"]) + (1.0 - first) * np.exp(noise["tpot"]))
    return Residuals(
        log={w: {metric: v + shift[w] for metric, v in noise.items()} for w in group},
        first=dict.fromkeys(group, first),
        group=group,
        row_id=np.arange(n).astype(str),
        drafted=rng.random(n) < 0.3,
        disaggregated=rng.random(n) < 0.3,
        light=rng.random(n) < 0.3,
    )


def test_the_band_of_a_known_error_is_found_and_holds() -> None:
    r = made()
    reach = np.exp(1.2816 * 0.2)  # 80 % of a normal error of 0.2
    for level in bands.bands(r).values():
        for kinds in level.values():
            for low, high in kinds.values():
                assert low == pytest.approx(1 / reach, rel=0.08) and high == pytest.approx(reach, rel=0.08)
    for c in bands.coverage(r):
        assert 0.75 <= c.inside <= 0.85, c


def test_what_was_not_measured_is_known_less() -> None:
    found = bands.bands(made(generation=0.3, vendor=0.6))
    for metric, kinds in found["measured"].items():
        for kind, own in kinds.items():
            inherited, unrelated = (found[level][metric][kind] for level in ("inherited", "unrelated"))
            assert unrelated[0] <= inherited[0] <= own[0] < 1 < own[1] <= inherited[1] <= unrelated[1]
            assert unrelated[1] / unrelated[0] > 1.3 * own[1] / own[0]
    for metric, kinds in KINDS.items():
        for kind, other in kinds.items():
            if other is not None:  # what more generations were measured in
                a, b = (found["inherited"][metric][k] for k in (kind, other))
                assert a[0] <= b[0] and a[1] >= b[1]


def test_a_large_group_does_not_drown_the_others() -> None:
    """Nine of ten rows of one generation that fits well: the band still says how the others did."""
    r = made()
    big = np.where(np.arange(len(r)) % 10 > 0, "big", r.group["generation"])
    worse = {"tpot": np.where(big == "big", 0.0, 0.7) + r.log["generation"]["tpot"]}
    uneven = dataclasses.replace(
        r, group={**r.group, "generation": big}, log={**r.log, "generation": {**r.log["generation"], **worse}}
    )
    assert bands.bands(uneven)["inherited"]["tpot"]["undrafted"][1] > np.exp(0.7)


def test_what_has_few_rows_borrows() -> None:
    r = made(200)
    alone = dataclasses.replace(r, log={"curve": r.log["curve"]})
    assert set(bands.bands(alone)) == {"measured"} and {c.left_out for c in bands.coverage(alone)} == {"curve"}
    few = dataclasses.replace(r, drafted=np.arange(200) < 5)
    tpot = bands.bands(few)["measured"]["tpot"]
    assert tpot["drafted"] == tpot["undrafted"]
    untimed = {w: {**m, "ttft": np.full(200, np.nan)} for w, m in r.log.items()}
    assert "ttft" not in bands.bands(dataclasses.replace(r, log=untimed))["measured"]


# --- of the shipped preset ---------------------------------------------------------------------------------------

LIBRARY = Library([conf_dir()])
PRESET = LIBRARY.raw("efficiency", "measured")


@pytest.fixture(scope="module")
def shipped() -> Residuals:
    return Residuals.of(pl.read_csv(conf_dir() / "efficiency" / "measured_residuals.csv"))


def test_the_preset_says_what_its_residuals_give(shipped: Residuals) -> None:
    found = bands.bands(shipped)
    said = PRESET["serving"]["band"]
    assert set(said) == set(found) == set(bands.LEVELS)
    for level, metrics in found.items():
        for metric, kinds in metrics.items():
            for kind, edge in kinds.items():
                assert edge == pytest.approx(said[level][metric][kind], rel=5e-3)


# Metrics whose band holds 75 to 85 % of the rows left out, by way of leaving out; the band of a group is made without
# its residuals. Not reached: throughput and first token of a model left out (DeepSeek has most of the disaggregated
# rows: 69 and 71 %; with nobody queueing 86 %), the first token of a chip left out (74 %; requests 85.1 %), and what is
# left out by generation and maker, of which there are six and two.
REACHED = {
    "curve": ("tpot", "tok_s_gpu", "ttft", "first", "prefill"),
    "model": ("tpot", "prefill", "request"),
    "chip": ("tpot", "tok_s_gpu", "prefill"),
}


def test_bands_hold_on_rows_that_they_were_not_made_from(shipped: Residuals) -> None:
    found = {(c.left_out, c.metric): c for c in bands.coverage(shipped)}
    for way, metrics in REACHED.items():
        for metric in metrics:
            assert 0.75 <= found[way, metric].inside <= 0.85, found[way, metric]
    generations = [found["generation", metric] for metric in KINDS]
    assert all(0.70 <= c.inside_alike <= 0.85 for c in generations), generations


def test_unmeasured_machines_are_visibly_less_certain() -> None:
    own, kin, none = (
        band_of(PRESET, **LIBRARY.record("hardware", name).lineage)
        for name in ("gb300_nvl72", "rubin_vr200_nvl72_ex_nvl144", "tpu_v5p")
    )
    assert (own.inherited, kin.inherited, none.inherited, none.relative) == (False, True, True, None)
    for metric, kind in (("tpot", "undrafted"), ("tok_s_gpu", "aggregated")):
        widths = [np.log(b.of(metric, kind)[1] / b.of(metric, kind)[0]) for b in (own, kin, none)]
        assert widths[1] > 1.2 * widths[0] and widths[2] > 1.05 * widths[1]


# --- carried over ------------------------------------------------------------------------------------------------

down, up = st.floats(0.05, 1.0), st.floats(1.0, 20.0)


@st.composite
def factors(draw: st.DrawFn) -> dict[str, float]:
    pairs = [draw(down), draw(up), draw(down), draw(up), draw(down), draw(up), draw(st.floats(0.0, 1.0))]
    return dict(zip(FACTORS, [*pairs, draw(down), draw(up)], strict=True))


@given(f=factors(), first=st.floats(1e-3, 10.0), rest=st.floats(1e-3, 100.0), wider=st.floats(1.0, 3.0))
def test_the_best_value_lies_in_its_band(f: dict[str, float], first: float, rest: float, wider: float) -> None:
    """For every way of carrying over; and wider factors never give a narrower band."""
    grown = {k: v if k.endswith("_s") else v / wider if k.endswith("low") else v * wider for k, v in f.items()}
    for by in NEEDS:
        value = first + rest if by == "request" else first
        low, high = ends(by, value, {**f, "ttft_s": first}.__getitem__)
        assert low <= value <= high
        less, more = ends(by, value, {**grown, "ttft_s": first}.__getitem__)
        assert less <= low * (1 + 1e-12) + 1e-12 and more >= high * (1 - 1e-12)


@given(f=factors(), first=st.floats(1e-3, 10.0), rest=st.floats(1e-3, 100.0))
def test_a_request_errs_less_than_its_parts_at_once(f: dict[str, float], first: float, rest: float) -> None:
    get = {**f, "ttft_s": first}.__getitem__
    low, high = ends("request", first + rest, get)
    (a, b), (c, d) = ends("first", first, get), ends("time", rest, get)
    slack = 1e-9 * (first + rest)
    assert a + c - slack <= low <= min(a + rest, first + c) + slack
    assert max(b + rest, first + d) - slack <= high <= b + d + slack


# --- in a table --------------------------------------------------------------------------------------------------

GRID = [
    "grid=none",
    "grid.model=[llama_3_1_70b, deepseek_v3]",
    "grid.hardware=[gb300_nvl72, rubin_vr200_nvl72_ex_nvl144, tpu_v5p]",
    "grid.efficiency=[measured, ideal]",
    "precision=fp8",
    "grid.layout={gpus: [8], tpa: [8]}",
    "grid.workload={batch: [1, 32]}",
]


@pytest.fixture(scope="module")
def tables(outputs: Path) -> dict[str, pl.DataFrame]:
    """What a sweep stores of two pools, of one of them, and of both under the roofline itself."""
    directory = outputs / "bands"
    more = ["serving=disaggregated", "serving.gpus=32", "frontier.robust=false", "report=false", "progress=false"]
    assert sweep_cli.main([*GRID, *more, f"output={directory}"]) == 0
    found = {"pools": store.scan(directory).collect(), "decode": store.scan(directory / "decode").collect()}
    ideal = pl.col("efficiency") == "ideal"
    return {**{k: t.filter(~ideal) for k, t in found.items()}, "ideal": found["pools"].filter(ideal)}


@pytest.mark.parametrize("name", ["pools", "decode"])
def test_every_metric_of_a_sweep_has_a_band(tables: dict[str, pl.DataFrame], name: str) -> None:
    frame = tables[name]
    for of, band in BANDS.items():
        known = frame.filter(pl.col(of).is_not_null())
        if name == "decode" and of == "usd_per_mtok_input":  # nobody prefills
            continue
        assert known.height, of
        low, best, high = (known[c].cast(pl.Float64) for c in (band.low, of, band.high))
        assert low.null_count() == high.null_count() == 0, of
        assert (low <= best * (1 + 1e-6)).all() and (best <= high * (1 + 1e-6)).all(), of
        assert (high > 1.05 * low).all(), of


def test_factors_are_those_of_the_machine_and_the_way_of_serving(tables: dict[str, pl.DataFrame]) -> None:
    space = build(make_study(*GRID, "serving=aggregated"))
    alone = bands_of_rows(space, np.arange(space.n_rows))
    for machine in tables["pools"]["hardware"].unique():
        band = band_of(PRESET, **LIBRARY.record("hardware", machine).lineage)
        row = tables["pools"].filter(pl.col("hardware") == machine)
        assert row["rate_band_low"].unique().to_list() == pytest.approx([band.of("tok_s_gpu", "disaggregated")[0]])
        assert row["ttft_band_high"].unique().to_list() == pytest.approx([band.first("disaggregated")[1]])
        added = {
            band.first("disaggregated")[2] + band.launch_s[bool(v["n_experts"])] * float(v["n_layers"])
            for v in (LIBRARY.record("model", m).values for m in row["model"].unique())
        }
        assert sorted(row["ttft_band_add_s"].unique()) == pytest.approx(sorted(added))
        low, high = band.of("tok_s_gpu", "aggregated")
        assert {low, high} <= {*alone["rate_band_low"].tolist(), *alone["rate_band_high"].tolist()}
        assert band.first("aggregated")[1] in alone["ttft_band_high"]
    assert np.isnan(alone["rate_band_low"]).sum() == space.n_rows // 2  # of the roofline


def test_a_match_counts_its_own_costs(tables: dict[str, pl.DataFrame]) -> None:
    """What follows from columns follows from those of the service, not of the decode pool."""
    t = tables["pools"].filter(pl.col("usd_per_mtok").is_not_null())
    assert t.height and np.allclose(t["usd_per_mtok_total"] * t["total_tok_s_gpu"], t["usd_per_mtok"] * t["tok_s_gpu"])
    assert np.allclose(t["tok_per_usd"], 1e6 / t["usd_per_mtok"])


def test_the_roofline_has_no_band(tables: dict[str, pl.DataFrame]) -> None:
    ideal = tables["ideal"]
    assert ideal["tpot_s"].count()
    for band in BANDS.values():
        for name in (band.low, band.high):
            assert name not in ideal.columns or ideal[name].null_count() == ideal.height


def test_tables_of_an_older_schema_keep_what_they_had(tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    """Factors of the time per token alone: throughput takes their inverse, the first token has no band."""
    frame = tables["decode"]
    older = [c for c in frame.columns if c not in FACTORS[2:] and c not in _ends()]
    path = tmp_path / "old.parquet"
    frame.select(older).write_parquet(path, metadata={"codesign.schema_version": "1"})
    back: Any = store.scan(path).collect()
    known = back.filter(pl.col("tpot_s").is_not_null())
    assert np.allclose(known["tok_s_gpu_low"], known["tok_s_gpu"] / known["band_high"])
    assert np.allclose(known["tok_s_user_high"], known["tok_s_user"] / known["band_low"])
    assert {"ttft_low_s", "request_low_s"}.isdisjoint(back.columns)
    assert (store.part_metadata(path) or {})["codesign.schema_version"] == "1"


def _ends() -> set[str]:
    return {end for band in BANDS.values() for end in (band.low, band.high)}
