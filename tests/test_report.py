"""Reports: what a chart and a page must say, on a small invented frontier."""

from __future__ import annotations

import math
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sweep.report import frontier_chart, layout_label, model_label, save, table, where_time_goes, write_report
from sweep.report.markdown import number, tokens, told_apart
from sweep.report.selection import (
    accuracy_floors,
    at_least,
    best_at,
    envelope,
    few,
    interactivity_floors,
    spread,
    thin,
)

OBJECTIVES = ["accuracy", "tok_s_gpu", "tok_s_user"]
LABEL = "invented score"


def point(machine: str, speed: float, model: dict[str, Any], gpus: int, batch: int, context: int) -> dict[str, Any]:
    """One design point by formulas of the right shape: more batch, more throughput and less speed."""
    parts = {
        "math_s": 1e-14 * model["params_active"] * batch / gpus / speed,
        "weight_read_s": 1e-13 * model["params_total"] / gpus / speed,
        "kv_read_s": 1e-9 * batch * context / gpus / speed,
        "activation_s": 1e-8 * batch / gpus,
        "comm_s": 2e-7 * batch * (gpus > 1),
        "latency_s": 2e-4 * (1 + math.log2(gpus)),
    }
    tpot = sum(parts.values())
    return {
        "model": model["model"],
        "model.n_layers": model.get("n_layers"),
        "model.d_model": model.get("d_model"),
        "hardware": machine,
        "precision": "fp8",
        "layout.gpus": gpus,
        **{f"layout.{key}": gpus if key in ("tpa", "tpf") else 1 for key in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")},
        "workload.batch": batch,
        "workload.context": context,
        "accuracy": 1 - 5 / math.log(model["params_active"]),
        "loss": 2.0,
        "loss_sigma": 0.02,
        "tok_s_gpu": batch / tpot / gpus,
        "tok_s_user": 1 / tpot,
        "tpot_s": tpot,
        "ttft_s": 0.1 + 1e-5 * context,
        **parts,
        "bound": max(parts, key=lambda k: parts[k]).removesuffix("_s"),
        "usd_per_mtok": None,
        "extrapolation": int(model["params_active"] > 1e10),
    }


def frontier(*, by: tuple[str, ...] = ("hardware",), contexts: tuple[int, ...] = (8192,)) -> pl.DataFrame:
    """The non-dominated points of a small grid, found by comparing every pair."""
    models: list[dict[str, Any]] = [
        {"model": "small", "params_active": 1e9, "params_total": 1e9},
        {"model": "large", "params_active": 9e10, "params_total": 9e10},
        {"model": "dense", "params_active": 8e9, "params_total": 8e9, "n_layers": 48, "d_model": 4096},
    ]
    points = [
        point(machine, speed, model, gpus, batch, context)
        for machine, speed in (("slow", 1.0), ("fast", 3.0), ("future", 9.0))
        for model in models
        for gpus in (1, 2, 8)
        for batch in (1, 4, 16, 64, 256)
        for context in contexts
    ]
    frame = pl.DataFrame(points, infer_schema_length=None).with_row_index("point_id")
    kept = []
    for group in frame.partition_by(list(by)):
        rows = group.select(OBJECTIVES).rows()
        alone = [
            not any(other != row and all(a >= b for a, b in zip(other, row, strict=True)) for other in rows)
            for row in rows
        ]
        kept.append(group.filter(pl.Series(alone)))
    return pl.concat(kept)


MANIFEST: dict[str, Any] = {
    "points": 135,
    "points_before_where": 200,
    "feasible": 120,
    "infeasible": {"memory": 15, "heads": 0},
    "seconds": 0.5,
    "points_per_s": 270.0,
    "config_sha256": "0123456789abcdef" * 4,
    "efficiency": "ideal",
    "provenance": {
        "slow": {"hbm_bytes": "confirmed"},
        "future": {"status": "announced", "hbm_bytes": "announced"},
    },
}


def write(directory: Path, frame: pl.DataFrame, **changes: Any) -> str:
    by = changes.pop("by", ["hardware"])
    path = write_report(
        directory, frame, MANIFEST | changes, config_yaml="grid:\n  workload.batch: [1, 4]\nother: 1\n", by=by,
        objectives=OBJECTIVES, accuracy_label=LABEL, version="9.9",
    )  # fmt: skip
    assert path == directory / "report.md"
    return path.read_text(encoding="utf-8")


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


# ---- labels and tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tpa", "kvp", "dpa", "tpf", "ep", "pp", "text"),
    [
        (8, 1, 1, 8, 1, 1, "TP8"),
        (8, 1, 1, None, None, None, "TP8"),
        (8, 4, 1, 8, 4, 1, "TPA8 KVP4 | TPF8 EP4"),
        (1, 1, 32, 1, 32, 1, "DP32 EP32"),
        (1, 1, 32, None, 32, 1, "DP32 EP32"),
        (1, 1, 1, 1, 1, 4, "PP4"),
        (8, 1, 1, 8, 1, 4, "TP8 PP4"),
        (8, 1, 1, 1, 8, 1, "TPA8 | EP8"),
        (4, 1, 8, 2, 16, 2, "TPA4 DP8 | TPF2 EP16 PP2"),
        (1, 1, 8, 8, 1, 1, "DP8 | TPF8"),
        (1, 1, 1, 1, 1, 1, "1 GPU"),
    ],
)
def test_layout_label(tpa: int, kvp: int, dpa: int, tpf: int, ep: int, pp: int, text: str) -> None:
    values = {"tpa": tpa, "kvp": kvp, "dpa": dpa, "tpf": tpf, "ep": ep, "pp": pp}
    assert layout_label({f"layout.{key}": value for key, value in values.items()}) == text


def test_model_label_names_invented_shapes() -> None:
    shape = {"model.n_layers": 48.0, "model.d_model": 8192}
    assert model_label({"model": "dense", **shape}) == "dense 48L x 8192"
    experts = {"model.n_experts": 128, "model.top_k": 8, "model.d_expert": 1536}
    assert model_label({"model": "moe", **shape, **experts}) == "moe 48L x 8192, 128e top8 x 1536"
    assert model_label({"model": "deepseek_v3", **shape, **experts}) == "deepseek_v3"
    assert model_label({"model": "dense", **shape, "model.n_experts": None}) == "dense 48L x 8192"


def test_models_are_told_apart_by_what_differs_and_nothing_else() -> None:
    frame = pl.DataFrame(
        {
            "model": ["dense", "dense", "dense", "real"],
            "model.n_layers": [32, 32, 48, 61],
            "model.d_model": [4096, 4096, 8192, 7168],
            "model.n_heads": [32, 32, 64, 128],  # follows from d_model: says nothing new
            "model.n_kv_heads": [4, 8, 8, 1],
        }
    )
    assert told_apart(frame) == {"dense": ["model.n_kv_heads"]}
    labels = [model_label(row, told_apart(frame)) for row in frame.head(3).iter_rows(named=True)]
    assert labels == ["dense 32L x 4096, kv4", "dense 32L x 4096, kv8", "dense 48L x 8192, kv8"]
    assert told_apart(frame[[1, 2, 3]]) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,230"), (0.012345, "0.0123"), (9.996, "10.0"), (99.95, "100"), (1e6, "1,000,000"), (0.0, "0"),
        (-3.14159, "-3.14"), (1.234e-7, "1.23e-07"), (8e12, "8.00e+12"), (None, "–"), (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_token_counts_are_exact() -> None:
    assert [tokens(n) for n in (2048, 131072, 1048576, 1000, 128000)] == ["2k", "128k", "1M", "1,000", "128,000"]


def cells(text: str) -> list[list[str]]:
    """The cells of a Markdown table, rule left out, escaped bars put back."""
    rows = [[c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()]
    return [rows[0], *rows[2:]]


def test_table_gives_the_values_back() -> None:
    frame = frontier()
    text = table(
        frame, ["model", "layout", "accuracy", "tok_s_gpu", "tpot_s", "workload.batch", "absent"], {"tok_s_gpu": 5}
    )
    heads, *rows = cells(text)
    assert heads == ["model", "layout", "accuracy [%]", "output tok/s/GPU", "TPOT [ms]", "batch"]
    assert len(rows) == frame.height
    for row, source in zip(rows, frame.iter_rows(named=True), strict=True):
        assert row[1] == layout_label(source)
        assert float(row[2]) == pytest.approx(100 * source["accuracy"], abs=0.05)
        assert float(row[3].replace(",", "")) == pytest.approx(source["tok_s_gpu"], rel=0.5e-4)
        assert float(row[4].replace(",", "")) == pytest.approx(1e3 * source["tpot_s"], rel=0.5e-2)
        assert int(row[5].replace(",", "")) == source["workload.batch"]
    assert len({len(line) for line in text.splitlines()}) == 1


def test_a_bar_in_a_label_stays_in_its_cell() -> None:
    frame = pl.DataFrame({"layout.tpa": [8], "layout.kvp": [4], "layout.tpf": [8], "layout.ep": [4]})
    assert cells(table(frame, ["layout"]))[1] == ["TPA8 KVP4 | TPF8 EP4"]


# ---- selection ------------------------------------------------------------------------------------------------------


def test_envelope_is_a_falling_staircase_that_nothing_exceeds() -> None:
    frame = frontier()
    steps = envelope(frame, "tok_s_user", "tok_s_gpu", ["hardware"])
    for (name,), group in steps.group_by("hardware"):
        xs, ys = group["tok_s_user"].to_list(), group["tok_s_gpu"].to_list()
        assert all(a < b for a, b in pairwise(xs))
        assert all(a > b for a, b in pairwise(ys))
        own = frame.filter(pl.col("hardware") == name)
        for x, y in own.select("tok_s_user", "tok_s_gpu").rows():
            assert any(a >= x and b >= y for a, b in zip(xs, ys, strict=True))


def test_envelope_leaves_out_what_is_no_number() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, math.nan, None, 0.0, 1.0], "y": [2.0, math.inf, 9.0, 9.0, 9.0, 2.0]})
    assert envelope(frame, "x", "y").rows() == [(1.0, 2.0)]


def test_best_at_a_speed_is_the_best_there() -> None:
    frame = frontier()
    for floor in interactivity_floors(frame, by="hardware"):
        best = best_at(frame, floor, by="hardware", accuracy_floor=0.76)
        for row in best.iter_rows(named=True):
            good = at_least(frame, 0.76).filter(
                (pl.col("hardware") == row["hardware"]) & (pl.col("tok_s_user") >= floor)
            )
            assert row["tok_s_gpu"] == good["tok_s_gpu"].max()


def test_floors_are_few_round_and_reached() -> None:
    frame = frontier()
    floors = accuracy_floors(frame, by="hardware")
    assert floors[0] is None and 2 <= len(floors) <= 4
    assert all(at_least(frame, floor).height > 0 for floor in floors)
    assert accuracy_floors(frame.drop("accuracy"), by="hardware") == [None]
    assert len(interactivity_floors(frame, by="hardware", count=3)) == 3
    assert interactivity_floors(frame.clear(), by="hardware") == []


def test_thinning_keeps_the_best_of_each_objective_and_is_repeatable() -> None:
    frame = frontier()
    few_rows = thin(frame, OBJECTIVES, 7)
    assert few_rows.height == 7
    for name in OBJECTIVES:
        assert few_rows[name].max() == frame[name].max()
    assert few_rows.equals(thin(frame, OBJECTIVES, 7))
    assert thin(frame, ["-ttft_s"], 100).height == frame.height
    assert spread([1, 2, 3, 4, 5, 6, 7], 3) == [1, 4, 7] and few([1, 2, 3, 4]) == [1, 2, 4]


# ---- charts ---------------------------------------------------------------------------------------------------------


def test_charts_are_written_as_svg_and_png(tmp_path: Path) -> None:
    svg, png = save(frontier_chart(frontier(), title="A title", subtitle="and more"), tmp_path / "chart.v1")
    assert (svg.name, png.name) == ("chart.v1.svg", "chart.v1.png")
    text = svg.read_text(encoding="utf-8")
    assert text.startswith("<svg") and "A title" in text and "what binds the step" in text
    width, height = png_size(png)
    assert width > 600 and height > 600  # two pixels per point
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chart.v1.png", "chart.v1.svg"]


def marks(chart: Any, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("mark"), dict) and node["mark"].get("type") == kind:
                found.append(node)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    page = chart.to_dict()
    walk(page)
    for layer in found:
        if "name" in layer["data"]:
            layer["data"] = {"values": page["datasets"][layer["data"]["name"]]}
    return found


def test_lines_are_steps_through_their_own_points_and_announced_ones_are_dashed() -> None:
    frame = frontier().with_columns(
        pl.when(pl.col("hardware") == "future")
        .then(pl.lit("announced"))
        .otherwise(pl.lit("confirmed"))
        .alias("hardware_status")
    )
    solid, dashed = marks(frontier_chart(frame, floors=[None]), "line")
    assert {v["line"] for v in solid["data"]["values"]} == {"slow", "fast"}
    assert {v["line"] for v in dashed["data"]["values"]} == {"future (announced)"}
    assert dashed["mark"]["strokeDash"] != solid["mark"]["strokeDash"]
    for layer in (solid, dashed):
        assert layer["mark"]["interpolate"] == "step-before"
        for name in {v["line"] for v in layer["data"]["values"]}:
            line = [(v["x"], v["y"]) for v in layer["data"]["values"] if v["line"] == name]
            assert line == sorted(line, key=lambda p: (p[0], -p[1]))
            assert all(a[1] >= b[1] for a, b in pairwise(line))


def test_other_columns_can_be_axes_lines_and_colours() -> None:
    chart = frontier_chart(
        frontier(), x="ttft_s", y="tok_s_user", line="model", colour="hardware", floors=[None], x_title="TTFT"
    )
    assert {v["fill"] for v in marks(chart, "point")[0]["data"]["values"]} <= {"slow", "fast", "future"}
    by_line = frontier_chart(frontier(), colour="hardware", floors=[None])
    assert all(v["fill"] == v["line"] for v in marks(by_line, "point")[0]["data"]["values"])
    frontier_chart(frontier().clear()).to_dict()


def test_the_six_parts_add_up_to_the_time_per_token() -> None:
    frame = frontier()
    (bars,) = marks(where_time_goes(frame, floors=[20.0]), "bar")
    best = {row["hardware"]: row["tpot_s"] for row in best_at(frame, 20.0, by="hardware").iter_rows(named=True)}
    values = bars["data"]["values"]
    assert {v["line"] for v in values} == set(best)
    for name, tpot in best.items():
        assert sum(v["ms"] for v in values if v["line"] == name) == pytest.approx(1e3 * tpot)


# ---- the page -------------------------------------------------------------------------------------------------------


def test_report_is_complete_relative_and_repeatable(tmp_path: Path) -> None:
    frame = frontier()
    text = write(tmp_path, frame)
    names = {"report.md", "frontier.csv", "frontier.html", "frontier.svg", "frontier.png", "time.svg", "time.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((tmp_path / link).is_file() and "/" not in link for link in links)
    begun, ended = re.findall(r"codesign:begin (\S+)", text), re.findall(r"codesign:end (\S+)", text)
    assert begun == ended and len(set(begun)) == len(begun) >= 8
    for phrase in (
        LABEL, "iso-token", "codesign-sweep 9.9", "`0123456789ab`", "`memory`", "`ideal`", "future: announced",
        "200", "### fast", "dense 48L x 4096", "†", "workload.batch: [1, 4]", "Of confirmed hardware, **fast**",
    ):  # fmt: skip
        assert phrase in text, phrase
    assert "`heads`" not in text  # a reason that no point had
    assert pl.read_csv(tmp_path / "frontier.csv").height == frame.height
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert write(tmp_path, frame) == text
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_frontier_says_so(tmp_path: Path) -> None:
    write(tmp_path, frontier())
    text = write(tmp_path, frontier().clear(), feasible=0)
    assert "no design point of this sweep is feasible" in text and "`memory`" in text
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "frontier.csv"}
    assert "](frontier.svg)" not in text


def test_many_groups_are_thinned_and_the_page_says_where_the_rest_is(tmp_path: Path) -> None:
    by = ("hardware", "workload.context")
    contexts = tuple(2048 * 2**i for i in range(8))
    frame = frontier(by=by, contexts=contexts)
    text = write(tmp_path, frame, by=list(by))
    assert "Shown for 3 of 8 contexts (context 2k, context 16k, context 256k" in text
    headings = re.findall(r"^### (.*)$", text, flags=re.MULTILINE)
    assert len(headings) == 9 and "fast, context 16k" in headings and "fast, context 4k" not in headings
    assert "frontier.parquet" in text
    tables = text.split("## Frontier points")[1].split("<!-- codesign:end")[0].split("### ")[1:]
    assert all(part.count("\n|") - 2 <= 12 for part in tables)
    width, height = png_size(tmp_path / "frontier.png")
    assert height > 1000 and width > 1000
    assert pl.read_csv(tmp_path / "frontier.csv").height == frame.height


def test_a_frame_with_few_columns_is_enough(tmp_path: Path) -> None:
    frame = frontier().select("model", *OBJECTIVES, "tpot_s")
    assert "## Frontier points" in write(tmp_path, frame, by=[])


def test_mixed_contexts_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    text = write(tmp_path, frontier(contexts=(2048, 65536)))
    assert "Frontiers are not kept apart by context" in text
