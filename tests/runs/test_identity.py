"""What a run is known by."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.distributed import Workers
from sparsepgd.errors import ModelError, SparsePGDError, UnsupportedError
from sparsepgd.runs import identity, runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.folders import Folder, load
from support.models import SmallConvNet
from support.small_runs import ATTACK, killed_after, problem, start

ROOT = Path(__file__).parent.parent.parent


def test_hardware_is_the_gpu_by_name_or_the_processor_with_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    words = identity.hardware(torch.device("cpu"))
    assert words.endswith(f", {os.cpu_count()} cores")
    assert not words.startswith((",", "CPU,"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert identity.hardware(torch.device("cuda:1")) == "GPU 1"
    assert identity.environment(torch.device("cpu"))["hardware"] == words


def test_hardware_is_named_in_one_place() -> None:
    files = [file for folder in ("src", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    words = ("get_device_name(", "platform.processor(")
    assert {file.name for file in files if any(word in file.read_text() for word in words)} == {"identity.py"}


class Edited(SmallConvNet):
    """The same weights and structure as `SmallConvNet`, and other code."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(1 - x)


Edited.__name__ = "SmallConvNet"


@pytest.mark.parametrize("done", [1, None])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("k", "attack.budget.k was 6, is 7"),
        ("pattern", "attack.budget.pattern.kind was Pixels, is Rows"),
        ("steps", "attack.steps was 15, is 16"),
        ("attack", "attack.name was spgd-unprojected, is sparse-rs"),
        ("revision", "attack.revision was null, is 3"),
        ("seed", "seed was 0, is 1"),
        ("model", r"model.digest was \w{12}\.\.\., is \w{12}"),
        ("model name", "model.name was SmallConvNet, is another"),
        ("images", r"data.sha256 was \w{12}\.\.\., is \w{12}"),
        ("labels", r"data.sha256 was \w{12}\.\.\., is \w{12}"),
        ("n", "data.images was 12, is 11"),
    ],
)
def test_another_run_in_the_folder_is_refused(
    change: str, message: str, done: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, stop_after=done)
    model, (x, y) = problem(seed=1 if change == "model" else 0)
    y = problem()[1][1]
    attack, names, seed = ATTACK, {}, 0
    match change:
        case "k":
            attack = sp.SparsePGD(sp.Budget(k=7), steps=15)
        case "pattern":
            attack = sp.SparsePGD(sp.Budget(k=6, pattern=sp.Rows()), steps=15)
        case "steps":
            attack = dataclasses.replace(ATTACK, steps=16)
        case "attack":
            attack = sp.SparseRS(sp.Budget(k=6), queries=9)
        case "revision":
            monkeypatch.setattr(sp.SparsePGD, "revision", 3)
        case "seed":
            seed = 1
        case "model name":
            names = {"model": "another"}
        case "images":
            x = x.flip(3)
        case "labels":
            y = (y + 1) % 5
        case "n":
            x, y = x[:11], y[:11]
    with pytest.raises(UnsupportedError, match=f"holds another run: .*{message}.*choose another --out or delete"):
        runs.run(tmp_path, attack, model, (x, y), names, seed=seed)


def test_a_run_that_never_got_anywhere_blocks_no_other(tmp_path: Path) -> None:
    model, data = problem()
    with pytest.raises(SparsePGDError, match="k=500 pixels"):
        runs.run(tmp_path, sp.SparsePGD(sp.Budget(k=500), steps=2), model, data)
    assert start(tmp_path).finished


@pytest.mark.parametrize("done", [1, None])
def test_a_model_whose_code_was_edited_is_not_taken_for_the_one_of_the_folder(done: int | None, tmp_path: Path) -> None:
    start(tmp_path, stop_after=done)
    _, data = problem()
    with pytest.raises(UnsupportedError, match="the model differs from the one that started the run"):
        runs.run(tmp_path, ATTACK, Edited().eval(), data, chunk=4)


def test_each_worker_must_have_the_model_that_began_the_run(tmp_path: Path) -> None:
    class Second(Workers):
        def share(self, make: object) -> object:
            return Folder(tmp_path).head()

    start(tmp_path, stop_after=1)
    _, data = problem()
    with pytest.raises(UnsupportedError, match="worker 1 has different settings than the first: the model differs"):
        runs.run(tmp_path, ATTACK, Edited().eval(), data, workers=Second(rank=1, world=2))


def test_answers_that_differ_by_round_off_are_the_same_model(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    assert len(content["answers"]) == 2
    content["answers"] = [[value * 1.0003 for value in row] for row in content["answers"]]
    head.write_text(json.dumps(content))
    assert start(tmp_path).finished


def test_a_folder_from_before_answers_were_kept_goes_on(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    del content["answers"]
    head.write_text(json.dumps(content))
    assert start(tmp_path).finished


def test_a_randomised_model_is_not_held_to_its_answers(tmp_path: Path) -> None:
    class Random(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(1)

    record = runs.run(tmp_path, ATTACK, Random().eval(), problem()[1])
    assert record.answers == ()
    assert runs.run(tmp_path, ATTACK, Random().eval(), problem()[1]) == record


def test_a_plain_function_is_known_by_its_name_alone(tmp_path: Path) -> None:
    model, data = problem()
    attack = sp.SparseRS(sp.Budget(k=6), queries=20)
    record = runs.run(tmp_path, attack, lambda x: model(x).detach(), data, {"model": "service"})
    assert record.configuration["model"] == {"name": "service", "sha256": None}
    assert runs.run(tmp_path, attack, lambda x: model(x).detach(), data, {"model": "service"}) == record


@pytest.mark.parametrize("done", [1, None])
def test_a_function_without_a_name_is_never_taken_for_the_one_of_the_folder(done: int | None, tmp_path: Path) -> None:
    model, data = problem()
    attack = sp.SparseRS(sp.Budget(k=6), queries=20)
    with nullcontext() if done is None else killed_after(done):
        runs.run(tmp_path, attack, lambda x: model(x), data, chunk=4)
    with pytest.raises(
        UnsupportedError, match=r"plain function, which cannot be recognised.*names=\{\"model\": ...\} in sp.evaluate"
    ):
        runs.run(tmp_path, attack, lambda x: -model(x), data, chunk=4)


def test_a_function_without_a_name_may_begin_where_nothing_was_done(tmp_path: Path) -> None:
    model, data = problem()
    attack = sp.SparseRS(sp.Budget(k=6), queries=20)
    with killed_after(0):
        runs.run(tmp_path, attack, lambda x: model(x), data)
    assert runs.run(tmp_path, attack, lambda x: -model(x), data).clean_accuracy == 0


@pytest.mark.parametrize("names", [{"attack": "mine"}, {"seed": "7"}, {"model": 3}])
def test_names_replace_no_setting_and_are_texts(names: dict, tmp_path: Path) -> None:
    model, data = problem()
    with pytest.raises(UnsupportedError, match=f"names has {next(iter(names))!r}: .*; expected texts"):
        runs.run(tmp_path, ATTACK, model, data, names)


def test_a_setting_that_is_off_where_it_exists_makes_no_other_run() -> None:
    now = {"attack": {"name": "saa", "steps": 5, "version": "paper"}, "seed": 0}
    old = {"attack": {"name": "saa", "steps": 5, "near": False}, "near": [], "seed": 0}
    assert identity.differences(old, now) == []
    assert identity.differences({"steps": 5}, {"steps": 5, "mixed": 0.0, "keep": False}) == []
    assert identity.differences({"steps": 5}, {"steps": 5, "mixed": 0.5}) == ["mixed was null, is 0.5"]
    assert identity.differences({"mixed": 0.5}, {"mixed": 0.0}) == ["mixed was 0.5, is 0.0"]
    assert identity.differences({**old, "attack": {**old["attack"], "near": True}}, now) == [
        "attack.near was true, is null"
    ]
    assert identity.differences({**now, "attack": {**now["attack"], "version": "standard"}}, now) == [
        "attack.version was standard, is paper"
    ]


class Own(nn.Conv2d):
    """Derived from a layer of torch, with words of its own."""

    def __init__(self, *args: int, words: str = "", **settings: int) -> None:
        super().__init__(*args, **settings)
        self.words, self.calls = words, 0

    def extra_repr(self) -> str:
        return self.words


def zeroed(model: nn.Module) -> nn.Module:
    for value in model.state_dict().values():
        value.zero_()
    return model


def other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that prints modules differently, and whose layers have one more argument."""
    init = nn.Conv2d.__init__

    def later(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True,
        padding_mode="zeros", device=None, dtype=None, smooth=False,
    ) -> None:  # fmt: skip
        init(
            self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device,
            dtype,
        )  # fmt: skip
        self.smooth = smooth

    monkeypatch.setattr(nn.Module, "__repr__", lambda self: f"<{type(self).__name__}>")
    monkeypatch.setattr(nn.BatchNorm2d, "extra_repr", lambda self: "and more")
    monkeypatch.setattr(nn.Conv2d, "__init__", later)
    monkeypatch.setattr(torch, "__version__", "9.9.0")


def test_the_digest_of_a_model_does_not_depend_on_what_torch_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.model_digests(SmallConvNet())
    assert identity.model_digests(SmallConvNet()) == before
    other_torch(monkeypatch)
    after = identity.model_digests(SmallConvNet())
    assert after["sha256"] != before["sha256"]
    assert after["digest"] == before["digest"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3, stride=2)),
        (nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3, padding_mode="circular")),
        (nn.BatchNorm2d(2), nn.BatchNorm2d(2, eps=1e-3)),
        (nn.Dropout(), nn.Dropout(0.2)),
        (nn.ReLU(), nn.SiLU()),
        (nn.LeakyReLU(), nn.LeakyReLU(0.2)),
        (nn.GELU(), nn.GELU("tanh")),
        (nn.LSTM(2, 3), nn.LSTM(2, 3, batch_first=True)),
        (nn.TransformerEncoderLayer(4, 2), nn.TransformerEncoderLayer(4, 2, activation="gelu")),
        (nn.Linear(2, 2), nn.Linear(2, 2, bias=False)),
        (Own(1, 2, 3), Own(1, 2, 3, stride=2)),
        (Own(1, 2, 3), Own(1, 2, 3, words="sharp")),
        (nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Sequential(nn.Flatten(), nn.ReLU())),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU())),
        (nn.ModuleDict({"a": nn.ReLU()}), nn.ModuleDict({"b": nn.ReLU()})),
    ],
    ids=lambda layer: " ".join(str(layer).split())[:40],
)
def test_what_decides_the_answers_of_a_layer_decides_its_digest(one: nn.Module, other: nn.Module) -> None:
    assert identity.stable_digest(zeroed(one)) != identity.stable_digest(zeroed(other))


def test_a_module_that_is_used_twice_counts_twice() -> None:
    shared = nn.ReLU()
    twice, alike = nn.Sequential(shared, nn.Flatten(), shared), nn.Sequential(nn.ReLU(), nn.Flatten(), nn.ReLU())
    assert identity.stable_digest(twice) == identity.stable_digest(alike)


def test_weights_decide_the_digest_and_counters_do_not() -> None:
    model = Own(1, 2, 3)
    before = identity.stable_digest(model)
    model.calls += 1
    assert identity.stable_digest(model) == before
    with torch.no_grad():
        model.bias[1] += 1
    assert identity.stable_digest(model) != before


@pytest.mark.parametrize("done", [1, None])
def test_a_run_is_resumed_and_checked_under_another_version_of_torch(
    done: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, stop_after=done)
    other_torch(monkeypatch)
    record = start(tmp_path)
    assert record.finished
    assert [notice.code for notice in record.warnings if notice.code == "mixed"] == ["mixed"] * bool(done)
    assert audit(tmp_path, problem()[0]).sound


@pytest.mark.parametrize("done", [1, None])
def test_a_run_from_before_that_digest_goes_on_where_torch_is_the_same(
    done: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as old:
        old.setattr(identity, "model_digests", lambda model: {"sha256": identity.model_digest(model)})
        start(tmp_path, stop_after=done)
    assert start(tmp_path).finished
    assert set(load(tmp_path).configuration["model"]) == {"name", "sha256"}  # its chunks were kept
    assert audit(tmp_path, problem()[0]).sound
    with pytest.raises(UnsupportedError, match=r"model\.sha256 is"):
        audit(tmp_path, problem(seed=1)[0])


def test_a_run_from_before_that_digest_is_refused_under_another_torch_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = torch.__version__
    with monkeypatch.context() as old:
        old.setattr(identity, "model_digests", lambda model: {"sha256": identity.model_digest(model)})
        start(tmp_path, stop_after=1)
    other_torch(monkeypatch)
    with pytest.raises(UnsupportedError) as caught:
        start(tmp_path)
    assert f"if it is the same model, resume with torch {began}, which describes models" in str(caught.value)


def test_a_model_whose_layers_have_no_shape_yet_is_refused() -> None:
    x, y = torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
    with pytest.raises(ModelError, match=r"1\.weight of the model has no shape yet; call the model once"):
        sp.evaluate(model, x, y, sp.Budget(k=1), steps=2, queries=2)
