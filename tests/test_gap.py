"""Achieved against possible: the parts add up, each cause is what switching it off saves, the report says it.

The study is the shipped one on fewer machines, and one point by hand where the possible can be worked out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import gap as pipeline
from sweep.config import Study
from sweep.explain import explain
from sweep.gap import CAUSES, REMAINDER, SOFTWARE, Answer, answer, decompose, shapley, switched
from sweep.report.gap import chart, document, verdict
from tests.conftest import make_study
from tests.cost import points

SMALL = [
    "experiment=achieved_vs_possible",
    "grid.model=[llama_3_1_70b, deepseek_r1]",
    "grid.hardware=[h100_sxm_80gb, gb300_nvl72, d_matrix_corsair]",
    "grid.layout={gpus: [8, 16, 32], tpa: pow2, dpa: pow2, ep: pow2}",
    "grid.workload={batch: [1, 64, 256], context: [8192]}",
]


@functools.cache
def found(efficiency: str = "measured") -> Answer:
    return answer(make_study(*SMALL, f"efficiency={efficiency}"))


def remembered(study: Study) -> Answer:
    """The same study again costs nothing."""
    return found(study.efficiency_id)


def test_the_parts_add_up_to_the_gap() -> None:
    """Exactly, in double precision, for every point; and no cause of these presets costs less than nothing."""
    gaps = found().gaps
    assert len(gaps) > 10
    for g in gaps:
        assert g.achieved_s - g.possible_s == pytest.approx(sum(g.causes.values()), rel=1e-12)
        assert 0 < g.share <= 1 and g.share_of_best <= 1 + 1e-9
        assert all(seconds >= -1e-12 * g.achieved_s for seconds in g.causes.values()), g.causes
        assert set(g.causes) <= {*CAUSES, *REMAINDER}
        assert g.software_s <= min(g.alone_s[c] for c in SOFTWARE) + 1e-15


def test_achieved_is_what_explain_says() -> None:
    for g in found().gaps[::8]:
        words = [f"{k}={g.labels[k]}" for k in ("model", "hardware", "precision", "placement")]
        words += [f"layout.{k}={v}" for k, v in g.layout.items()]
        e = explain(make_study(*words, f"workload.batch={g.batch}", "workload.context=8192", "efficiency=measured"))
        assert e.columns["feasible"]
        assert e.columns["tpot_s"] == pytest.approx(g.achieved_s, rel=1e-12)
        assert e.columns["tok_s_gpu"] == pytest.approx(g.tok_s_gpu, rel=1e-12)


def test_the_possible_by_hand() -> None:
    """Dense, one request: all weights but the input embedding and the cache, once, over eight GPUs' bandwidth."""
    g = next(
        g
        for g in found().gaps
        if (g.labels["model"], g.labels["hardware"]) == ("llama_3_1_70b", "h100_sxm_80gb") and g.batch == 1
    )
    layers = 80 * (8192 * (64 * 128 + 2 * 8 * 128) + 8192 * 8192 + 3 * 8192 * 28672)  # one byte each
    head = 128256 * 8192 * 2
    cache = 8192 * 80 * 2 * 8 * 128
    assert g.possible_s == pytest.approx((layers + head + cache) / (g.gpus * 3.35e12), rel=1e-9)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(seconds=st.lists(st.floats(0, 10), min_size=16, max_size=16))
def test_shapley_is_the_mean_over_all_orders(seconds: list[float]) -> None:
    times = np.array(seconds)
    mean = np.zeros(4)
    for order in itertools.permutations(range(4)):
        off = 0
        for i in order:
            mean[i] += (times[off] - times[off | 1 << i]) / math.factorial(4)
            off |= 1 << i
    assert shapley(times, 4) == pytest.approx(mean, abs=1e-9)
    assert shapley(times, 4).sum() == pytest.approx(times[0] - times[-1], abs=1e-9)


def test_all_causes_off_is_the_ideal_preset_without_messages() -> None:
    """What the constants switch off is the whole of the preset: what is left is `ideal` on links of no cost."""
    lay = points.layout(tpa=2, dpa=2, ep=4)
    load = points.context(context=4096)
    model = points.model(points.MOE)
    hw, ideal = points.scalars(points.machine("measured")), points.scalars(points.machine("ideal"))
    free = points.machine("ideal", link_bytes_per_s=math.inf, scaleout_bytes_per_s=math.inf)
    want = points.evaluate(points.row(model, free, lay), 64, load).point.tpot_s
    with points.numbers():
        off = switched(hw, ideal, dict.fromkeys(CAUSES, 1.0))
        got = points.evaluate(points.row(model, off, lay), 64, load).point.tpot_s
        none = switched(hw, ideal, dict.fromkeys(CAUSES, 0.0))
        assert points.evaluate(points.row(model, none, lay), 64, load).point.tpot_s == pytest.approx(
            points.evaluate(points.row(model, hw, lay), 64, load).point.tpot_s, rel=1e-12
        )
        perfect = decompose(points.row(model, ideal, lay), ideal, np.float64(64), load, points.all_kinds())
    assert got == pytest.approx(want, rel=1e-9)
    for cause in ("host", "floors", "sync", "tiles", "math", "bandwidth", "imbalance", "elementwise"):
        assert perfect["causes"][cause] == pytest.approx(0, abs=1e-15)  # `ideal` has none of them
    assert perfect["causes"]["comm"] > 0 and perfect["causes"]["copies"] > 0


def test_slower_tiers_are_a_cause_where_there_are_some() -> None:
    by_machine: dict[str, list[float]] = {}
    for g in found().gaps:
        by_machine.setdefault(str(g.labels["hardware"]), []).append(g.causes["slow_tiers"] / g.achieved_s)
    assert min(by_machine["d_matrix_corsair"]) > 0.01
    assert all(abs(x) < 1e-12 for x in by_machine["h100_sxm_80gb"])


def test_report_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes a report and a chart, the verdict names every load and follows its rule."""
    monkeypatch.setattr(pipeline, "answer", remembered)
    assert pipeline.main([*SMALL, f"output={tmp_path}"]) == 0
    said = capsys.readouterr().out
    text = (tmp_path / "gap.md").read_text()
    assert (tmp_path / "gap.png").stat().st_size > 20_000 and (tmp_path / "gap.svg").exists()
    assert not list(tmp_path.glob(".*"))
    for title in (
        "## Verdict",
        "## How much of the possible",
        "## Where the rest goes",
        "## The hierarchy on the same",
    ):
        assert title in text
    assert said.strip() in text
    for load in ("1 request", "60 tok/s/user", "20 tok/s/user"):
        assert f"**{load}**" in text
    assert "| gb300_nvl72" in text and "Prompts on gb300_nvl72" in text


@pytest.mark.parametrize(("share", "word"), [(0.05, "less"), (0.15, "holds"), (0.5, "more")])
def test_the_rule_of_the_verdict(share: float, word: str) -> None:
    a = found()
    gaps = [dataclasses.replace(g, possible_s=share * g.achieved_s) for g in a.gaps]
    lines = verdict([dataclasses.replace(a, gaps=gaps)], ["hopper", "blackwell"])
    assert all(f"**{word}**" in line for line in lines[:3])
    everything = next(line for line in lines if "everything gone, 20" in line)
    assert ("**yes**" if share <= 0.2 else "**no**") in everything


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "answer", remembered)
    assert pipeline.main([*SMALL, "output=json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["efficiency"], second["efficiency"]) == ("measured", "synchronized")
    entry = first["gaps"][0]
    assert entry["share"] == pytest.approx(entry["possible_s"] / entry["achieved_s"])
    assert len(first["pairs"]) == 6
    for pair in first["pairs"]:  # GPU-seconds of the prompts of a second
        busy = pair["request_s"] * pair["ttft_s"] * pair["prefill_gpus"] / pair["prompts"]
        assert pair["prefill_gpus_needed"] == pytest.approx(busy, rel=1e-9)
        assert pair["request_s"] == pytest.approx(pair["batch"] * pair["tok_s_user"] / 1024, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gap.low_batch=3"], "gap.low_batch=3: must be one of workload.batch: 1, 64, 256"),
        (
            ["gap.prefill=h200"],
            "gap.prefill=h200: must be one of hardware; choices: d_matrix_corsair, gb300_nvl72, h100_sxm_80gb",
        ),
        (["gap.min_tok_s_user=[0]"], "gap.min_tok_s_user=[0]: must be greater than 0"),
        (["+gap.speed=3"], "gap.speed: no such key"),
        (["grid.efficiency=[ideal, measured]"], "grid.efficiency: gap looks at one preset"),
        (["gap.also=idael"], "efficiency=idael: no such efficiency; nearest: ideal"),
        (["grid.workload.batch=[1]", "grid.hardware=[etched]"], "hardware=etched: no such hardware"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert pipeline.main([*SMALL, *words, f"output={tmp_path / 'new'}"]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_chart_and_document_of_few_points() -> None:
    a = dataclasses.replace(found(), gaps=found().gaps[:1], by_placement=[], pairs=[], missing=[])
    assert chart(a.gaps, "one").to_dict()["vconcat"]
    text = document([a], ["hopper"], title="one", command="x", image="y.svg")
    assert "No placement differs" in text
