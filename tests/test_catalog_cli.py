"""`codesign catalog`: lists, one entry, entries side by side, and one-line errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pipelines.catalog import main
from sweep import catalog
from sweep.config import Library, conf_dir


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    said = capsys.readouterr()
    if code:
        assert said.out == "" and len(said.err.strip().splitlines()) == 1
    return said.err if code else said.out


def test_lists_hold_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    library = Library([conf_dir()])
    for what, group in (("models", "model"), ("hardware", "hardware")):
        rows = json.loads(answer(capsys, what, "--format", "json"))
        assert [r["entry"] for r in rows] == [n for n in library.choices(group) if n != "hf"]
    assert "nvfp4" in answer(capsys, "formats")


def test_counts_are_the_published_ones(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(answer(capsys, "models", "--where", "entry == 'deepseek_v3'", "--format", "json"))
    assert row["params_total"] == pytest.approx(6.71e11, rel=1e-3)
    assert row["kv_bytes_per_token"] == 61 * 576 * 2
    rows = json.loads(answer(capsys, "models", "llama_3_1", "--format", "json"))
    assert [r["kv_bytes_per_token"] for r in rows] == [516096, 327680, 131072]


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, "models", "--where", "params_total < 1e9", "--format", "json"))
    assert rows and all(r["params_total"] < 1e9 for r in rows)
    rows = json.loads(answer(capsys, "hardware", "--status", "announced", "--format", "json"))
    assert rows and {r["status"] for r in rows} == {"announced"}
    unpublished = json.loads(answer(capsys, "hardware", "a100", "--where", "fp8_flops > 0", "--format", "json"))
    assert unpublished == []


def test_tags_and_dates(capsys: pytest.CaptureFixture[str]) -> None:
    table = answer(capsys, "hardware", "rubin_vr200")
    assert "[announced]" in table and "2026-07-23 operator" in table
    table = answer(capsys, "compare", "hardware/h100_sxm_80gb", "hardware/rubin_vr200_nvl72_ex_nvl144")
    assert "rubin_vr200_nvl72_ex_nvl144 [announced]" in table and "2026 retail" in table
    assert "[" not in answer(capsys, "hardware", "h100_sxm")


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(answer(capsys, "hardware", "b200", "--format", "csv"))))
    assert {r["entry"] for r in rows} == {"b200_sxm_180gb", "gb200_nvl72"}


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, "show", "model/deepseek_v3")
    for word in ("kv_lora_rank", "params_active", "B/tok", "status: confirmed", "source: ", "note: "):
        assert word in said


def test_compare_shows_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ("compare", "model/deepseek_v3", "model/kimi_k2_instruct")
    fields = {r["field"] for r in json.loads(answer(capsys, *pair, "--format", "json"))}
    assert "n_experts" in fields and "d_model" not in fields
    fields = {r["field"] for r in json.loads(answer(capsys, *pair, "--all", "--format", "json"))}
    assert {"d_model", "source"} <= fields


def test_own_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "n_layers: 2\nd_model: 64\nn_heads: 4\nvocab: 100\nd_ff: 128\nstatus: hypothetical\n"
    )
    assert "mine [hypothetical]" in answer(capsys, "models", "mine", "--config-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "model/deepseek_v33"), "deepseek_v3"),
        (("show", "modle/deepseek_v3"), "model"),
        (("compare", "model/deepseek_v3", "hardware/h200_sxm_141gb"), "models compare with models"),
        (("compare", "model/deepseek_v3"), "two entries"),
        (("models", "--where", "params_totl < 1"), "params_total"),
        (("models", "--where", "name < 1"), "cannot be evaluated"),
        (("hardware", "--status", "anounced"), "announced"),
        (("models", "--config-dir", "/no/such"), "no such directory"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert said in answer(capsys, *words, code=1)


def test_usage() -> None:
    assert main(["modells"]) == 2


def test_untagged_names() -> None:
    assert catalog.tag({"entry": "x", "status": "estimated"}) == "x [estimated]"
    assert catalog.tag({"entry": "x", "status": "confirmed"}) == "x"
