"""Constants from kernel timings: recovered where they are known, the same on every run, and never silently wrong."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from pipelines import calibrate
from sweep.calibration import operators, tables
from sweep.calibration.preset import scalar, text_of
from sweep.calibration.start import START
from sweep.config import Library, as_record, conf_dir
from sweep.errors import BadInput
from sweep.machine import band_of, efficiency_for, kernel_constants, relative_of, resolve
from sweep.point import Precision

LIBRARY = Library([conf_dir()])
SHIPPED = LIBRARY.raw("efficiency", "measured")


def shapes(n: int, hardware: list[str], weights: list[str], seed: int = 1) -> pl.DataFrame:
    """GEMMs of all sizes on some machines, without a time yet."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** np.stack([rng.integers(lo, hi, n) for lo, hi in ((0, 14), (9, 15), (9, 15))])
    frame = pl.DataFrame(
        {
            "kind": ["gemm"] * n,
            "hardware": rng.choice(hardware, n),
            "library": rng.choice(["one", "two"], n),
            "weights": rng.choice(weights, n),
            "m": sizes[0],
            "n": sizes[1],
            "k": sizes[2],
            "seconds": np.ones(n),
        }
    ).with_columns(pl.col("weights").alias("activations"))
    return operators.with_generation(tables._shaped(frame), LIBRARY)


def timed(frame: pl.DataFrame, preset: dict[str, Any], noise: float, seed: int = 2) -> pl.DataFrame:
    """The same with the times that a preset gives, and some scatter."""
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(frame.height))
    return frame.with_columns(pl.Series("seconds", operators.predicted_s(frame, preset, LIBRARY) * scatter))


TRUTH = {
    "math": 0.7,
    "read": 0.8,
    "t0_s": 4.5e-6,
    "chain_s": 0.9e-9,
    "overlap": 0.5,
}


@pytest.fixture(scope="module")
def known() -> tuple[pl.DataFrame, dict[str, Any]]:
    """A table of a world with other constants than ours, and a faster Hopper."""
    preset = operators.bare(SHIPPED)
    preset["kernels"]["gemm"] = {**TRUTH, "fp8": {"math": 0.5, "t0_s": 7e-6}}
    factors = {"gemm": {"math": 1.25, "floor": 0.7}}
    preset["generations"] = {
        "hopper": {"vendor": "NVIDIA", "year": 2022, "factors": factors},
        "blackwell": {"vendor": "NVIDIA", "year": 2024},
    }
    frame = shapes(900, ["h100_sxm_80gb", "b200_sxm_180gb"], ["bf16", "fp8"])
    return timed(frame, preset, 0.03), preset


@pytest.fixture(scope="module")
def fitted(known: tuple[pl.DataFrame, dict[str, Any]]) -> operators.Fitted:
    return operators.fit(known[0], SHIPPED, LIBRARY, only=["gemm"])


def test_known_constants_are_recovered(fitted: operators.Fitted) -> None:
    """Rates and floors as each machine sees them, from 675 timings that scatter by 3 %."""
    found = fitted.preset
    for generation, math, floor in (("hopper", 0.7 * 1.25, 4.5e-6 * 0.7), ("blackwell", 0.7, 4.5e-6)):
        own = found["generations"][generation].get("factors", {}).get("gemm", {})
        k = found["kernels"]["gemm"]
        assert k["math"] * own.get("math", 1.0) == pytest.approx(math, rel=0.05)
        assert k["t0_s"] * own.get("floor", 1.0) == pytest.approx(floor, rel=0.05)
        assert k["fp8"]["math"] * own.get("math", 1.0) == pytest.approx(math * 0.5 / 0.7, rel=0.05)
        assert k["read"] == pytest.approx(0.8, rel=0.05)
        assert k["chain_s"] == pytest.approx(0.9e-9, rel=0.1)
        assert k["overlap"] == pytest.approx(0.5, abs=0.1)


def test_scores_are_of_rows_that_were_not_fitted(
    fitted: operators.Fitted, known: tuple[pl.DataFrame, dict[str, Any]]
) -> None:
    """About a quarter is held out, and what is left of the error there is the scatter: 0.67 x 3 %."""
    (score,) = [s for s in fitted.scores if (s.weights, s.hardware) == ("all", "all")]
    held = tables.held_out(known[0])
    assert score.held == held.sum() and score.fitted == (~held).sum()
    assert 0.2 < held.mean() < 0.3
    assert score.median == pytest.approx(0.67 * 0.03, rel=0.3)
    assert score.sigma == pytest.approx(0.03, rel=0.3)


def test_uncertainty_covers_the_truth(fitted: operators.Fitted) -> None:
    """Constants that all chips share, with their standard errors: within four of them and the drop of small factors.

    A rate or a floor alone is not one of them: only its product with a generation's factor can be told from timings.
    """
    of = {c.name: c for c in fitted.constants}
    for name, true in (("read", 0.8), ("chain_s", 0.9e-9)):
        c = of[f"kernels.gemm.{name}"]
        assert c.sigma > 0
        assert abs(np.log(c.value / true)) < 4 * c.sigma + 0.05


def test_order_of_rows_does_not_matter(known: tuple[pl.DataFrame, dict[str, Any]], fitted: operators.Fitted) -> None:
    again = operators.fit(known[0].reverse(), SHIPPED, LIBRARY, only=["gemm"])
    assert text_of(again.preset, "x") == text_of(fitted.preset, "x")


def test_a_slow_library_is_left_out() -> None:
    frame = shapes(400, ["h100_sxm_80gb"], ["bf16"])
    slow = (frame["library"] == "two").to_numpy()
    keep = operators.usual_libraries(frame, np.where(slow, -0.3, 0.02))
    assert (keep == ~slow).all()
    assert operators.usual_libraries(frame, np.where(slow, -0.01, 0.02)).all()


def test_the_split_does_not_know_the_machine() -> None:
    a, b = shapes(300, ["h100_sxm_80gb"], ["bf16"]), shapes(300, ["gb300_nvl72"], ["bf16"])
    assert (tables.held_out(a) == tables.held_out(b)).all()


# --- every kind of kernel, at the shipped constants ---------------------------------------------------------------

ROWS: dict[str, dict[str, Any]] = {
    "gemm": {"m": 64, "n": 8192, "k": 4096, "weights": "fp8_block", "activations": "fp8_block"},
    "experts": {"m": 64, "n": 2048, "k": 7168, "heads": 256, "kv_heads": 8, "tp": 1, "ep": 8, "matrices": 3},
    "attention": {"m": 64, "n": 4096, "k": 128, "heads": 32, "kv_heads": 8, "weights": "fp8"},
    "mla": {"m": 64, "n": 4096, "heads": 16, "weights": "fp8"},
    "prefill": {"m": 2, "n": 4096, "k": 128, "heads": 32, "kv_heads": 8},
    "reduce": {"m": 1 << 20, "ep": 8},
    "gather": {"m": 1 << 20, "ep": 8},
    "exchange": {"m": 1 << 20, "ep": 8},
    "dispatch": {"m": 128, "k": 7168, "kv_heads": 8, "ep": 8, "weights": "fp8"},
    "combine": {"m": 128, "k": 7168, "kv_heads": 8, "ep": 8},
}


@pytest.mark.parametrize("kind", tables.KINDS)
def test_every_kind_is_never_faster_than_the_roofline(kind: str) -> None:
    """A timing of each kind on three machines, `measured` against `ideal`."""
    row = {"kind": kind, "library": "x", "weights": "bf16", "activations": "bf16", "seconds": 1.0, **ROWS[kind]}
    frame = tables._shaped(pl.DataFrame([{**row, "hardware": h} for h in ("h100_sxm_80gb", "mi300x", "gb300_nvl72")]))
    measured = operators.predicted_s(frame, SHIPPED, LIBRARY)
    ideal = operators.predicted_s(frame, LIBRARY.raw("efficiency", "ideal"), LIBRARY)
    assert np.isfinite(measured).all() and (ideal > 0).all()
    assert (measured > ideal).all() and (measured < 50 * ideal + 1e-4).all()


# --- relatives ---------------------------------------------------------------------------------------------------

PRESET: dict[str, Any] = {
    "math": 1.0,
    "kernels": {"gemm": {"math": 0.8, "fp8": {"math": 0.7}, "weight_only": {"t0_s": 2.0}, "int4_bf16": {"t0_s": 3.0}}},
    "serving": {
        "first": 0.8,
        "first_s": {"default": 0.04},
        "launch_s": {"default": 4e-4, "experts": 3.0},
        "handoff": 2.0,
        "band": {
            "measured": {"tpot": {"undrafted": [0.8, 1.2], "drafted": [0.7, 1.4]}, "first": {"aggregated": [0.5, 2.0]}},
            "inherited": {"tpot": {"undrafted": [0.5, 2.0], "drafted": [0.5, 2.0]}},
            "unrelated": {"tpot": {"undrafted": [0.3, 3.0], "drafted": [0.3, 3.0]}},
        },
    },
    "generations": {
        "old": {"vendor": "A", "year": 2020, "math": 0.5},
        "new": {"vendor": "A", "year": 2024, "math": 0.9},
        "new_ultra": {"vendor": "A", "year": 2024, "math": 0.95},
        "other": {"vendor": "B", "year": 2030, "math": 0.1},
    },
}


@pytest.mark.parametrize(
    ("generation", "vendor", "relative", "math"),
    [
        ("old", "A", "old", 0.5),
        ("next", "A", "new_ultra", 0.95),  # of one year the one that is named last
        ("next", "B", "other", 0.1),
        ("next", "C", None, 1.0),
        (None, None, None, 1.0),
    ],
)
def test_relatives(generation: str | None, vendor: str | None, relative: str | None, math: float) -> None:
    assert relative_of(PRESET, generation, vendor) == relative
    assert efficiency_for(PRESET, generation, vendor)["math"] == math
    band = band_of(PRESET, generation, vendor)
    own = generation == "old"
    assert band.inherited is not own
    unmeasured = (0.3, 3.0) if relative is None else (0.5, 2.0)
    assert band.of("tpot", "undrafted") == ((0.8, 1.2) if own else unmeasured)
    assert band.of("tpot", "drafted") == ((0.7, 1.4) if own else unmeasured)
    assert np.isnan(band.of("tok_s_gpu", "aggregated")).all()
    if own:
        assert band.first("aggregated") == pytest.approx((0.5 * 0.8, 2.0 * 0.8, 0.04 / 0.8))
        assert band.launch_s == pytest.approx((4e-4 / 0.8, 12e-4 / 0.8))


def test_a_preset_without_bands_or_with_those_of_times_alone() -> None:
    without = band_of({**PRESET, "serving": {}}, "old", "A")
    assert np.isnan(without.of("tpot", "undrafted")).all() and np.isnan(without.first("aggregated")).all()
    times = {"undrafted": [0.8, 1.25], "drafted": [0.5, 2.0], "inherited": [0.4, 4.0]}
    old = band_of({**PRESET, "serving": {"band": times}}, "old", "A")
    assert old.of("tpot", "undrafted") == (0.8, 1.25)
    assert old.of("tok_s_gpu", "aggregated") == pytest.approx((0.8, 1.25))
    assert band_of({**PRESET, "serving": {"band": times}}, None, "C").of("tpot", "drafted") == (0.4, 4.0)


def test_constants_of_a_format() -> None:
    gemm = PRESET["kernels"]["gemm"]
    assert kernel_constants(gemm, "fp8", "fp8_block") == {"math": 0.7}
    assert kernel_constants(gemm, "bf16", "mxfp4") == {"math": 0.8, "t0_s": 2.0}
    assert kernel_constants(gemm, "bf16", "int4") == {"math": 0.8, "t0_s": 3.0}
    assert kernel_constants(gemm, "bf16", None) == {"math": 0.8}
    assert kernel_constants(gemm, "int8", "int8") == {"math": 0.7}  # the other 8-bit unit's
    assert kernel_constants({**gemm, "int8": {"math": 0.9}}, "int8", "int8") == {"math": 0.9}


def test_what_a_kind_does_not_say_it_takes_from_elsewhere() -> None:
    """Inputs and outputs move as weights do, a link is as the all-reduce's; `served` slows rates and floors alike."""
    hardware, p = as_record(LIBRARY.record("hardware", "h100_sxm_80gb")), Precision(weights="fp8", activations="fp8")
    preset = operators.bare(START)
    plain = resolve(hardware, p, preset).machine
    assert plain.attention.write_bytes_per_s == plain.attention.read_bytes_per_s == plain.attention.input_bytes_per_s
    assert plain.exchange.scaleout_bytes_per_s == plain.reduce.scaleout_bytes_per_s
    preset["kernels"]["experts"]["fp8"] = {"served": 1.25}
    slow = resolve(hardware, p, preset).machine
    assert slow.experts.flops_per_s == pytest.approx(plain.experts.flops_per_s / 1.25)
    assert slow.experts.read_bytes_per_s == pytest.approx(plain.experts.read_bytes_per_s / 1.25)
    assert slow.experts.t0_s == pytest.approx(plain.experts.t0_s * 1.25)
    preset["kernels"]["gemm"]["fp8"]["read"] = 1.5  # no share of a peak is above 1, unless a fit cuts afterwards
    assert resolve(hardware, p, preset).machine.gemm_ffn.read_bytes_per_s == hardware.hbm_bytes_per_s
    uncut = resolve(hardware, p, preset, cut=False).machine
    assert uncut.gemm_ffn.read_bytes_per_s == pytest.approx(1.5 * hardware.hbm_bytes_per_s)


def test_only_factors_that_pay_stay() -> None:
    """Of three numbers the one that explains the residuals stays, a free one always."""
    rng = np.random.default_rng(0)
    jac = rng.normal(size=(200, 3))
    x = np.array([0.5, 0.01, 0.3])
    fun = 0.1 * rng.normal(size=200)
    kept = operators.paying(x, [0.0, 0.0, 0.0], jac, fun, [False, False, False], 0.1)
    assert kept.tolist() == [True, False, True]
    assert operators.paying(x, [0.0, 0.0, 0.0], jac, fun, [False, True, False], 1e9).tolist() == [False, True, False]


@pytest.mark.parametrize("name", LIBRARY.choices("hardware"))
def test_every_machine_has_constants(name: str) -> None:
    """Its own, a relative's of its maker, or the common ones; a relative is never another maker's."""
    lineage = LIBRARY.record("hardware", name).lineage
    found = relative_of(SHIPPED, **lineage)
    if lineage["generation"] in SHIPPED["generations"]:
        assert found == lineage["generation"]
    elif found is not None:
        assert SHIPPED["generations"][found]["vendor"] == lineage["vendor"]
    else:
        assert lineage["vendor"] not in {g["vendor"] for g in SHIPPED["generations"].values()}


def test_rubin_takes_the_newest_blackwell_and_trainium_the_common_constants() -> None:
    for name, relative in (("rubin_vr200_nvl72_ex_nvl144", "blackwell_ultra"), ("trainium3", None), ("tpu_v5p", None)):
        assert relative_of(SHIPPED, **LIBRARY.record("hardware", name).lineage) == relative


# --- files -------------------------------------------------------------------------------------------------------


def test_a_preset_survives_its_file() -> None:
    assert OmegaConf.to_container(OmegaConf.create(text_of(SHIPPED, "measured"))) == SHIPPED


@pytest.mark.parametrize("value", [1e-9, 0.1 + 0.2, 1e20, 3, True, None, "a_b", "no", "1x", [1.0, {"a": "b"}]])
def test_values_survive_yaml(value: Any) -> None:
    back = OmegaConf.to_container(OmegaConf.create(f"x: {scalar(value)}"))
    assert isinstance(back, dict)
    assert back["x"] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_the_shipped_files_belong_together() -> None:
    """Every constant of kernels and links in the YAML is the one in the table beside it.

    Serving points correct no kernel; the start of dispatch and combine alone is theirs: frameworks add to it.
    """
    table = pl.read_csv(conf_dir() / "efficiency" / "measured.csv")
    assert table.height > 50
    for name, value in table.filter(pl.col("kind").is_in(operators.GROUPS)).select("name", "value").iter_rows():
        shipped = operators._at(SHIPPED, tuple(name.split(".")))
        if name == "links.experts.t0_s":
            assert 1.0 < shipped / value < 8.0
        else:
            assert shipped == value, name


def test_targets_on_held_out_rows() -> None:
    """Median errors of the shipped fit, on machines with a scale-up link, as its own table states them."""
    errors = pl.read_csv(conf_dir() / "efficiency" / "measured_errors.csv").filter(pl.col("hardware") == "served")
    median = {(k, w): e for k, w, e in errors.select("kind", "weights", "median").iter_rows()}
    assert median["gemm", "bf16"] < 0.08
    assert max(median["gemm", w] for w in ("fp8_block", "nvfp4")) < 0.11
    assert median["gemm", "fp8"] < 0.11
    assert max(median["attention", "bf16"], median["attention", "fp8"]) < 0.12
    assert median["experts", "all"] < 0.15


# --- a user's own timings ----------------------------------------------------------------------------------------


def own_file(folder: Path, frame: pl.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    frame.select(c for c in tables.COLUMNS if frame[c].null_count() < frame.height).write_csv(folder / "kernels.csv")
    return folder


def test_a_new_chip_from_one_small_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """120 timings of a chip whose GEMMs reach 0.6 of the rate of its relative: only that generation changes."""
    rubin = "rubin_vr200_nvl72_ex_nvl144"
    frame = shapes(120, [rubin], ["fp8"]).with_columns(pl.col("m") * 4.0)
    truth = copy.deepcopy(operators.bare(SHIPPED))
    relative = truth["generations"]["blackwell_ultra"]
    slower = copy.deepcopy(relative)
    base = slower.setdefault("factors", {}).setdefault("gemm", {}).get("math", 1.0)
    slower["factors"]["gemm"]["math"] = base * 0.6
    truth["generations"]["rubin"] = slower
    data = own_file(tmp_path / "data", timed(frame, truth, 0.02))
    out = tmp_path / "out"
    assert calibrate.main([f"data={data}", f"out={out}", "fit=generations", "efficiency=measured"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"gemm +fp8 +served", said)
    written = OmegaConf.to_container(OmegaConf.load(out / "measured.yaml"))
    assert isinstance(written, dict)
    assert written["generations"]["rubin"]["factors"]["gemm"]["math"] == pytest.approx(base * 0.6, rel=0.1)
    assert written["generations"]["rubin"]["vendor"] == "NVIDIA"
    rest = {k: v for k, v in written["generations"].items() if k != "rubin"}
    assert rest == SHIPPED["generations"] and written["kernels"] == SHIPPED["kernels"]
    assert sorted(p.name for p in out.iterdir()) == ["measured.csv", "measured.yaml", "measured_errors.csv"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind,hardware\ngemm,h100_sxm_80gb\n", "no column seconds"),
        ("kind,hardware,seconds,depth\ngemm,h100_sxm_80gb,1,1\n", "no such column depth"),
        ("kind,hardware,seconds\ngem,h100_sxm_80gb,1\n", "kind=gem"),
        ("kind,hardware,m,n,seconds\ngemm,h100_sxm_80gb,1,1,1\n", "needs k"),
        ("kind,hardware,m,n,k,weights,seconds\ngemm,h100_sxm_80gb,1,1,1,fp9,1\n", "weights=fp9"),
        ("kind,hardware,m,n,k,seconds\ngemm,h100_sxm_80gb,1,1,1,-1\n", "without a positive time"),
        ("kind,hardware,m,n,k,seconds\ngemm,h101,1,1,1,1\n", "hardware=h101"),
    ],
)
def test_bad_files(text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels.csv").write_text(text)
    out = tmp_path / "out"
    assert calibrate.main([f"data={tmp_path}", f"out={out}", "efficiency=measured"]) == 1
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    assert not out.exists()


def test_bad_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        ([], "data="),
        ([f"data={tmp_path}"], "holds neither"),
        ([f"data={tmp_path / 'no'}"], "no such folder"),
        ([f"data={tmp_path}", "fit=some"], "fit=some"),
        ([f"data={tmp_path}", "fit=generations", "efficiency=ideal"], "no generations"),
    ):
        assert calibrate.main(["efficiency=measured", *words] if "efficiency=ideal" not in words else words) == 1
        assert complaint in capsys.readouterr().err
    with pytest.raises(BadInput, match="no such folder"):
        tables.read(tmp_path / "no")
