"""The parts of RESULTS.md that benchmarks write themselves."""

from pathlib import Path

import pytest

from benchmarks import results


def test_only_the_part_between_its_marks_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text(
        "# Results\n<!-- a -->\nold\n<!-- end of a -->\nkept\n<!-- b -->\n<!-- end of b -->\n", encoding="utf-8"
    )
    monkeypatch.setattr(results, "RESULTS", path)
    results.record("a", results.fenced("new\n"))
    text = path.read_text(encoding="utf-8")
    assert text == "# Results\n<!-- a -->\n```text\nnew\n```\n<!-- end of a -->\nkept\n<!-- b -->\n<!-- end of b -->\n"
    with pytest.raises(ValueError, match="no part 'c'"):
        results.record("c", "text")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("part", ["figures", "links", "mixtures on links"])
def test_results_has_every_part_that_is_written(part: str) -> None:
    text = results.RESULTS.read_text(encoding="utf-8")
    assert f"<!-- {part} -->" in text.partition(f"<!-- end of {part} -->")[0]
