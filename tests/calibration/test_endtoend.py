"""The fit of whole services: what it changes, what it predicts, what it refuses to learn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

from sweep.calibration import endtoend
from sweep.calibration.endtoend import Calibrated, Sample, constants, design, knobs_of, solve, turn
from sweep.calibration.operators import paying
from sweep.calibration.predict import KINDS, Knobs, make_knobs, make_table, predict, turned
from sweep.calibration.rows import Catalogue, Measured, Row, Unanswered, to_point
from sweep.calibration.score import Results, rank_correlation, score
from sweep.calibration.start import START, Count, count
from sweep.calibration.start import numbers as numbers_of
from sweep.calibration.validate import predict_rows, read_rows
from sweep.config import Library, ServingConfig, check_serving, conf_dir
from sweep.cost.result import evaluate_point
from sweep.cost.serving import first_token_s
from sweep.point import PHI_MOST
from sweep.report.validation import find, headline
from tests.cost.points import numbers, scalars

SHIPPED = Library([conf_dir()]).raw("efficiency", "measured")
DATA = Path(__file__).parent.parent / "data" / "measured_sample.csv"  # public rows, each with its source and licence


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read_rows(DATA)


@pytest.fixture(scope="module")
def points(rows: list[Row], library: Library) -> list[Measured | None]:
    catalogue = Catalogue(library)
    out: list[Measured | None] = []
    for row in rows:
        try:
            out.append(to_point(row, catalogue))
        except Unanswered:
            out.append(None)
    return out


@pytest.fixture(scope="module")
def sample(rows: list[Row], points: list[Measured | None], library: Library) -> Sample:
    return endtoend.sample(rows, points, Catalogue(library), library.raw("efficiency", "measured"))


def test_a_table_predicts_what_the_cost_model_says_of_one_point(sample: Sample) -> None:
    """The vectorised path against `evaluate_point` on plain float64 numbers: decode, prefill, drafting."""
    some = [7, 40, 99]
    plain = dataclasses.replace(sample.knobs, phi=np.zeros(len(sample)))
    batch = np.full(len(sample), 16.0)
    table = predict(sample.table, plain, batch=batch)
    with numbers():
        cut = turned(sample.table.row, sample.table.peak, Knobs())
    for i in some:
        row = scalars_at(cut, i)
        context = scalars_at(sample.table.context, i)
        with numbers():
            _, at_context, point = evaluate_point(row, np.float64(16.0), context, KINDS)
        assert table.tpot_s[i] == pytest.approx(float(point.tpot_s), rel=2e-4)
        if sample.points[i].prefill == sample.points[i].decode:
            assert table.prefill_s[i] == pytest.approx(float(at_context.ttft_s), rel=2e-4)


def scalars_at(record: Any, i: int) -> Any:
    return scalars(jax.tree.map(lambda x: np.asarray(x)[i], record))


def some_fit(s: Sample) -> Calibrated:
    """Constants that nobody fitted, to carry through a preset."""
    rng = np.random.default_rng(3)
    step = constants(s)
    theta = rng.normal(0.0, 0.4, len(step))  # some kernels much faster: beyond the peak, where both are cut
    serving, acts = endtoend.serving_constants(s)
    serving_theta = rng.normal(0.0, 0.2, len(serving))
    knobs = knobs_of(s, step, design(s, step), theta)
    moved = {
        k: getattr(knobs, k)
        * np.exp(acts[:, [j for j, c in enumerate(serving) if c.knob == k]] @ serving_theta[
            [j for j, c in enumerate(serving) if c.knob == k]
        ])
        for k in endtoend.SERVING
    }  # fmt: skip
    knobs = dataclasses.replace(knobs, **moved)
    return Calibrated(
        step=tuple(step),
        step_theta=theta,
        step_sigma=theta * 0,
        serving=tuple(serving),
        serving_theta=serving_theta,
        knobs=knobs,
        predicted=predict(s.table, knobs),
        generations=tuple(sorted(set(s.generation))),
    )


def test_a_turned_preset_predicts_what_the_knobs_did(
    rows: list[Row], points: list[Measured | None], library: Library
) -> None:
    catalogue = Catalogue(library)
    start = library.raw("efficiency", "measured")
    sample = endtoend.sample(rows, points, catalogue, start)
    fit = some_fit(sample)
    with numbers():
        m = turned(sample.table.row, sample.table.peak, fit.knobs).machine
    beyond = sample.table.row.machine.gemm_ffn.read_bytes_per_s / fit.knobs.memory > m.gemm_ffn.read_bytes_per_s * 1.01
    assert beyond.any() and not beyond.all()
    preset = turn(start, fit, {"measured": {"tpot": {"drafted": (0.7, 1.4)}}})
    again = predict(make_table(sample.points, catalogue, preset), make_knobs(sample.points, preset))
    for name in ("tpot_s", "ttft_s", "tok_s_gpu"):
        assert getattr(again, name) == pytest.approx(getattr(fit.predicted, name), rel=3e-3)
    assert preset["serving"]["band"] == {"measured": {"tpot": {"drafted": [0.7, 1.4]}}}
    assert "band" not in turn(start, fit)["serving"]


def test_the_fit_finds_constants_that_made_the_data(sample: Sample) -> None:
    """Times made by slow experts and a costly host: the fit explains them without being told, and drops the rest.

    With a scatter of 5 %; what stays of it is its median, 0.67 x 5 %.
    """
    step = constants(sample)
    truth = np.array([{"experts/fp8_block": 0.5, "host": 0.7}.get(c.name, c.mean) for c in step])
    made = predict(sample.table, knobs_of(sample, step, design(sample, step), truth))
    scatter = 0.05 * np.random.default_rng(4).standard_normal(len(sample))
    s = dataclasses.replace(sample, log_tpot=np.log(made.tpot_s) + scatter)
    before = np.abs(np.log(predict(s.table, s.knobs).tpot_s) - s.log_tpot)
    fit = solve(s, step, np.ones(len(s), dtype=bool), prior=0.01)
    assert np.median(before) > 0.05
    assert np.median(np.abs(fit.log_error)) < 0.67 * 0.05 * 1.1
    assert fit.value("experts/fp8_block") > 0.2 and fit.value("host") > 0.2
    free, means = [c.group == "all" for c in step], [c.mean for c in step]
    stays = paying(fit.theta, means, fit.jacobian, fit.residual, free, 0.1)  # of hundred rows: chance is worth 2 %
    kept = {c.name for c, stay in zip(step, stays, strict=True) if stay and c.group != "all"}
    assert kept == {"experts/fp8_block"}


def test_rows_left_out_do_not_move_the_fit(sample: Sample) -> None:
    step = constants(sample)
    keep = np.arange(len(sample)) % 3 > 0
    wild = dataclasses.replace(sample, log_tpot=np.where(keep, sample.log_tpot, sample.log_tpot + 3.0))
    a, b = (solve(s, step, keep, steps=2) for s in (sample, wild))
    assert a.theta == pytest.approx(b.theta, abs=1e-12)


def test_a_strong_prior_keeps_the_preset(sample: Sample) -> None:
    fit = solve(sample, constants(sample), np.ones(len(sample), dtype=bool), prior=1e9, steps=2)
    assert fit.theta == pytest.approx([c.mean for c in fit.constants], abs=1e-4)


@pytest.fixture(scope="module")
def results(rows: list[Row], library: Library) -> Results:
    return predict_rows(rows, library, library.raw("efficiency", "measured"))


def test_the_shipped_preset_on_a_sample_of_public_rows(results: Results) -> None:
    """Coverage and errors of `measured` on 124 rows of the data it was fitted on: a drift shows here first.

    The rows come from InferenceX, aiconfigurator-core, TensorRT-LLM, gpt-fast and others; each row names its source.
    Scores on rows that were not fitted are printed by `pipelines.calibrate`.
    """
    h = headline(results, find(results))
    assert h["complete_trusted_answered"] >= 0.98
    assert h["tpot"].median <= 0.14 and h["tpot"].p90 <= 0.45
    assert abs(h["tpot"].bias) <= 0.08
    assert h["rate_aggregated"].median <= 0.14 and h["rate_disaggregated"].median <= 0.25
    assert h["ttft_light"].median <= 0.30
    for key in ("in_band", "in_band_tok_s_gpu", "in_band_ttft"):
        assert 0.65 <= h[key] <= 0.92
    assert h["below_floor"] <= 0.01
    for low, best, high in (
        (results.tpot_low_s, results.tpot_s, results.tpot_high_s),
        (results.ttft_low_s, results.ttft_s, results.ttft_high_s),
        (results.tok_s_gpu_low, results.tok_s_gpu, results.tok_s_gpu_high),
    ):
        known = results.answered & np.isfinite(best)
        assert known.any() and (low < best)[known].all() and (high > best)[known].all()
    # every unanswered row says why
    assert all(bool(r) != a for r, a in zip(results.reasons, results.answered, strict=True))


def test_ideal_is_never_slower(results: Results) -> None:
    undrafted = np.array([p is not None and p.drafted == 0 for p in results.points])
    assert (results.floor_s[undrafted] < results.tpot_s[undrafted]).all()


def test_scores_by_hand() -> None:
    s = score(np.array([0.1, -0.2, 0.3, np.nan]))
    assert (s.n, s.median, s.bias) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert s.within_25 == pytest.approx(2 / 3)
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1.0)
    # scipy.stats.spearmanr([1, 2, 2, 4], [1, 3, 2, 4]) = 0.9487
    assert rank_correlation(np.array([1.0, 2, 2, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.9487, abs=1e-4)


def test_every_knob_is_used() -> None:
    """A knob that nothing reads would be fitted to nothing."""
    known = {f.name for f in dataclasses.fields(Knobs)}
    fitted = set(endtoend.COMMON) | set(endtoend.ARCHITECTURE) | {"experts"}
    assert known == fitted | set(endtoend.SERVING) | {"prefill"}


def test_no_fit_asks_for_more_prefill_than_a_setting_may(sample: Sample) -> None:
    """A share that a fit finds is one that `serving.phi` accepts, however far it would go."""
    phi = [c for c in constants(sample) if c.knob == "phi"]
    knobs = knobs_of(sample, phi, design(sample, phi), np.array([5.0]))
    assert knobs.phi.max() == PHI_MOST
    check_serving(ServingConfig(mode="aggregated", phi=float(knobs.phi.max())))
    check_serving(ServingConfig(mode="aggregated", phi=SHIPPED["serving"]["phi"]))


def test_a_first_token_waits_for_the_host(sample: Sample) -> None:
    """Short prompts take as long as their launches, whatever their length; long ones as their kernels."""
    launches = {"share": 0.9, "launch_s": 0.1, "frontend_s": 0.02}
    assert first_token_s(0.03, **launches) == first_token_s(0.06, **launches) == pytest.approx(0.12)
    assert first_token_s(0.5, **launches) == pytest.approx(0.9 * 0.5 + 0.02)


def test_few_constants() -> None:
    """What the shipped preset holds, counted from the file: few that a machine nobody has measured needs.

    A number that one is added for must buy its place: see `operators.WORTH` and `endtoend.WORTH`.
    """
    found = count(SHIPPED)
    assert found.machine <= 58 and found.service <= 10
    assert found.generations <= 20 and found.frameworks <= 13
    assert found.assumed <= 24
    # every fitted number of a kernel or a link stands in the table of constants with its uncertainty, and no other
    table = pl.read_csv(conf_dir() / "efficiency" / "measured.csv").filter(pl.col("kind") != "end_to_end")
    common = [name for name in table["name"].to_list() if not name.startswith("generations.")]
    overheads = ("layer_s", "host_s", "request_s")
    served = [p for p in numbers_of(SHIPPED) if p[0] == "kernels" and p[-1] == "served"]
    assert found.machine == len(common) + len(overheads) + len(served)


def test_count_by_hand() -> None:
    preset = {
        "tiles": START["tiles"],
        "kernels": {"gemm": {"math": 0.5, "overlap": START["kernels"]["gemm"]["overlap"], "chain_s": 0.0}},
        "generations": {
            "blackwell": {"vendor": "NVIDIA", "year": 2024, "floor": 0.7},
            "blackwell_ultra": {"vendor": "NVIDIA", "year": 2025, "floor": 0.7, "factors": {"gemm": {"math": 1.1}}},
        },
        "serving": {"phi": 1.0, "first_s": {"default": 0.1, "vllm": 0.2}, "band": {"measured": {"tpot": [0.8, 1.2]}}},
    }
    assert count(preset) == Count(machine=1, service=2, assumed=10, generations=2, frameworks=1)
