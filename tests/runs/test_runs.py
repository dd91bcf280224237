"""Runs: what the record holds, and that a run which stopped goes on to the same end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsepgd as sp
from sparsepgd import baselines, zoo
from sparsepgd.errors import EngineWarning, RangeError, SourceError, UnsupportedError
from sparsepgd.problem.engine import Engine
from sparsepgd.runs import runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.folders import load, load_adversarial
from sparsepgd.runs.records import About
from sparsepgd.sources import Data
from support.models import Tight
from support.small_runs import ATTACK, TIMES, killed_after, outcome, problem, start


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    start(folder)
    return folder


def test_the_record_holds_what_the_attack_found(undisturbed: Path) -> None:
    model, (x, y) = problem()
    result = ATTACK(model, x, y, seed=0)
    record = load(undisturbed)
    assert record.robust_accuracy == pytest.approx(result.robust_accuracy)
    assert [row.fooled for row in record.rows] == result.fooled.tolist()
    assert [row.l0 for row in record.rows] == result.l0.tolist()
    assert [row.index for row in record.rows] == list(range(12))
    assert record.robust_interval[0] < record.robust_accuracy < record.robust_interval[1]
    assert record.configuration["attack"]["budget"]["k"] == 6
    assert record.environment["torch"] == torch.__version__
    assert [part.stop for part in record.chunks] == [4, 8, 12]
    assert sorted(file.name for file in undisturbed.iterdir()) == ["adversarial.safetensors", "run.json"]
    tensors = load_adversarial(undisturbed)
    assert torch.equal(tensors["y"], y)
    assert (tensors["x_adv"] - result.x_adv).abs().max() < 1e-6


def test_names_of_classes_come_with_the_data() -> None:
    model, (x, y) = problem(2)
    named = runs.run(None, ATTACK, model, Data(x, y, ("one", "two")))
    assert named.about.class_names == ("one", "two")
    assert runs.run(None, ATTACK, model, (x, y)).about == About()


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(undisturbed: Path) -> None:
    record = runs.run(None, ATTACK, *problem())
    assert record.model_dump(exclude={*TIMES, "adversarial", "rows"}) == load(undisturbed).model_dump(
        exclude={*TIMES, "adversarial", "rows"}
    )


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_run_goes_on_where_it_stopped(done: int, undisturbed: Path, tmp_path: Path, monkeypatch) -> None:
    start(tmp_path / "r", stop_after=done)
    with pytest.raises(SourceError, match=f"not finished, with {4 * done} images done; run its command again"):
        load(tmp_path / "r")
    attacked = []
    real = runs.attack_chunk
    monkeypatch.setattr(runs, "attack_chunk", lambda *args: attacked.append(args[2]) or real(*args))
    start(tmp_path / "r")
    assert attacked == list(range(4 * done, 12, 4))
    assert outcome(tmp_path / "r") == outcome(undisturbed)


def test_a_finished_run_is_only_read(tmp_path: Path, monkeypatch) -> None:
    first = start(tmp_path)
    monkeypatch.setattr(runs, "attack_chunk", None)
    assert start(tmp_path) == first


def test_a_run_may_go_on_with_chunks_of_another_size(undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    record = start(tmp_path, chunk=5)
    assert [(part.start, part.stop) for part in record.chunks] == [(0, 4), (4, 9), (9, 12)]
    assert [row.fooled for row in record.rows] == [row.fooled for row in load(undisturbed).rows]


def test_compilation_without_effect_is_warned_of_once_and_not_recorded(tmp_path: Path) -> None:
    model, data = problem()
    with pytest.warns(EngineWarning, match="compile=True has no effect on cpu") as caught:
        record = runs.run(tmp_path, ATTACK, model, data, chunk=4, engine=Engine("fp32", compile=True))
    assert len(caught) == 1
    assert len(record.chunks) == 3
    assert record.environment["engine"] == "precision=fp32, compile=False"
    assert "EngineWarning" not in {notice.code for notice in record.warnings}


def test_a_finished_run_of_another_precision_says_what_it_was_made_with(tmp_path: Path) -> None:
    model, data = problem()
    first = runs.run(tmp_path, ATTACK, model, data)
    again = runs.run(tmp_path, ATTACK, model, data, engine=Engine("bf16"))
    (notice,) = set(again.warnings) - set(first.warnings)
    assert "finished with no engine given and only read; to run it with precision=bf16" in notice.message
    assert load(tmp_path) == first


@pytest.mark.parametrize("wrong", ["empty", "range", "chunk"])
def test_wrong_use_leaves_no_folder_behind(wrong: str, tmp_path: Path) -> None:
    model, (x, y) = problem()
    data = {"empty": (x[:0], y[:0]), "range": (x - 1, y), "chunk": (x, y)}[wrong]
    expected = {"empty": SourceError, "range": RangeError, "chunk": UnsupportedError}[wrong]
    with pytest.raises(expected):
        runs.run(tmp_path / "r", ATTACK, model, data, chunk=0 if wrong == "chunk" else 4)
    assert not (tmp_path / "r").exists()


def test_the_result_does_not_depend_on_the_chunks(tmp_path: Path) -> None:
    """In float64: in float32 an image that is alone in its batch may get logits that differ in the last bit."""
    x, y = zoo.bundled_images(24)
    model, x = zoo.load("small-plain").double(), x.double()
    attack = sp.SparsePGD(sp.Budget(k=8), steps=4)
    for chunk in (24, 7):
        runs.run(tmp_path / str(chunk), attack, model, (x, y), chunk=chunk, batch_size=8)
    whole, parts = (load(tmp_path / str(chunk)) for chunk in (24, 7))
    assert 0 < whole.robust_accuracy < whole.clean_accuracy
    for one, other in zip(whole.rows, parts.rows, strict=True):
        assert one.model_dump(exclude={"loss"}) == other.model_dump(exclude={"loss"})
        assert one.loss == pytest.approx(other.loss, abs=1e-9)
    first, second = (load_adversarial(tmp_path / str(chunk))["x_adv"] for chunk in (24, 7))
    assert (first - second).abs().max() < 1e-9


def test_a_run_with_an_infinite_hyper_parameter_goes_on_and_is_read_again(tmp_path: Path) -> None:
    model, data = problem()
    attack = baselines.CWL0.quick(sp.Budget(k=6))
    with killed_after(1):
        runs.run(tmp_path, attack, model, data, chunk=4)
    record = runs.run(tmp_path, attack, model, data, chunk=4)
    assert [part.start for part in record.chunks] == [0, 4, 8]
    assert record == runs.run(tmp_path, attack, model, data)
    assert record.configuration["attack"]["small"] == "inf"
    json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)  # JSON has no Infinity
    with pytest.raises(UnsupportedError, match=r"attack\.small was inf, is 1\.0"):
        runs.run(tmp_path, dataclasses.replace(attack, small=1.0), model, data)


def test_numbers_of_numpy_are_as_good_as_pythons(tmp_path: Path) -> None:
    model, data = problem()
    plain, numpys = (sp.SparsePGD(sp.Budget(k=6), steps) for steps in (4, np.int64(4)))
    record = runs.run(tmp_path, numpys, model, data, seed=np.int64(3), batch_size=np.int64(5))
    assert record == runs.run(tmp_path, plain, model, data, seed=3)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_batch_sizes_that_are_none_are_refused_and_leave_no_folder_behind(size: float, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"batch_size={size}; expected"):
        runs.run(tmp_path / "r", ATTACK, *problem(), batch_size=size)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("attack", [ATTACK, baselines.GreedyFool(sp.Budget(k=6), 8)], ids=["stepwise", "standalone"])
def test_a_run_on_a_device_with_little_memory_ends_like_one_with_much(attack) -> None:
    model, (x, y) = problem()
    tight = Tight(3, model)
    small, large = (runs.run(None, attack, net, (x, y)) for net in (tight, model))
    assert tight.refused > 0
    assert [row.fooled for row in small.rows] == [row.fooled for row in large.rows]
    assert [row.forwards for row in small.rows] == [row.forwards for row in large.rows]


def test_any_object_with_the_call_shape_will_do(tmp_path: Path) -> None:
    class Mine:
        name = "mine"

        def __call__(self, *args, **options) -> sp.Result:
            return ATTACK(*args, **options)

    record = runs.run(tmp_path, Mine(), *problem(), chunk=5)
    assert record.configuration["attack"]["kind"] == "Mine"
    assert runs.run(tmp_path, Mine(), *problem()) == record
    with pytest.raises(UnsupportedError, match="has no budget; pass it"):
        audit(tmp_path, *problem())
    fooled = sum(row.fooled for row in record.rows)
    assert audit(tmp_path, *problem(), budget=sp.Budget(k=6)).held == fooled


def test_progress_covers_the_whole_run(tmp_path: Path) -> None:
    model, data = problem()
    told: list[tuple[int, int, int]] = []
    record = runs.run(tmp_path, ATTACK, model, data, chunk=5, progress=lambda *args: told.append(args))
    done, total, fooled = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert (done[-1], set(total)) == (12_000, {12_000})
    assert fooled[-1] == sum(row.fooled for row in record.rows)


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    content["environment"]["torch"] = "1.0"
    head.write_text(json.dumps(content))
    (notice,) = (notice for notice in start(tmp_path).warnings if notice.code == "mixed")
    assert "torch was 1.0, is" in notice.message


def test_a_run_that_went_on_elsewhere_and_ends_where_it_began_says_so(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    here = head.read_text()
    content = json.loads(here)
    content["environment"]["torch"] = "1.0"
    head.write_text(json.dumps(content))
    start(tmp_path, stop_after=1)
    head.write_text(here)
    assert [notice.code for notice in start(tmp_path).warnings].count("mixed") == 1


def test_folders_are_split_only_where_there_is_more_than_one() -> None:
    out = Path("runs/a")
    assert runs.folders(None, ["m"], ["s"]) == [[None]]
    assert runs.folders(out, ["m"], ["s"]) == [[out]]
    assert runs.folders(out, ["m", "file:f"], ["s"]) == [[out / "m", out / "file-f"]]
    assert runs.folders(out, ["m"], ["s", "t"]) == [[out / "s"], [out / "t"]]
    assert runs.folders(out, ["m", "m"], ["s", "t"])[1] == [out / "m" / "t", out / "m-2" / "t"]


@dataclasses.dataclass(frozen=True)
class Wider:
    """An attack of another package that returns its images in another type."""

    name: str = "wider"
    budget: sp.Budget = ATTACK.budget

    def __call__(self, model: object, x: torch.Tensor, y: torch.Tensor, **options: object) -> sp.Result:
        result = ATTACK(model, x, y)  # type: ignore[arg-type]
        return dataclasses.replace(result, x_adv=result.x_adv.double())


def test_images_of_another_type_than_those_given_are_refused_and_not_written(tmp_path: Path) -> None:
    model, data = problem()
    message = r"wider returned images of type torch.float64 and shape \(4, 3, 12, 12\); expected torch.float32 and"
    with pytest.raises(UnsupportedError, match=message):
        runs.run(tmp_path, Wider(), lambda x: model(x.float()), data, {"model": "m"}, chunk=4)  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*.safetensors"))
