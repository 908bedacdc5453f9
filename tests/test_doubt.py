"""What doubt about accuracy does to a frontier, against brute force on the stored points of real sweeps."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweep
from pipelines import frontier as frontier_pipeline
from pipelines import sweep as pipeline
from sweep import accuracy, doubt, run
from sweep.accuracy import AccuracyConfig, law_of
from sweep.errors import BadInput
from sweep.evaluate import accuracy_tables
from sweep.frontier import nondominated, tie_front
from sweep.report.document import ranges_apart
from tests.conftest import make_study

MODELS = "llama_3_1_8b, qwen3_14b, qwen3_32b, qwen3_30b_a3b, qwen3_235b_a22b"
GRID = [
    "grid=none",
    f"grid.model=[{MODELS}, {{family: dense, grid: {{n_layers: [8, 48]}}}}]",
    "grid.hardware=[h100_sxm_80gb, gb300_nvl72]",
    "grid.precision=[fp8, nvfp4]",
    "grid.layout={gpus: [1, 2, 8], tpa: pow2, kvp: [1], dpa: divisors, ep: divisors}",
    "grid.workload={batch: {pow2: [1, 64]}, context: [2048, 65536]}",
    "frontier.by=[hardware, workload.context]",
    "efficiency=ideal",
]
OBJECTIVES = ["tok_s_gpu", "tok_s_user"]
BY = ["hardware", "workload.context"]


@pytest.fixture(scope="module")
def stored(outputs: Path) -> Path:
    directory = outputs / "doubted"
    words = [*GRID, "store.rows=all", "frontier.epsilon=ties", "report=false", f"output={directory}"]
    assert pipeline.main(words) == 0
    return directory


def manifest(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return found


def losses(points: pl.DataFrame, study: Any, settings_: AccuracyConfig) -> np.ndarray:
    """Loss of stored points under another law."""
    space = run.plan(study).space
    table = np.asarray(accuracy_tables(space, study, [settings_])[0].loss, dtype=np.float64)
    rows = points["point_id"].to_numpy() // space.per_row
    i_model, i_machine, _ = space.indices(rows)
    return table[i_model * len(space.machines) + i_machine]


def on_front(points: pl.DataFrame, level: np.ndarray, objectives: list[str]) -> set[int]:
    """Ids of points that no other of their group beats: by definition, one after the other."""
    found: set[int] = set()
    frame = points.with_columns(level=pl.Series(level))
    for _, group in frame.group_by(BY):
        v = group.select("level", *objectives).to_numpy().astype(np.float64)
        for i in range(len(v)):
            if not ((v >= v[i]).all(axis=1) & (v > v[i]).any(axis=1)).any():
                found.add(int(group["point_id"][i]))
    return found


# --- Robust points ---------------------------------------------------------------------------------------------------


def robust_by_brute_force(directory: Path, study: Any, objectives: list[str]) -> set[int]:
    points = sweep.scan(directory).filter("feasible").collect()
    found = on_front(points, points["accuracy"].to_numpy(), objectives)
    for other in (AccuracyConfig(law="geo_mean", w=0.5), AccuracyConfig(shape_term=False, kv_term=False)):
        found &= on_front(points, -losses(points, study, other), objectives)
    return found


def test_robust_points_are_those_on_every_law_s_frontier(stored: Path, outputs: Path) -> None:
    study = make_study(*GRID)
    expected = robust_by_brute_force(stored, study, OBJECTIVES)
    front = sweep.scan(stored, "frontier").collect()
    assert 0 < len(expected) < front.height  # some frontier points fall to another law
    assert set(front.filter("robust")["point_id"]) == expected
    about = manifest(stored)["robust"]
    assert about["computed"] and about["robust"] == len(expected)
    assert set(about["laws"]) == {"geo_mean w=0.5", "shape and KV terms off"}
    streamed = outputs / "doubted_streamed"
    assert pipeline.main([*GRID, "report=false", "store.rows=frontier", f"output={streamed}"]) == 0
    again = sweep.scan(streamed, "frontier").collect()
    assert set(again.filter("robust")["point_id"]) == expected
    assert set(again["point_id"]) == set(front["point_id"])


def test_robust_with_objectives_that_the_device_filter_does_not_know(stored: Path, outputs: Path) -> None:
    directory = outputs / "doubted_generic"
    words = ["frontier.objectives=[-loss, tok_s_gpu, tok_s_user, max_batch]", "frontier.robust=true", "report=false"]
    assert pipeline.main([*GRID, *words, "store.rows=frontier", f"output={directory}"]) == 0
    front = sweep.scan(directory, "frontier").collect()
    expected = robust_by_brute_force(stored, make_study(*GRID), [*OBJECTIVES, "max_batch"])
    assert set(front.filter("robust")["point_id"]) == expected


def test_robust_says_what_was_not_computed(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "AUTO_POINTS", 10)
    monkeypatch.setattr(doubt, "AUTO_POINTS_SLOW", 10)  # a small grid has no device filter
    directory = outputs / "skipped"
    assert pipeline.main([*GRID, "report=false", "store.rows=frontier", f"output={directory}"]) == 0
    about = manifest(directory)["robust"]
    assert not about["computed"] and "frontier.robust=true does it" in about["why"]
    front = sweep.scan(directory, "frontier").collect()
    assert front.height and front["robust"].null_count() == front.height
    for word, why in (
        ("frontier.robust=false", "frontier.robust=false"),
        ("frontier.objectives=[tok_s_gpu,tok_s_user]", "accuracy is no objective"),
    ):
        not_run = run.Run(run.plan(make_study(*GRID, word)), directory, config_yaml="")
        assert why in doubt.verdict(not_run).about()["why"]


@settings(deadline=None, max_examples=200)
@given(data=st.data(), n=st.integers(1, 12))
def test_movers_are_all_that_can_beat_a_front_anew(data: st.DataObject, n: int) -> None:
    draw = st.lists(st.integers(0, 4), min_size=n, max_size=n)
    before, after = (np.array(data.draw(draw), dtype=np.float64) for _ in range(2))
    front = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n)))
    found = doubt.movers(before, after, front)
    for q in range(n):
        expected = any(
            before[q] <= before[p] and after[q] >= after[p] and (before[q], after[q]) != (before[p], after[p])
            for p in front
        )
        assert found[q] == expected


def test_alternates_leave_out_the_law_in_use() -> None:
    assert list(doubt.alternates(AccuracyConfig())) == ["geo_mean w=0.5", "shape and KV terms off"]
    assert "geo_mean w=0.5" not in doubt.alternates(AccuracyConfig(law="geo_mean"))
    assert "ling_besiroglu" in doubt.alternates(AccuracyConfig(law="log_compute"))


# --- Ties ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.tuples(*[st.integers(0, 5)] * 3, st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=30),
    eps=st.sampled_from([(1.0, 2.0), (2.0, 3.0), (0.5, 0.25), (1.0, 1.0)]),
)
def test_tie_front_is_its_definition(rows: list[tuple[int, ...]], eps: tuple[float, float]) -> None:
    table = np.array(rows)
    v, kind, group = table[:, :3].astype(np.float64), table[:, 3], table[:, 4]
    expected = np.ones(len(v), dtype=bool)
    for p in range(len(v)):
        for q in range(len(v)):
            if group[p] != group[q] or not (v[q, 1:] >= v[p, 1:]).all():
                continue
            if v[q, 0] == v[p, 0] and kind[p] == kind[q]:
                expected[p] &= not (v[q] > v[p]).any()
            else:
                expected[p] &= not v[q, 0] >= v[p, 0] + eps[int(kind[p] != kind[q])]
    found = tie_front(v, kind, *eps, groups=group)
    assert np.array_equal(found, expected)
    assert (found >= nondominated(v, group)).all()


def test_ties_of_a_sweep_are_those_of_its_stored_points(stored: Path, tmp_path: Path) -> None:
    tied = pl.read_parquet(stored / "epsilon.parquet")
    front = set(sweep.scan(stored, "frontier").collect()["point_id"])
    assert set(tied.filter("on_frontier")["point_id"]) == front
    points = sweep.scan(stored).filter("feasible").collect()
    study = make_study(*GRID)
    space = run.plan(study).space
    i_model = points["point_id"].to_numpy() // space.per_row // space.n_layouts // len(space.machines)
    moe = np.asarray(space.model.n_experts)[i_model] > 0
    expected: set[int] = set()
    frame = points.with_columns(moe=pl.Series(moe))
    for _, g in frame.group_by(BY):
        loss, other = g["loss"].to_numpy().astype(np.float64), g.select(OBJECTIVES).to_numpy().astype(np.float64)
        kind = g["moe"].to_numpy()
        for p in range(g.height):
            faster = (other >= other[p]).all(axis=1)
            lead = np.where(kind == kind[p], 0.010, 0.03)
            same = (loss == loss[p]) & (kind == kind[p])
            beats = faster & np.where(same, (other > other[p]).any(axis=1), loss <= loss[p] - lead)
            if not beats.any():
                expected.add(int(g["point_id"][p]))
    assert set(tied["point_id"]) == expected and len(expected) > len(front)
    assert manifest(stored)["epsilon"]["tied"] == len(expected) - len(front)
    assert frontier_pipeline.main([str(stored), "--epsilon", "ties", "--out", str(tmp_path)]) == 0
    assert set(pl.read_parquet(tmp_path / "frontier.parquet")["point_id"]) == expected


@pytest.mark.parametrize("word", ["frontier.epsilon=-1", "frontier.epsilon=tie", "frontier.robust=perhaps"])
def test_settings_of_doubt_that_mean_nothing_are_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main([*GRID, word, "output=/nowhere/at/all"]) == 1
    err = capsys.readouterr().err
    assert word.split("=")[0] in err and len(err.strip().splitlines()) == 1


# --- Ranges left -----------------------------------------------------------------------------------------------------


def test_ranges_left_are_named_in_files_and_on_stderr(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front = sweep.scan(stored, "frontier").collect()
    counted = front.with_columns(n=pl.col("ranges_left").str.split(", ").list.len())
    assert (counted["n"] == counted["extrapolation"]).all()
    by_model = dict(counted.group_by("model").agg(pl.col("ranges_left").first()).iter_rows())
    assert by_model["llama_3_1_8b"] == "tokens"
    assert by_model["qwen3_30b_a3b"].startswith("tokens, n_eff, compute, moe_total")
    about = manifest(stored)["extrapolation"]
    assert about["models"] == 7 and about["left"]["tokens"] == 7 and about["left"]["moe_total"] == 2
    assert about["ranges"]["tokens"]["high"] == 318e9
    assert pipeline.main([*GRID, "store.rows=all", "frontier.epsilon=ties", "report=false", f"output={stored}"]) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("warning")]
    assert len(lines) == 1 and "tokens (all models)" in lines[0] and "moe_total (2 of 7)" in lines[0]


def test_points_inside_all_ranges_warn_of_nothing() -> None:
    study = make_study("model=dense", "model.n_layers=16", "model.d_model=1024", "accuracy.tokens=1e11", "grid=none")
    study = dataclasses.replace(study, accuracy=accuracy.replace_settings(study.accuracy, law="geo_mean"))
    found = doubt.ranges(run.plan(study).space, study)
    assert set(found.left) <= {"score_tokens", "score_n_eff"}
    inside = dataclasses.replace(found, bits=found.bits * 0)
    assert inside.warning() is None and inside.left == {}


def test_overtrained_models_in_four_bits_are_lower_bounds() -> None:
    words = ["grid=none", "grid.model=[llama_3_1_8b, llama_3_1_70b]", "grid.precision=[fp8, nvfp4]"]
    study = make_study(*words)  # 36e12 tokens: 4500 and 510 per parameter
    assert doubt.ranges(run.plan(study).space, study).overtrained == 1
    eight = make_study(*words[:2], "grid.precision=[fp8]")
    assert doubt.ranges(run.plan(eight).space, eight).overtrained == 0


def test_points_are_drawn_apart_only_for_ranges_that_not_all_leave() -> None:
    frame = pl.DataFrame({"ranges_left": ["tokens", "tokens, n_eff", "tokens, moe_total"], "extrapolation": [1, 2, 2]})
    everywhere, somewhere, marked = ranges_apart(frame)
    assert (everywhere, somewhere) == (["tokens"], ["n_eff", "moe_total"])
    assert marked["_apart"].to_list() == [False, True, True]
    everywhere, somewhere, marked = ranges_apart(frame[:1])
    assert (everywhere, somewhere, marked["_apart"].to_list()) == (["tokens"], [], [False])


# --- Measured losses -------------------------------------------------------------------------------------------------

TRAINED = ["grid=none", "grid.model=[llama_3_1_8b, qwen3_14b]", "grid.precision=[fp8, nvfp4]", "grid.hardware=null"]


def measured_table(space_words: list[str], tmp_path: Path, text: str, **changes: Any) -> Any:
    file = tmp_path / "losses.csv"
    file.write_text(text)
    study = make_study(*space_words, "accuracy=measured", f"accuracy.table={file}")
    study = dataclasses.replace(study, accuracy=accuracy.replace_settings(study.accuracy, **changes))
    from sweep.evaluate import accuracy_table

    space = run.plan(study).space
    return accuracy_table(space, study), space


def test_measured_losses_replace_the_proxy(tmp_path: Path) -> None:
    text = "# ours\nmodel,loss,precision,loss_sigma\nllama_3_1_8b,2.05,,0.004\n"
    text += "llama_3_1_8b,2.07,nvfp4,\nqwen3_14b,1.99,,\n"
    table, space = measured_table(TRAINED[:3], tmp_path, text)
    loss = np.asarray(table.loss).reshape(space.n_models, len(space.machines))
    n_tot = 8.03e9
    assert loss[0, 0] == pytest.approx(2.05 + 0.001 * (n_tot / 8e9) ** -0.33 + 0.001, abs=1e-4)  # fp8, fp8 cache
    assert loss[0, 1] == pytest.approx(2.07, abs=1e-6)  # measured in the format: nothing is added
    sigma = np.asarray(table.loss_sigma).reshape(loss.shape)
    assert sigma[0, 0] == pytest.approx(math.hypot(0.004, 0.5 * (loss[0, 0] - 2.05)), rel=1e-3)
    score = np.asarray(table.accuracy).reshape(loss.shape)[1, 0]
    assert score == pytest.approx(0.1 + 0.9 / (1 + math.exp(-6.749 * (2.0298 - loss[1, 0]))), rel=1e-4)
    assert np.asarray(table.extrapolation).max() == 0


def test_rows_of_a_family_are_told_apart_by_its_shape(tmp_path: Path) -> None:
    words = ["grid=none", "grid.model=[{family: dense, grid: {n_layers: [16, 48]}}]"]
    text = "model,model.n_layers,loss\ndense,16,2.4\ndense,48,2.2\n"
    table, _ = measured_table(words, tmp_path, text)
    assert np.asarray(table.loss) == pytest.approx([2.402, 2.202], abs=1e-3)  # fp8 and its cache on top
    with pytest.raises(BadInput, match="two rows for one model"):
        measured_table(words, tmp_path, "model,loss\ndense,2.4\ndense,2.2\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,loss\nllama_3_1_8b,2.05", "no measured loss for qwen3_14b; .*accuracy.mix=true"),
        ("model,loss\nlama_3_1_8b,2.05", "no row for any model of the grid"),
        ("model,lss\nllama_3_1_8b,2.05", "no column loss"),
        ("model,loss\nllama_3_1_8b,low", "must be a number"),
        ("model,loss\nllama_3_1_8b,-2", "between 0 and 20"),
        ("model,loss,model.n_layer\nllama_3_1_8b,2,16", "nearest: model.n_layers"),
    ],
)
def test_tables_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message) as error:
        measured_table(TRAINED[:3], tmp_path, text)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def mixed(outputs: Path) -> Path:
    """A sweep of which two models have been trained."""
    directory = outputs / "mixed"
    table = outputs / "losses.csv"
    table.write_text("model,loss\nqwen3_14b,1.99\nqwen3_32b,1.93\n")
    words = [*GRID, "accuracy=measured", f"accuracy.table={table}", "accuracy.mix=true", "store.rows=frontier"]
    assert pipeline.main([*words, f"output={directory}"]) == 0
    return directory


def test_measured_and_predicted_are_never_mixed_silently(
    mixed: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = outputs / "losses.csv"
    words = [*GRID, "accuracy=measured", f"accuracy.table={table}", "store.rows=frontier", "report=false"]
    refused = outputs / "refused"
    assert pipeline.main([*words, f"output={refused}"]) == 1
    assert "accuracy.mix=true" in capsys.readouterr().err and not refused.exists()
    assert pipeline.main([*words, "accuracy.mix=true", f"output={mixed}"]) == 0  # complete already
    assert "measured and predicted losses stand side by side" in capsys.readouterr().err
    front = sweep.scan(mixed, "frontier").collect()
    assert set(front["loss_source"]) == {"measured", "proxy"}
    assert set(front.filter(pl.col("loss_source") == "measured")["model"]) <= {"qwen3_14b", "qwen3_32b"}
    assert manifest(mixed)["loss_source"] == "mixed"
    assert "**Measured and predicted losses stand side by side" in (mixed / "report.md").read_text()
    table.write_text("model,loss\nqwen3_14b,1.98\nqwen3_32b,1.93\n")
    changed = make_study(*words[:-1], "accuracy.mix=true")
    assert run.plan(changed).sha256 != manifest(mixed)["config_sha256"]  # the content counts, not the name


def test_every_table_and_chart_says_what_accuracy_is(mixed: Path) -> None:
    label = manifest(mixed)["accuracy_label"]
    assert label.startswith("MMLU-Pro of measured losses (losses.csv) by the score map of Qwen3; without a measurement")
    assert label.endswith("MMLU-Pro if trained like Qwen3 (36T tokens), iso-token")
    text = (mixed / "report.md").read_text()
    for name in ("summary", "best", "frontier", "notes"):
        section = text.split(f"<!-- codesign:begin {name} -->")[1].split("<!-- codesign:end")[0]
        assert label in section, name
    for chart in ("frontier.svg", "time.svg"):
        assert label in (mixed / chart).read_text(), chart
    assert "hollow points: outside the accuracy proxy's ranges of tokens" in (mixed / "frontier.svg").read_text()
    assert "points stay on the frontier whichever law of accuracy is used" in text
    assert "ties with" in text and "Validity ranges left, by model" in text


def test_measured_settings_make_a_law_with_the_map_s_doubt() -> None:
    law = law_of(AccuracyConfig(table="losses.csv"))
    assert law.score_sigma == 0.08
    assert law_of(AccuracyConfig(slope=7.0, midpoint=2.0, recipe="llama3")).score_sigma == 0.0
    assert "score map given" in accuracy.label(AccuracyConfig(slope=7.0, midpoint=2.0))
