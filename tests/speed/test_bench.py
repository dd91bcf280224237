"""Benchmarks: everything is measured, and what the record says can be checked."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.adapters import Outside, outside
from sparsepgd.errors import SourceError
from sparsepgd.speed import bench, rivals
from support.models import SmallConvNet, images, labelled

MODEL = SmallConvNet().eval()
X = images(10)
Y = labelled(MODEL, X)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> bench.Bench:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    return bench.Bench(MODEL, X, Y, sp.Budget(k=3), steps=6, queries=7, seeds=(0, 1), batch_size=4)


def black(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Three black pixels, wherever they may lead."""
    x = x.clone()
    x[:, :, 0, :3] = 0
    return x


def everything(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    return 1 - x


def test_the_model_every_attack_and_every_rival_are_in_the_record(job: bench.Bench) -> None:
    told: list[object] = []
    record = bench.measure(job, [("fp32", False)], {"black": black}, on_row=told.append, model="small")
    assert json.loads(json.dumps(record))["model"] == "small"
    assert [row["work"] for row in record["bare"]] == ["input and parameter gradients", "forward", "input gradient"]
    assert [row["name"] for row in record["attacks"]] == [*bench.ATTACKS, "black"]
    assert len(told) == 8
    assert all(row["us"] > 0 for row in record["bare"])
    for row in record["attacks"]:
        assert len(row["seconds"]) == len(row["robust"]) == 2
        assert all(second > 0 for second in row["seconds"])


def test_robust_images_and_use_of_slots_are_those_of_the_attack(job: bench.Bench) -> None:
    timed = job.ours(job.attack("spgd-projected"), "fp32", False, {"input gradient": 100.0})
    expected = [sp.SparsePGD(sp.Budget(k=3), 6, "projected")(MODEL, X, Y, seed=seed) for seed in (0, 1)]
    assert timed.robust == tuple(int(result.robust.sum()) for result in expected)
    assert timed.slots_used == 1.0  # on a CPU no slot is empty
    assert timed.us == pytest.approx(1e6 * timed.seconds[-1] / int(expected[-1].forwards.sum()))
    assert timed.ratio == pytest.approx(timed.us / 100)


def test_a_rival_that_leaves_the_budget_has_no_success(job: bench.Bench) -> None:
    assert job.theirs("cheat", everything).robust == (10, 10)
    said = MODEL(black(MODEL, X, Y, 0)).argmax(1)
    assert job.theirs("black", black).robust[0] == int((said == Y).sum())


def test_rivals_are_warmed_up_as_ours_are(job: bench.Bench) -> None:
    seeds: list[int] = []

    def watched(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        seeds.append(seed)
        return black(model, x, y, seed)

    timed = job.theirs("black", watched)
    assert seeds == [0, 0, 1]
    assert len(timed.seconds) == 2


def test_the_time_to_a_verdict_is_known_where_it_was_reached(job: bench.Bench) -> None:
    attack = job.attack("anneal")
    hardly = dataclasses.replace(job, verdict=0.0).ours(attack, "fp32", False, {})
    soon = dataclasses.replace(job, verdict=1.01).ours(attack, "fp32", False, {})
    assert hardly.below is None
    assert soon.below is not None
    assert dataclasses.replace(job, verdict=0.0).theirs("black", black).below is None
    assert dataclasses.replace(job, verdict=1.01).theirs("black", black).below is not None


def test_the_share_outside_the_model_follows_from_the_ratio(job: bench.Bench) -> None:
    slow, fast = (job.ours(job.attack("sparse-rs"), "fp32", False, {"forward": us}) for us in (1e-3, 1e9))
    assert slow.outside == pytest.approx(1, abs=1e-3)
    assert fast.outside == 0


def test_the_model_is_as_it_was(job: bench.Bench) -> None:
    MODEL.train()
    try:
        list(job.bare([("fp32", False)]))
        assert MODEL.training
        assert all(p.grad is None and p.requires_grad for p in MODEL.parameters())
    finally:
        MODEL.eval()


def test_a_checkout_without_the_code_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"spgd\.py; give the folder of a checkout"):
        rivals.official(tmp_path, 20, 10, 10)
    with pytest.raises(SourceError, match=r"no file .*rs_attacks\.py"):
        rivals.sparse_rs(tmp_path, 20, 10)


def test_code_of_a_checkout_runs_beside_ours(tmp_path: Path, job: bench.Bench) -> None:
    """A checkout of the same shape: classes of these names with these arguments, and imports that are missing here."""
    folder = tmp_path / "autoattack"
    folder.mkdir()
    (folder / "spgd.py").write_text(
        "from skimage.util import random_noise\n"
        "class SparsePGD:\n"
        "    def __init__(self, model, k, t, unprojected_gradient): self.k = k\n"
        "    def __call__(self, x, y, seed):\n"
        "        x = x.clone(); x[:, :, 0, : self.k] = 0\n"
        "        return x, None, None, None\n"
    )
    (folder / "rs_attacks.py").write_text(
        "from utils import Logger\n"
        "class RSAttack:\n"
        "    def __init__(self, model, **settings): self.settings = settings; Logger('x').log('y')\n"
        "    def perturb(self, x, y): return None, x\n"
    )
    found = rivals.official(tmp_path, 3, 10, 10)
    assert list(found) == ["official spgd-unprojected", "official spgd-projected", "official sparse-rs", "official saa"]
    assert job.theirs("all", found["official saa"]).robust == job.theirs("black", black).robust
    assert job.theirs("a", found["official spgd-projected"]).robust == job.theirs("b", black).robust
    assert job.theirs("c", found["official sparse-rs"]).robust == (10, 10)


def test_rivals_draw_under_their_seed_and_leave_the_global_generator_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "rs_attacks.py").write_text(
        "import torch\n"
        "class RSAttack:\n"
        "    def __init__(self, model, **settings): pass\n"
        "    def perturb(self, x, y): return None, torch.rand_like(x)\n"
    )
    (attack,) = rivals.sparse_rs(tmp_path, 3, 10).values()
    before = torch.get_rng_state()
    first, again, other = (attack(MODEL, X, Y, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_attacks_of_installed_packages_are_called_by_name_and_leave_the_global_generator_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever of them is installed: their classes are stand-ins that draw."""
    names = ("SparseFool", "L0FMNAttack", "SaliencyMapMethod", "sigma_zero")
    calls = []

    def drawn(self: Outside, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        calls.append((self.name, self.steps))
        return torch.rand_like(x)

    module = types.SimpleNamespace(**{name: lambda steps=0, num_steps=0: None for name in names})
    monkeypatch.setattr(rivals.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(outside.importlib, "import_module", lambda _: module)
    monkeypatch.setattr(Outside, "call", drawn)
    torch.rand(7)  # so that the state is none that a seed gives
    before = torch.get_rng_state()
    for attack in rivals.installed(3, 5).values():
        assert torch.equal(attack(MODEL, X, Y, 0), attack(MODEL, X, Y, 0))
        assert torch.equal(torch.get_rng_state(), before)
    theirs = {"torchattacks:SparseFool": 10, "foolbox:L0FMNAttack": 5, "art:SaliencyMapMethod": None}
    assert dict(calls) == {**theirs, "adv-lib:sigma_zero": 5}


def test_a_result_of_others_is_cut_to_its_largest_pixels() -> None:
    cut = rivals._projected(Outside(sp.Budget(k=2), lambda model, x, y: 1 - x), MODEL, X, Y, 0)
    changed = (cut != X).any(1).flatten(1)
    assert bool((changed.sum(1) <= 2).all())
    size = (1 - 2 * X).abs().sum(1).flatten(1)
    assert torch.equal(changed, torch.zeros_like(changed).scatter(1, size.topk(2).indices, True))
