"""Public functions take paths as text, too."""

import inspect
from pathlib import Path

import lesson
from helpers.run_folders import make_comparison
from helpers.runs import PARTS, settings


def test_text_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("client,latency_s\n0,1\n1,2\n")
    assert len(lesson.read_fleet(str(tmp_path / "fleet.csv"), lesson.Settings())) == 2
    make_comparison(tmp_path / "compared", num_seeds=1)
    assert len(lesson.load(str(tmp_path / "compared")).runs) == 2  # type: ignore[union-attr]
    run = lesson.run(settings=settings(rounds=2), task=PARTS["task"], out=str(tmp_path / "run"), data_dir=str(tmp_path))
    assert run.path == tmp_path / "run"


def test_no_public_signature_wants_a_path_object() -> None:
    """Where a parameter says Path, it says str, too."""
    for function in (getattr(lesson, name) for name in lesson.__all__):
        for name, parameter in inspect.signature(function).parameters.items() if inspect.isfunction(function) else ():
            assert "Path" not in str(parameter.annotation) or "str" in str(parameter.annotation), (function, name)
