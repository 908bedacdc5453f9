"""One point, op by op: against an independent scalar model, against published figures, and through the command line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import explain as pipeline
from pipelines._app import Job, compose_config, make_job
from sweep.columns import COLUMNS
from sweep.config import Study
from sweep.cost.result import BOUNDS
from sweep.explain import OP_KEYS, Explanation, compare, explain, moves
from sweep.report.charts import BOUND_COLOURS
from sweep.report.roofline import WIDTH, roofline_chart, roofline_text
from tests import oracle

Json = dict[str, Any]
SIX = tuple(f"{name}_s" for name in BOUNDS if name != "prefill")  # decode alone waits for no prompts


def job_of(*overrides: str) -> Job:
    config, choices = compose_config(overrides, [], "explain")
    return make_job(config, choices, [], overrides, "explain")


def point(*overrides: str) -> Explanation:
    return explain(job_of(*overrides).study)


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Json]:
    """The real command line, in this process: exactly one JSON object on standard output."""

    def run(*overrides: str) -> Json:
        code = pipeline.main([*overrides, "output=json"])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
        answer = json.loads(out, parse_constant=pytest.fail)
        assert isinstance(answer, dict)
        return answer

    return run


# --- an independent scalar model ---------------------------------------------------------------------------------

MODELS = {
    "llama_3_1_70b": "layout.tpa=8",
    "llama_3_1_405b": "layout.tpa=8 layout.kvp=8 layout.pp=2",
    "qwen3_32b": "layout.tpa=4 layout.pp=3 layout.prefill_chunk=1000",
    "qwen3_235b_a22b": "layout.dpa=8 layout.ep=8",
    "deepseek_v3": "layout.tpa=2 layout.dpa=16 layout.ep=16 layout.pp=2 layout.prefill_chunk=3000",
    "deepseek_v3_2": "layout.dpa=8 layout.ep=8",
    "gpt_oss_120b": "layout.tpa=4 layout.kvp=2 layout.ep=4",
    "gemma_3_27b_it": "layout.tpa=4 layout.prefill_chunk=2048",
    "qwen3_next_80b_a3b": "layout.tpa=2 layout.dpa=4 layout.ep=4",
    "nemotron_3_super_120b_a12b": "layout.tpa=2 layout.dpa=4 layout.ep=8",
}
MACHINES = {"h100_sxm_80gb": "fp8", "gb300_nvl72": "nvfp4", "mi300x": "bf16"}


def oracle_of(study: Study) -> Json:
    base = {group: record.values for group, record in study.base.items()}
    hardware = {k: v for k, v in base["hardware"].items() if k in oracle.DEFAULTS["hardware"]}
    return oracle.evaluate(base["model"], hardware, base["precision"], base["layout"], base["workload"])


def near(value: float | None, expected: float | None, what: str, rel: float = 1e-6) -> None:
    if expected is None or value is None:
        assert value == expected, what
    else:
        assert value == pytest.approx(expected, rel=rel, abs=1e-30), what


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", MODELS)
def test_ten_models_on_three_machines(model: str, machine: str) -> None:
    study = job_of(
        f"model={model}",
        f"hardware={machine}",
        f"precision={MACHINES[machine]}",
        "efficiency=ideal",
        "workload.batch=96",
        "workload.isl=7000",
        *MODELS[model].split(),
    ).study
    e, expected = explain(study), oracle_of(study)
    for name in ("tpot_s", "ttft_s", "held_bytes", "tok_s_gpu", "max_batch", "mfu", "mbu", "kv_bytes_per_tok"):
        # blocks of this hybrid have one norm each, the cost model counts two per layer: 0.003 % of the weights
        norms = name == "held_bytes" and model.startswith("nemotron")
        near(e.columns[name], expected[name], name, 1e-4 if norms else 1e-6)
    near(e.columns["params_total"], expected["params_total"], "params_total", 3e-3)
    for name in SIX:
        near(e.columns[name] / e.columns["tpot_s"], expected[name] / expected["tpot_s"], name)
    assert e.columns["bound"] == expected["bound"]
    assert e.columns["reasons"] == sorted(expected["reasons"])
    assert sum(e.columns[name] for name in SIX) == pytest.approx(e.columns["tpot_s"], rel=1e-12)
    same_ops(e.ops, expected["ops"])
    assert {row["phase"] for row in e.ops} == {"decode", "prefill"}


def same_ops(rows: list[Json], expected: list[Json]) -> None:
    """Kernels one by one, matched by name and shape; collectives by name, as sums over the layers."""

    def key(row: Json) -> tuple[str, str, int, str, str]:
        state = row["op"] == "linear_state"  # has no shape
        sides = ["" if row[k] is None or state else f"{row[k]:.4f}" for k in ("m", "n")]
        return row["phase"], row["op"], row["count"], *sides

    kernels = {key(r): r for r in rows if not r["comm_bytes"]}
    theirs = {key(r): r for r in expected if not r["comm_bytes"]}
    assert kernels.keys() == theirs.keys()
    for k, row in kernels.items():
        fields = ["flops", "weight_bytes", "kv_bytes", "read_bytes", "write_bytes", "math_s", "memory_s", "time_s"]
        if k[:2] == ("prefill", "indexer"):  # whether the indexer's queries pass through memory is left open
            fields = ["flops", "weight_bytes", "kv_bytes", "write_bytes", "math_s"]
        for field in fields:
            near(row[field], theirs[k][field], f"{k} {field}")
        if row["op"] not in ("attention", "indexer", "linear_state"):
            near(row["crossover_m"], theirs[k]["crossover_m"], f"{k} crossover_m")
            near(row["k"], theirs[k]["k"], f"{k} k")
    for field in ("comm_bytes", "comm_s", "time_s"):
        sums: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
        for total, source in zip(sums, (rows, expected), strict=True):
            for r in source:
                if r["comm_bytes"]:
                    total[r["phase"], r["op"]] += r["count"] * r[field]
        assert sums[0].keys() == sums[1].keys()
        for name, value in sums[0].items():
            near(value, sums[1][name], f"{name} {field}")


@pytest.mark.parametrize(
    "options",
    [
        "",
        "layout.tpa=8 layout.pp=4 layout.microbatches=2",
        "layout.tpa=4 layout.kvp=2 layout.hop_b=true layout.overlap=0.4",
        "layout.dpa=8 layout.ep=8 layout.two_batch=true",
        "layout.tpa=8 model.n_draft=3 model.acceptance=0.7 model.draft_cost=0.1",
    ],
)
@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
def test_ops_add_up_to_the_step(options: str, efficiency: str) -> None:
    e = point("model=qwen3_235b_a22b", f"efficiency={efficiency}", "workload.batch=64", *options.split())
    ops_s = sum(row["count"] * row["time_s"] for row in e.ops if row["phase"] == "decode")
    assert ops_s == pytest.approx(e.step["ops_s"], rel=1e-12)
    beside = ("ops_s", "between_kernels_s", "host_s", "hidden_s", "waiting_s", "drafting_s")
    assert sum(e.step[name] for name in beside) == pytest.approx(e.step["step_s"], rel=1e-9)
    assert e.step["step_s"] / e.step["expected_tokens"] == pytest.approx(e.columns["tpot_s"], rel=1e-12)
    assert e.step["hidden_s"] <= 0 <= e.step["waiting_s"]
    assert all(row["bound"] in BOUNDS and set(row) == set(OP_KEYS) for row in e.ops)
    assert any(row["op"] == "pipeline_hop" for row in e.ops) == ("pp=" in options)


# --- published figures -------------------------------------------------------------------------------------------

ARTICLE = "hardware=gb300_nvl72 precision=nvfp4 precision.output=fp8 model=dense model.d_ff=4096 efficiency=ideal"


@pytest.mark.parametrize(
    ("m", "math_us", "read_us", "write_us"),
    [(256, 0.1432, 0.304, 0.2621), (2048, 1.1453, 0.369, 2.0972), (16384, 9.1626, 0.885, 16.777)],
)
def test_nvidia_codesign_table(
    run_json: Callable[..., Json], m: int, math_us: float, read_us: float, write_us: float
) -> None:
    """NVIDIA, "AI Model Co-Design" (2026-07-10): GB300, N = 8192, K = 512, FP4 in with block scales, FP8 out."""
    answer = run_json(*ARTICLE.split(), "model.d_model=512", f"workload.batch={m}")
    (op,) = [r for r in answer["ops"] if r["op"] == "ffn_up_gate" and r["phase"] == "decode"]
    assert (op["m"], op["n"], op["k"]) == (m, 8192, 512)
    assert op["math_s"] * 1e6 == pytest.approx(math_us, rel=1e-3)
    assert op["read_bytes"] / 8e12 * 1e6 == pytest.approx(read_us, rel=2e-3)
    assert op["write_bytes"] / 8e12 * 1e6 == pytest.approx(write_us, rel=1e-3)
    assert op["memory_s"] > op["math_s"]
    assert op["crossover_m"] is None  # memory exceeds math at every token count


@pytest.mark.parametrize(("k", "ever"), [(1002, False), (1003, True)])
def test_smallest_k_that_can_be_bound_by_math(k: int, ever: bool) -> None:
    """The same source's shape: M* = b / (2/I - a/N - c/K) is finite from K = 1003 on."""
    e = point(*ARTICLE.split(), f"model.d_model={k}")
    (op,) = [r for r in e.ops if r["op"] == "ffn_up_gate" and r["phase"] == "decode"]
    assert (op["crossover_m"] is not None) == ever


@pytest.mark.parametrize(("per_gpu", "m"), [(12, 12.0), (128, 128.0)])
def test_tokens_per_expert(per_gpu: int, m: float) -> None:
    """DeepSeek-R1 on 32 GPUs: M of an expert is T k / E once all experts are hit."""
    e = point("model=deepseek_r1", "layout=wide_ep32", f"workload.batch={32 * per_gpu}", "efficiency=ideal")
    (op,) = [r for r in e.ops if r["op"] == "experts_down" and r["phase"] == "decode"]
    assert op["m"] == pytest.approx(m, rel=1e-4)


# --- what would have to change -----------------------------------------------------------------------------------


def test_moves_are_where_the_bound_changes() -> None:
    fixed = ("model=llama_3_1_70b", "layout=tp8", "efficiency=ideal")
    e = point(*fixed)
    found = {(m.lever, m.factor > 1): m for m in moves(e)}
    faster = found["memory bandwidth", True]
    assert faster.bound != e.columns["bound"]
    for nudge, bound in ((0.999, e.columns["bound"]), (1.001, faster.bound)):
        changed = point(*fixed, f"hardware.hbm_bytes_per_s={8e12 * faster.factor * nudge}")
        assert changed.columns["bound"] == bound
        assert changed.inputs["hardware_status"] == "hypothetical"
    batch = found["batch", True]
    assert batch.value is not None and batch.value.is_integer()
    assert point(*fixed, f"workload.batch={batch.value}").columns["bound"] == batch.bound


# --- the command line --------------------------------------------------------------------------------------------


def test_json_has_the_schema(run_json: Callable[..., Json]) -> None:
    answer = run_json("model=deepseek_v3", "layout.dpa=32", "layout.ep=32", "workload.context=8192")
    assert {c.name for c in COLUMNS} <= answer.keys()
    assert answer["feasible"] is True and answer["reasons"] == []
    assert answer["bound"] in BOUNDS and answer["accuracy_label"]
    assert (answer["model"], answer["hardware"]) == ("deepseek_v3", "gb300_nvl72")
    assert answer["layout"]["gpus"] == 32 and answer["layout"]["tpf"] == 1
    assert answer["workload"]["context"] == 8192
    assert answer["memory"]["held_bytes"] < answer["memory"]["capacity_bytes"]
    names = {row["op"] for row in answer["ops"]}
    assert {"q_down", "kv_down", "k_up", "v_up", "kv_up", "attention", "dispatch", "combine", "lm_head"} <= names
    assert not names & {"qkv_proj", "all_reduce", "pipeline_hop", "indexer"}
    for row in answer["ops"]:
        assert set(row) == set(OP_KEYS)
        assert row["count"] > 0


@pytest.mark.parametrize(
    ("overrides", "reason", "unknown"),
    [
        ("model=llama_3_1_405b hardware=h100_sxm_80gb", "capacity", ()),
        ("workload.ttft_max_s=1e-9", "ttft_cut", ()),
        ("hardware.hbm_bytes_per_s=null", "unknown_figure", ("tpot_s", "ttft_s", "bound", "mbu")),
        ("hardware.bf16_flops=null precision=bf16", "no_format", ("ttft_s",)),
        ("hardware.scaleout_bytes_per_s=null hardware.domain=4 layout.tpa=8", "over_domain", ("tpot_s", "tok_s_gpu")),
    ],
)
@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
def test_infeasible_is_printed_in_full(
    run_json: Callable[..., Json],
    capsys: pytest.CaptureFixture[str],
    overrides: str,
    reason: str,
    unknown: tuple[str, ...],
    efficiency: str,
) -> None:
    words = [*overrides.split(), f"efficiency={efficiency}"]
    answer = run_json(*words)
    assert answer["feasible"] is False
    assert reason in answer["reasons"]
    assert all(answer[name] is None for name in unknown)
    assert answer["held_bytes"] > 0 and answer["ops"]
    assert pipeline.main(words) == 0
    assert f"INFEASIBLE: {', '.join(answer['reasons'])}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("model=llama_3_1_70b layout.tpa=12", "layout.tpa=12: must divide model.n_heads=64; nearest: 8, 16"),
        (
            "model=mixtral_8x7b layout.dpa=16 layout.ep=16",
            "layout.ep=16: must not exceed model.n_experts=8; nearest: 8",
        ),
        (
            "model=llama_3_1_8b layout.tpa=2 layout.ep=2",
            "layout.ep=2: must not exceed 1 without experts (model.n_experts=0); nearest: 1",
        ),
        ("model=llama_3_1_8b layout.pp=33", "layout.pp=33: must not exceed model.n_layers=32; nearest: 32"),
        (
            "model=deepseek_v3 layout.dpa=3 layout.tpf=3",
            "layout.tpf=3: must divide model.d_expert=2048; nearest: 2, 4",
        ),
        (
            "model=deepseek_v3 layout.tpa=8 layout.tpf=2 layout.ep=2",
            "layout.tpf=2: tpf x ep = 2 x 2 = 4 must equal tpa x kvp x dpa = 8 x 1 x 1 = 8; nearest: layout.tpf=4",
        ),
        (
            "model=deepseek_v3 layout.tpa=8 layout.ep=3",
            "layout.ep=3: must divide tpa x kvp x dpa = 8 x 1 x 1 = 8; nearest: 2, 4",
        ),
        (
            "model=llama_3_1_8b layout.tpa=4 layout.dpa=2 layout.ffn_tied=true",
            "layout.ffn_tied=true: needs dpa = 1, ep = 1 and tpf = tpa; given dpa=2, ep=1, tpf=4, tpa=4",
        ),
        ("workload.batch=null", "workload.batch=null: must be given"),
        ("output=xml", "output=xml: allowed are text, json"),
        ("against=layout.tpa=12", "against: layout.tpa=12: must divide model.n_heads=32; nearest: 8, 16"),
        ("against=tp8", "against=tp8: must be overrides like layout.tpa=16 workload.batch=32"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], overrides: str, line: str) -> None:
    assert pipeline.main(overrides.split()) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", line + "\n")


def test_unknown_names_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["model=deepseek_v"]) == 1
    assert "deepseek_v3" in capsys.readouterr().err
    assert pipeline.main(["--help"]) == 0
    assert "python -m pipelines.explain" in capsys.readouterr().out


def test_text_is_aligned_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=gemma_3_27b_it", "layout.tpa=4", "layout.kvp=2", "layout.pp=2", "workload.context=100000"]
    assert pipeline.main([*words, "workload.batch=5000"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert not any(line != line.rstrip() for line in lines)
    for heading in ("Totals", "Where the time", "Decode, one GPU", "Prefill, one GPU", "Memory of one GPU", "M*"):
        assert heading in text
    assert "What would have to change for the bound to move from" in text
    header = next(i for i, line in enumerate(lines) if line.startswith("op ") and "bound" in line)
    own = [line for line in lines[header + 2 :] if line.startswith(("qkv_proj", "attention"))][:4]
    starts = {line.index(" x ") > 0 and len(line) for line in own}
    assert len(own) == 4 and len(starts) == 1  # the last column ends where the others do
    shares = []
    for line in lines[header + 2 :]:
        if not line:
            break
        shares.append(float(line.split()[-1]))
    assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))


def test_against_puts_two_points_side_by_side(
    run_json: Callable[..., Json], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["model=llama_3_1_70b", "layout.tpa=4", "workload.batch=16", "efficiency=ideal"]
    answer = run_json(*base, "against=layout=tp8 workload.batch=32")
    alone = run_json("model=llama_3_1_70b", "layout=tp8", "workload.batch=32", "efficiency=ideal")
    assert answer["against"] == alone
    assert answer["layout"]["tpa"] == 4 and answer["against"]["layout"]["tpa"] == 8
    rows = {(r["phase"], r["op"]): r for r in answer["differences"]}
    assert rows["decode", "ffn_down"]["m"] == [16, 32]
    assert rows["decode", "ffn_down"]["k"] == [7168, 3584]
    assert pipeline.main([*base, 'against="layout=tp8 workload.batch=32"']) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "point A" in text and "point B" in text


def test_an_op_that_one_point_lacks() -> None:
    rows = compare(point("model=llama_3_1_8b"), point("model=llama_3_1_8b", "layout.tpa=2"))
    (reduce, *_) = [r for r in rows if r["op"] == "all_reduce"]
    assert reduce["count"] == [None, 32] and reduce["ratio"] is None


# --- the chart ---------------------------------------------------------------------------------------------------


def test_chart_has_a_mark_per_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of("model=deepseek_v3", "layout.dpa=32", "layout.ep=32", "precision=nvfp4", "efficiency=ideal")
    job = dataclasses.replace(job, options={**job.options, "chart": str(tmp_path / "roofline.png"), "output": "json"})
    assert pipeline.task(job) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"roofline.svg", "roofline.png"}
    capsys.readouterr()
    e = explain(job.study)
    spec = roofline_chart(e).to_dict()
    layers = spec["vconcat"][0]["layer"]
    (marks,) = [layer for layer in layers if layer["mark"]["type"] == "point"]
    drawn = spec["datasets"][marks["data"]["name"]]
    computing = [r for r in e.ops if r["flops"]]
    assert Counter(m["op"] for m in drawn) == Counter(r["op"] for r in computing)
    assert set(marks["encoding"]["fill"]["scale"]["range"]) <= set(BOUND_COLOURS.values())
    assert {m["phase"] for m in drawn} == {"decode", "prefill"}
    for m in drawn:  # under `ideal` every op lies on a roof
        roofs = [peak for peak in e.peaks.values() if math.isclose(m["y"], peak, rel_tol=1e-9)]
        assert roofs or math.isclose(m["y"], 8e12 * m["x"], rel_tol=1e-9)
    assert set(e.peaks) == {"fp4", "fp8", "bf16"}


def test_report_of_a_point_without_numbers() -> None:
    e = point("hardware.hbm_bytes_per_s=null")
    assert "unknown_figure" in roofline_text(e)
    roofline_chart(e).to_dict()
