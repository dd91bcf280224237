"""`spgd report` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.commands.report import report
from sparsepgd.errors import SourceError
from sparsepgd.runs import runs
from sparsepgd.runs.folders import load
from support.models import SmallConvNet, images, labelled
from support.small_runs import killed_after
from support.terminal import spgd

EVALUATE = ("evaluate", "-n", "8", "--attack", "spgd", "--steps", "3", "--out", "runs/both")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    done = spgd(*EVALUATE, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "report in runs/both/report.html" in done.stdout
    return place


def test_evaluate_leaves_a_page_beside_each_record_and_one_of_all(place: Path) -> None:
    for name in zoo.bundled_names():
        folder = place / "runs" / "both" / name
        assert {file.name for file in folder.iterdir()} == {"adversarial.safetensors", "report.html", "run.json"}
        record = load(folder)
        assert record.about.command == "spgd " + " ".join(EVALUATE)
        assert record.about.class_names[3] == "cat"
        assert record.rows[0].confidence is not None
        assert "spgd evaluate -n 8" in (folder / "report.html").read_text()
    assert f"{len(zoo.bundled_names())} runs side by side" in (place / "runs" / "both" / "report.html").read_text()


def test_report_writes_page_and_figures_where_it_is_told(place: Path, tmp_path: Path) -> None:
    one = place / "runs" / "both" / "small-plain"
    done = spgd("report", str(one), "--out", "new/page.html", "--figures", "new/figures", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("report in new/page.html, 0.")
    assert "small-plain under spgd" in (tmp_path / "new" / "page.html").read_text()
    kinds = [file.suffix for file in (tmp_path / "new" / "figures").iterdir()]
    assert kinds.count(".svg") == kinds.count(".png") >= 6


def test_several_runs_make_one_page_here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report([place / "runs" / "both" / name for name in ("small-plain", "small-strades")])
    assert "2 models under spgd-unprojected" in (tmp_path / "report.html").read_text()


def test_a_run_that_is_not_finished_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = SmallConvNet().eval(), images(8)
    problem = model, (x, labelled(model, x))
    attack = sp.SparsePGD(sp.Budget(k=6), 5)
    with killed_after(1):
        runs.run(tmp_path / "half", attack, *problem, chunk=4)
    with pytest.raises(SourceError, match="half is not finished, with 4 images done"):
        report([tmp_path])
    runs.run(tmp_path / "whole", attack, *problem)
    report([tmp_path])
    said = "".join(capsys.readouterr().out.splitlines())
    assert f"warning: {tmp_path / 'half'} is not finished and was skipped; run its command again to resume it" in said
    assert "whole is not finished" not in said


def test_what_cannot_be_done_is_said(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SourceError, match=r"no run in .*: it has no run.json; use the --out of spgd evaluate"):
        report([tmp_path / "nowhere"])
    run = place / "runs" / "both" / "small-plain"
    for page in (tmp_path, tmp_path / "file" / "page.html"):
        with pytest.raises(SourceError, match=r"cannot be written: .*; choose another --out"):
            report([run], page)
    with pytest.raises(SourceError, match="cannot be made"):
        report([run], tmp_path / "page.html", tmp_path / "file")
    assert not (tmp_path / "page.html").exists(), "nothing is written where something is wrong"
