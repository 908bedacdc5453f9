"""The documents: marked commands are run, all others name a pipeline that exists, every link leads somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from pipelines.__main__ import available
from sweep.columns import BY_NAME

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
_BLOCK = re.compile(r"^<!-- (run|file: (?P<file>\S+)) -->\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"(?:codesign|python -m pipelines\.)\s?([a-z]+)\b")


def test_the_guide_runs_from_the_question_to_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    ran = []
    for block in _BLOCK.finditer(text):
        if block["file"]:
            path = tmp_path / block["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"], encoding="utf-8")
            continue
        for line in block["text"].splitlines():
            assert line.startswith("$ codesign "), line
            name, *words = shlex.split(line.removeprefix("$ codesign "))
            code = importlib.import_module(f"pipelines.{name}").main(words)
            said = capsys.readouterr()
            assert code == 0 and said.out, (line, said.err)
            ran.append(name)
    assert {"sweep", "query", "frontier", "compare", "explain", "sensitivity", "report", "catalog"} <= set(ran)
    plan = (tmp_path / "plans" / "plan.md").read_text(encoding="utf-8")
    assert "design points were evaluated" in plan and "up to date" in said_of_second_report(tmp_path, capsys)
    for made in ("hundred_b/frontier.html", "nvfp4/compare.svg", "levers.svg", "fast/frontier.parquet"):
        assert (tmp_path / "plans" / made).stat().st_size > 1000, made


def said_of_second_report(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a third refresh of the document says: nothing to do."""
    report = importlib.import_module("pipelines.report")
    assert report.main([str(directory / "plans" / "hundred_b"), "--doc", str(directory / "plans" / "plan.md")]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_and_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    fenced = "\n".join(re.findall(r"^```(?:console|sh|bash)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    names = set(_COMMAND.findall(fenced)) | set(re.findall(r"`(?:codesign|python -m pipelines\.)\s?([a-z]+)\b", text))
    assert names <= set(available()), names - set(available())
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (path.parent / link).exists(), link


def test_the_glossary_names_columns_that_there_are() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    table = text.split("## Of frontiers")[0]
    named: set[str] = set()
    for row in re.findall(r"^\| [^|]+ \| ([^|]+) \|", table, re.MULTILINE):
        named |= {word for cell in re.findall(r"`([^`]+)`", row) for word in cell.split()}
    columns = {name for name in named if "." not in name}
    assert columns <= set(BY_NAME), columns - set(BY_NAME)
    assert {"tok_s_user", "tok_s_gpu", "total_tok_s_gpu", "ttft_s", "accuracy", "feasible"} <= columns
