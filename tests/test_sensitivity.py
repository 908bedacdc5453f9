"""Slopes by automatic differentiation against finite differences of the whole line, steps against `explain`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipelines import sensitivity as command
from sweep.config import Study
from sweep.errors import BadInput
from sweep.explain import explain, point_of
from sweep.report.tornado import tornado_chart
from sweep.sensitivity import RESULTS, Sensitivity, sensitivity, steps
from tests.conftest import make_study

DENSE = ("model=llama_3_1_70b", "hardware=h200_sxm_141gb", "layout=tp8", "efficiency=ideal", "workload.batch=64",
         "workload.context=8192")  # fmt: skip
WIDE = (
    "model=deepseek_v3", "hardware=gb300_nvl72", "precision=nvfp4", "layout.dpa=32", "layout.ep=32",
    "workload.batch=2048", "workload.context=8192", "layout.prefill_chunk=2048",
)  # fmt: skip


@pytest.fixture(scope="module")
def dense() -> tuple[Study, Sensitivity]:
    study = make_study(*DENSE)
    return study, sensitivity(study)


@pytest.fixture(scope="module")
def wide() -> tuple[Study, Sensitivity]:
    study = make_study(*WIDE)
    return study, sensitivity(study)


def changed(study: Study, group: str, factor: float, *keys: str) -> Study:
    """The study with figures of a record multiplied, by way of the configuration."""
    record = study.base[group]
    values = {k: record.values[k] * factor for k in keys if record.values[k] is not None}
    return dataclasses.replace(
        study, base={**study.base, group: dataclasses.replace(record, values={**record.values, **values})}
    )


def slope(study: Study, group: str, keys: tuple[str, ...], result: str, h: float) -> float:
    """Central difference of ln(result) over ln(lever), of what `explain` prints."""
    up, down = (explain(changed(study, group, 1 + sign * h, *keys)).columns[result] for sign in (1, -1))
    return (math.log(up) - math.log(down)) / (math.log1p(h) - math.log1p(-h))


RATES = [
    ("hardware.flops", "hardware", ("bf16_flops", "fp8_flops", "fp4_flops", "int8_flops", "fp32_flops")),
    ("hardware.hbm_bytes_per_s", "hardware", ("hbm_bytes_per_s",)),
    ("hardware.link_bytes_per_s", "hardware", ("link_bytes_per_s",)),
    ("hardware.usd_per_hour", "hardware", ("usd_per_hour",)),
]


@pytest.mark.parametrize(("key", "group", "keys"), RATES)
@pytest.mark.parametrize("which", ["dense", "wide"])
def test_slopes_of_rates_are_those_of_finite_differences(
    request: pytest.FixtureRequest, which: str, key: str, group: str, keys: tuple[str, ...]
) -> None:
    study, found = request.getfixturevalue(which)
    for result in ("tok_s_user", "tok_s_gpu", "ttft_s", "request_s", "usd_per_mtok"):
        assert found.lever(key).elasticity[result] == pytest.approx(
            slope(study, group, keys, result, 1e-5), rel=1e-6, abs=1e-9
        )


def chains(constants: dict[str, Any], factor: float) -> dict[str, Any]:
    """Kernel constants with every `chain_s` times a factor."""
    return {
        k: chains(v, factor) if isinstance(v, dict) else v * factor if k == "chain_s" else v
        for k, v in constants.items()
    }


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("efficiency.kernel_floor", ("floor",)),
        ("efficiency.host", ("layer_s", "host_s", "request_s")),
    ],
)
def test_slopes_of_latencies_are_those_of_finite_differences(
    wide: tuple[Study, Sensitivity], key: str, changes: tuple[str, ...]
) -> None:
    study, found = wide
    own = {"floor": 1.0, **study.efficiency}

    def at(factor: float) -> dict[str, Any]:
        # the generation's own floor multiplies too: change it where it stands
        generations = {
            name: {k: v * factor if k in changes else v for k, v in values.items()}
            for name, values in own["generations"].items()
        }
        held = {k: v * factor if k in changes else v for k, v in own.items()}
        if "floor" in changes:  # with it goes what one processor walks in order
            held["kernels"] = chains(own["kernels"], factor)
        return explain(dataclasses.replace(study, efficiency={**held, "generations": generations})).columns

    h = 1e-5
    up, down = at(1 + h), at(1 - h)
    for result in ("tok_s_user", "ttft_s"):
        expected = (math.log(up[result]) - math.log(down[result])) / (math.log1p(h) - math.log1p(-h))
        assert found.lever(key).elasticity[result] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.lever("efficiency.kernel_floor").elasticity["tok_s_user"] < 0


@pytest.mark.parametrize(
    ("key", "group", "names", "step"),
    [
        ("model.d_ff", "model", ("d_ff",), 8 / 28672),  # a column per GPU: divides as well as before
        ("model.vocab", "model", ("vocab",), 8 / 128256),
        ("model.n_layers", "model", ("n_layers",), 1 / 80),
        ("workload.context", "workload", ("context",), 1 / 8192),
        ("workload.batch", "workload", ("batch",), 1 / 64),
    ],
)
def test_slopes_of_sizes_are_those_along_sizes_that_divide(
    dense: tuple[Study, Sensitivity], key: str, group: str, names: tuple[str, ...], step: float
) -> None:
    study, found = dense  # ideal: no tiles, so that only shards round
    for result in ("tok_s_user", "ttft_s"):
        expected = slope(study, group, names, result, step)
        assert found.lever(key).elasticity[result] == pytest.approx(expected, rel=2e-4, abs=1e-7)


def test_six_parts_of_the_time_bound_the_slopes(dense: tuple[Study, Sensitivity]) -> None:
    """With nothing but a roofline, TPOT is homogeneous of degree -1 in all rates together."""
    _, found = dense
    rates = ("hardware.flops", "hardware.hbm_bytes_per_s", "hardware.link_bytes_per_s", "hardware.scaleout_bytes_per_s")
    assert sum(found.lever(key).elasticity["tok_s_user"] or 0.0 for key in rates) == pytest.approx(1.0, rel=1e-9)
    assert sum(found.lever(key).elasticity["ttft_s"] or 0.0 for key in rates) == pytest.approx(-1.0, rel=1e-9)


def test_capacity_is_worth_users_and_no_time(dense: tuple[Study, Sensitivity]) -> None:
    study, found = dense
    (more,) = [w for w in found.worth if w.key == "hardware.hbm_bytes"]
    assert more.gained["tok_s_user"] == 0 and more.gained["ttft_s"] == 0
    assert found.lever("hardware.hbm_bytes").elasticity["tok_s_user"] == 0
    # 8192 tokens x 2 x 8 heads x 128 x 80 layers of fp8, one eighth of it on each GPU, and the residual stream alive
    held = 8192 * 2 * 8 * 128 * 80 / 8 + 4 * 2 * 8192
    assert found.users_per_gb == pytest.approx(1e9 / held, rel=1e-9)
    own = study.base["hardware"].values["hbm_bytes"]
    before, after = (
        explain(s).columns["max_batch"] for s in (study, changed(study, "hardware", 1 + 16e9 / own, "hbm_bytes"))
    )
    assert more.gained["max_batch"] == after - before


def test_round_amounts_and_steps_are_the_points_that_explain_gives(dense: tuple[Study, Sensitivity]) -> None:
    study, found = dense
    (more,) = [w for w in found.worth if w.more == "1 TB/s"]
    after = explain(changed(study, "hardware", 5.8 / 4.8, "hbm_bytes_per_s")).columns
    assert found.point["tok_s_user"] + more.gained["tok_s_user"] == pytest.approx(after["tok_s_user"], rel=1e-12)
    seen = {(s.key, s.after): s for s in found.steps}
    for (key, value), words in {
        ("model.n_layers", 79): ["model.n_layers=79"],
        ("model.n_kv_heads", 16): ["model.n_kv_heads=16"],
        ("precision", "nvfp4"): ["precision=nvfp4"],
        ("precision.kv", "bf16"): ["precision.kv=bf16"],
        ("layout.tpa", 4): ["layout.tpa=4"],
        ("layout.pp", 2): ["layout.pp=2"],
        ("workload.batch", 128): ["workload.batch=128"],
    }.items():
        columns = explain(make_study(*DENSE, *words)).columns
        step = seen[key, value]
        assert step.refused is None and step.feasible == columns["feasible"]
        for result in (*RESULTS, "accuracy", "held_bytes"):
            assert step.result[result] == pytest.approx(columns[result], rel=1e-9), (key, result)


def test_steps_that_cannot_be_say_why(wide: tuple[Study, Sensitivity]) -> None:
    _, found = wide
    assert {s.key for s in found.steps} >= {"model.n_experts", "model.top_k", "layout.dpa", "model.d_expert"}
    tight = make_study("model=llama_3_1_70b", "hardware=h100_sxm_80gb", "layout.tpa=1", "precision=bf16")
    point = point_of(tight)[1]
    halves = [s for s in steps(tight, point, {}) if s.key == "layout.tpa" and s.after == 2]
    assert halves[0].refused is None and halves[0].reasons == ("capacity",)
    refused = [s for s in steps(tight, point, {}) if s.refused]
    assert all("must" in str(s.refused) and s.result["tok_s_user"] is None for s in refused)


def test_steps_beyond_a_limit_say_so(dense: tuple[Study, Sensitivity]) -> None:
    tpot_s = dense[1].point["tpot_s"]
    assert tpot_s is not None
    limited = make_study(*DENSE, f"workload.tpot_max_s={1.1 * tpot_s}")
    batches = {s.after: s for s in steps(limited, point_of(limited)[1], {}) if s.key == "workload.batch"}
    assert batches[32].feasible and batches[128].reasons == ("tpot_cut",)


def test_the_command(
    dense: tuple[Study, Sensitivity],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        command, "sensitivity", lambda study: dense[1] if study.base == dense[0].base else sensitivity(study)
    )
    assert command.main([*DENSE, "output=json", f"chart={tmp_path / 'tornado.svg'}"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    levers = {lever["key"]: lever["elasticity"]["tok_s_user"] for lever in told["levers"]}
    assert levers["hardware.hbm_bytes_per_s"] == dense[1].lever("hardware.hbm_bytes_per_s").elasticity["tok_s_user"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tornado.png", "tornado.svg"]
    drawn = tornado_chart(dense[1]).to_dict()
    assert len(drawn["vconcat"]) == 2
    for words, part in (
        (["model=llama_3_1_70c"], "no such model"),
        (["output=xml"], "output=xml: allowed are text, json"),
        (["layout.tpa=12"], "layout.tpa=12: must divide model.n_heads"),
        (["model=llama_3_1_8b,llama_3_1_70b", f"chart={tmp_path / 'x'}"], "takes one point"),
        (["hardware=tpu_8i_inference", "precision=nvfp4", "hardware.hbm_bytes_per_s=null"], "has no time per token"),
    ):
        assert command.main(words) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and part in said.err, said.err


def test_several_points_side_by_side(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                     dense: tuple[Study, Sensitivity]) -> None:  # fmt: skip
    lines = command.several(["model=a,b", "hardware=c,d", "layout.tpa=8", "grid.x=[1,2]"])
    assert [line[:2] for line in lines] == [[f"model={m}", f"hardware={h}"] for m in "ab" for h in "cd"]
    with pytest.raises(BadInput, match="at most 64"):
        command.several(["model=" + ",".join("abcdefghi"), "hardware=" + ",".join("abcdefgh")])
    monkeypatch.setattr(command, "sensitivity", lambda study: dense[1])  # the points themselves are tested above
    assert command.main(["model=llama_3_1_8b,llama_3_1_70b", "layout=tp8"]) == 0
    table = capsys.readouterr().out
    assert table.count("| llama_3_1_70b ") == 2 and "+1 TB/s" in table
