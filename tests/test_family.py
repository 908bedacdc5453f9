"""Scaling rules, machines by factors, dated prices, models from files: laws, and the real configuration."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import sweep as pipeline
from sweep import store
from sweep.config import Library, conf_dir
from sweep.errors import BadInput
from sweep.explain import explain
from sweep.family import HELD, SOLVED, held, prepared, scale_model, transformed, vintages
from sweep.report import tags
from sweep.space import build, filters
from tests.conftest import make_study

LIBRARY = Library([conf_dir()])
NAMES = LIBRARY.entries("model")
LLAMA = LIBRARY.record("model", "llama_3_1_70b").values
FILE = Path(__file__).parent / "hf_configs" / "gemma_4_31b.json"
one_of_the_models = st.sampled_from(NAMES)


def solvable(values: dict[str, Any], solve: str, hold: str) -> bool:
    """A dimension that the model has and that the held count depends on."""
    return bool(values.get(solve)) and not (hold == "params_active" and solve == "n_experts")


@given(name=one_of_the_models, solve=st.sampled_from(SOLVED), hold=st.sampled_from(HELD))
@settings(max_examples=60, deadline=None)
def test_factor_one_changes_nothing(name: str, solve: str, hold: str) -> None:
    values = LIBRARY.record("model", name).values
    other = next(k for k in ("d_model", "n_layers") if k != solve)
    assert scale_model(values, {other: 1.0, "solve": solve, "hold": hold, "round": 256}) == values
    assert scale_model(values, {}) == values


@given(
    name=one_of_the_models,
    factor=st.floats(0.5, 2.0),
    moved=st.sampled_from(("d_model", "n_layers")),
    solve=st.sampled_from(SOLVED),
    hold=st.sampled_from(HELD),
    multiple=st.sampled_from((128, 256, 512)),
)
@settings(max_examples=80, deadline=None)
def test_the_held_count_stays_within_rounding(
    name: str, factor: float, moved: str, solve: str, hold: str, multiple: int
) -> None:
    values = LIBRARY.record("model", name).values
    if solve == moved or not solvable(values, solve, hold):
        return
    try:
        found = scale_model(values, {moved: factor, "solve": solve, "hold": hold, "round": multiple})
    except BadInput as error:  # nothing else: no such shape
        assert "no factor between" in str(error)
        return
    if found == values:
        return
    goal = held(values, hold)
    step = 1 if solve in ("n_layers", "n_experts") else multiple
    assert found[solve] % step == 0

    def count(value: float) -> float:  # as it was solved, one step up or down
        return held({**found, solve: value}, hold)

    if solve in ("d_ff", "d_expert", "n_experts"):  # neighbours differ in this field alone
        error = abs(held(found, hold) - goal)
        low, high = found[solve] - step, found[solve] + step
        assert error <= abs(count(high) - goal) * (1 + 1e-9)
        if low >= max(step, values["top_k"] if solve == "n_experts" else step):
            assert error <= abs(count(low) - goal) * (1 + 1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.5, 2.0])
def test_wide_and_deep_models_of_one_size(factor: float) -> None:
    rules = {"d_model": factor, "hold": "params_total", "solve": "n_layers", "round": 256}
    shape = scale_model(LLAMA, rules)
    assert shape["d_model"] == factor * LLAMA["d_model"] and shape["d_ff"] == factor * LLAMA["d_ff"]
    assert shape["n_heads"] == factor * LLAMA["n_heads"] and shape["head_dim"] == LLAMA["head_dim"]
    per_layer = (held(shape, "params_total") - 2 * shape["vocab"] * shape["d_model"]) / shape["n_layers"]
    assert abs(held(shape, "params_total") - held(LLAMA, "params_total")) <= per_layer / 2 * 1.001


@pytest.mark.parametrize("aspect", [0.5, 2.0, 3.0])
def test_aspect_moves_width_and_depth_together(aspect: float) -> None:
    shape = scale_model(LLAMA, {"aspect": aspect})
    was = LLAMA["d_model"] / LLAMA["n_layers"]
    assert shape["d_model"] / shape["n_layers"] == pytest.approx(aspect * was, rel=0.02)
    assert held(shape, "params_total") == pytest.approx(held(LLAMA, "params_total"), rel=0.02)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"n_experts": 2.0, "hold": "params_total", "solve": "d_expert"}, "params_total"),
        ({"n_experts": 2.0, "top_k": 2.0, "hold": "params_active", "solve": "d_expert"}, "params_active"),
        ({"n_experts": 0.5, "hold": "params_total", "solve": "n_layers"}, "params_total"),
    ],
)
def test_more_experts_at_constant_size(rules: dict[str, Any], kept: str) -> None:
    moe = LIBRARY.record("model", "qwen3_235b_a22b").values
    shape = scale_model(moe, rules)
    assert shape["n_experts"] == rules["n_experts"] * moe["n_experts"]
    assert held(shape, kept) == pytest.approx(held(moe, kept), rel=0.03)
    other = "params_active" if kept == "params_total" else "params_total"
    finer = "top_k" in rules  # as many experts more per token: the same experts, cut finer
    assert (held(shape, other) == pytest.approx(held(moe, other), rel=0.03)) is finer


@given(name=one_of_the_models, factor=st.floats(0.3, 3.0))
@settings(max_examples=60, deadline=None)
def test_kinds_of_layers_follow_the_depth(name: str, factor: float) -> None:
    values = LIBRARY.record("model", name).values
    found = scale_model(values, {"n_layers": factor})
    for kinds in (("n_full_layers", "n_window_layers", "n_linear_layers"), ("n_dense_layers", "n_moe_layers")):
        was = sum(values.get(k) or 0 for k in kinds)
        if was == values["n_layers"]:
            assert sum(found.get(k) or 0 for k in kinds) == found["n_layers"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"d_model": 60.0, "hold": "params_total", "solve": "n_layers"}, "no factor between 1/64 and 64 keeps"),
        ({"d_model": 2.0, "hold": "params_total"}, "say which dimension to solve for"),
        ({"d_model": 2.0, "solve": "d_model"}, "has a factor already"),
        ({"d_model": 2.0, "solve": "d_expert"}, "this model has none; .*d_ff"),
        ({"aspect": 2.0, "d_model": 2.0}, "drop scale.d_model"),
        ({"aspect": 2.0, "solve": "d_ff"}, "drop model.scale.solve"),
    ],
)
def test_no_solution_is_an_error(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        scale_model(LLAMA, rules)


def test_experts_do_not_hold_the_active_count() -> None:
    moe = LIBRARY.record("model", "moe").values
    with pytest.raises(BadInput, match="no factor between"):
        scale_model(moe, {"d_model": 4.0, "solve": "n_experts", "hold": "params_active"})


# --- as a user says it -------------------------------------------------------------------------------------------


def test_shapes_at_constant_size_are_one_axis() -> None:
    space = build(make_study("experiment=shapes"))
    columns = space.axes[0].columns
    assert columns["model.scale.d_model"].tolist() == [0.5, 0.75, 1, 1.5, 2]
    assert columns["model.n_layers"][2] == 80 and (np.diff(columns["model.n_layers"]) < 0).all()
    assert columns["model"][2] == "llama_3_1_70b" and columns["model"][3].startswith("llama_3_1_70b[d_model 12288")
    total = held({**LLAMA}, "params_total")
    counts = [held({k: getattr(space.model, k)[i] for k in LLAMA}, "params_total") for i in range(5)]
    assert counts == pytest.approx([total] * 5, rel=0.03)


def test_settings_multiply_a_list_of_records() -> None:
    space = build(
        make_study(
            "grid=none",
            "grid.hardware=[h100_sxm_80gb,gb300_nvl72]",
            "grid.hardware.scale.hbm_bytes_per_s=[1,2]",
            "grid.model=[llama_3_1_8b,qwen3_8b]",
            "model.scale.n_layers=0.5",
        )
    )
    assert [r.status for r in space.hardware] == ["confirmed", "hypothetical"] * 2
    assert [r.values["hbm_bytes_per_s"] for r in space.hardware] == [3.35e12, 6.7e12, 8e12, 1.6e13]
    assert space.hardware[1].id == "h100_sxm_80gb[hbm_bytes_per_s x2]"
    assert space.model.n_layers.tolist() == [16, 18]
    found = store.provenance(space)
    assert found["gb300_nvl72[hbm_bytes_per_s x2]"]["hbm_bytes_per_s"] == "overridden"


def test_an_entry_may_have_rules_of_its_own() -> None:
    entries = f"[qwen3_8b,{{base: llama_3_1_8b, scale: {{d_model: [1,2]}}}},{{hf: {FILE}}}]"
    space = build(make_study("grid=none", f"grid.model={entries}", "hardware=h100_sxm_80gb"))
    assert space.model.d_model.tolist() == [4096, 4096, 8192, 5376]
    assert space.axes[0].columns["model"].tolist() == [
        "qwen3_8b", "llama_3_1_8b", "llama_3_1_8b[d_model 8192]", "gemma_4_31b",
    ]  # fmt: skip


def test_base_settings_apply_once() -> None:
    study = make_study("hardware=gb300_nvl72", "hardware.scale.link_bytes_per_s=2", "model.scale.d_ff=2")
    assert study.base["hardware"].values["link_bytes_per_s"] == 1.8e12
    assert prepared(study) is study
    space = build(study)
    assert space.hardware[0].values["link_bytes_per_s"] == 1.8e12
    assert space.model.d_ff.tolist() == [2 * 14336]
    assert study.base["model"].status == "hypothetical"


def test_one_point_of_a_scaled_axis_is_its_base() -> None:
    for words, depth in (([], 80), (["model.scale.d_model=2"], 20)):
        found = explain(make_study("experiment=shapes", "layout.tpa=8", *words))
        assert found.inputs["inputs"]["model"]["n_layers"] == depth


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardware.scale.hbm=2"], "hardware.scale.hbm: no such key; nearest: hbm_bytes"),
        (["hardware=h100_sxm_80gb", "hardware.scale.fp4_flops=2"], "h100_sxm_80gb has no such figure published"),
        (["hardware.scale.hbm_bytes=-1"], "must be a number greater than 0"),
        (["model.scale.d_model=0"], "must be a number greater than 0"),
        (["model.scale.hold=params"], "allowed are params_total, params_active"),
        (["model.scale.widht=2"], "no such key; nearest"),
        (["hardware=gb300_nvl72", "hardware.price=wholesale"], "has no such price; "),
        (["hardware=gb300_nvl72", "hardware.price=retail", "hardware.usd_per_hour=9"], "choose one"),
        (["grid.hardware=[h100_sxm_80gb,gb300_nvl72]", "grid.hardware.price=[retial]"], "no machine has such a price"),
        (["model=hf"], "model.path=null: name a config.json"),
        (["model=hf", "model.path=/no/such"], "model.path=/no/such: no such file"),
        (["model=qwen3_8b", f"model.path={FILE}"], "qwen3_8b has a shape of its own; say model=hf"),
        (["grid.model=[hf]"], "say model=hf model.path=FILE"),
        # three faults that catalogues in circulation have: a sparse peak, both directions of a link, a name that is not
        (["hardware=h100_sxm_80gb", "hardware.bf16_flops=1.979e15"], "a sparse peak is twice the dense one"),
        (["hardware=h100_sxm_80gb", "hardware.link_bytes_per_s=9e11"], "both directions are twice the one"),
        (["hardware=gb300"], "hardware=gb300: no such hardware; nearest: "),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(BadInput) as error:
        build(make_study("grid=none", *words))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16_flops: 1.979e15\nn_sm: 132\nlink_bytes_per_s: 4.5e11", "a sparse peak is twice the dense one"),
        ("bf16_flops: 9.89e14\nn_sm: 132\nlink_bytes_per_s: 9.0e11", "vendors print both"),
        ("bf16_flops: 9.89e14\nn_smm: 132", "no such key"),
    ],
)
def test_faults_in_a_file_of_ones_own(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(f"generation: hopper\nhbm_bytes: 8e10\n{text}\n")
    with pytest.raises(BadInput, match=message):
        Library([tmp_path]).record("hardware", "mine")


# --- prices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "usd"),
    [(None, 3.30), ("retail", 3.30), ("neocloud", 2.79), ("low", 2.31), ("older", 2.652), ("2026", 3.3)],
)
def test_a_price_by_its_label_or_date(wanted: str | None, usd: float) -> None:
    record = transformed(LIBRARY.record("hardware", "gb300_nvl72"), {"price": wanted})
    assert record.values["usd_per_hour"] == usd
    assert record.status == "confirmed"  # a published price makes no machine hypothetical
    assert record.about["price"].split()[-1] in ("retail", wanted, "hyperscaler")


@pytest.mark.parametrize("name", LIBRARY.entries("hardware"))
def test_dated_figures_are_of_the_default(name: str) -> None:
    record = LIBRARY.record("hardware", name)
    for key, figure in (("price", "usd_per_hour"), ("power", "watts")):
        listed = vintages(record, key)
        assert bool(listed) == (record.values[figure] is not None)
        for entry in listed:
            assert entry["date"] and entry["label"] and entry[figure] > 0
        assert not listed or listed[0][figure] == record.values[figure]
    assert all(e["source"] for e in record.about.get("prices") or [])


def test_two_vintages_stand_side_by_side() -> None:
    words = ("grid=none", "grid.hardware=[gb300_nvl72,tpu_v6e_trillium]", "grid.hardware.price=[retail,older]")
    space = build(make_study(*words))
    assert [r.values["usd_per_hour"] for r in space.hardware] == [3.30, 2.652, None, None]
    assert len({r.id for r in space.hardware}) == 4
    said = tags.prices({"provenance": store.provenance(space)})
    assert "gb300_nvl72[price older]: 2.652 $/GPU-hour (undated older), 1400 W per GPU (2025 board)" in said
    assert any(line.startswith("tpu_v6e_trillium[price older]: no price published") for line in said)


# --- files, tags, everything -------------------------------------------------------------------------------------


def test_a_model_from_its_file(tmp_path: Path) -> None:
    study = make_study("model=hf", f"model.path={FILE}")
    model = study.base["model"]
    assert (model.id, model.status, model.about["source"]) == ("gemma_4_31b", "read", f"read from {FILE}")
    changed = make_study("model=hf", f"model.path={FILE}", "model.tied_embeddings=false")
    assert changed.base["model"].values["tied_embeddings"] is False
    assert changed.base["model"].status == "hypothetical"
    folder = tmp_path / "models--org--My-Model" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(FILE.read_text())
    other = make_study("model=hf", f"model.path={folder}")
    assert other.base["model"].id == "my_model"
    before = other.resolved["files"]
    shape = json.loads(FILE.read_text())
    shape["text_config"]["intermediate_size"] = 4096
    (folder / "config.json").write_text(json.dumps(shape))
    after = make_study("model=hf", f"model.path={folder}").resolved["files"]
    assert before != after  # a rerun does not go on with another shape


def test_tags_are_in_every_table(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = outputs / "tagged"
    words = ["grid=none", "model=llama_3_1_8b", "precision=bf16", "efficiency=ideal", f"output={directory}"]
    words.append("grid.hardware=[h100_sxm_80gb,rubin_vr200_nvl72_ex_nvl144]")
    assert pipeline.main(words) == 0
    said = capsys.readouterr().out
    assert "rubin_vr200_nvl72_ex_nvl144 (announced)" in said and "h100_sxm_80gb (" not in said
    page = (directory / "report.md").read_text()
    tables = [line for line in page.splitlines() if line.startswith("|") and "rubin" in line]
    assert tables and all("(announced)" in line for line in tables)
    assert "rubin_vr200_nvl72_ex_nvl144 (announced)" in (directory / "frontier.svg").read_text()
    assert "3.57 $/GPU-hour (2026-07-23 operator)" in page
    assert json.loads((directory / "manifest.json").read_text())["provenance"]["h100_sxm_80gb"]["status"] == "confirmed"
    from pipelines.frontier import main as frontier
    from pipelines.query import main as query

    assert frontier([str(directory), "--by", "hardware"]) == 0
    assert "rubin_vr200_nvl72_ex_nvl144 (announced)" in capsys.readouterr().out
    assert query([str(directory), "select hardware as machine, tok_s_gpu from points"]) == 0
    assert "rubin_vr200_nvl72_ex_nvl144 (announced)" in capsys.readouterr().out


def test_every_file_evaluates() -> None:
    """A finite time per token for every model; for a machine that, or the reason why not."""
    base = make_study("precision=bf16", "efficiency=ideal", "workload.batch=1", "workload.context=1024")
    for group in ("model", "hardware"):
        for name in LIBRARY.entries(group):
            record = LIBRARY.record(group, name)
            study = dataclasses.replace(base, base={**base.base, group: record}, unscaled={})
            found = explain(prepared(study)).columns
            if group == "model" or found["feasible"]:
                assert math.isfinite(found["tpot_s"]) and found["tpot_s"] > 0, name
            if group == "hardware" and not found["feasible"]:
                assert set(found["reasons"]) & {"unknown_figure", "no_format", "capacity"}, name


def test_where_may_ask_for_scaled_models() -> None:
    space = build(make_study("experiment=shapes", "where=['model.d_model > 8192']"))
    kept = filters(space).rows(np.arange(space.n_rows))
    assert kept.sum() == 2 * space.n_rows / 5
