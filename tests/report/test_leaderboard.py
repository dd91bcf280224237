"""The leaderboard: records made from runs, joined attack by attack, and the page that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd.analysis.curves import Smallest
from sparsepgd.cli import app
from sparsepgd.commands.leaderboard import leaderboard, markdown
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.report import leaderboard as board
from sparsepgd.runs import runs
from sparsepgd.runs.folders import load
from sparsepgd.search.contract import Attacker
from support.models import SmallConvNet, images, labelled

ROOT = Path(__file__).parent.parent.parent
MODEL, X = SmallConvNet(), images(10)
Y = labelled(MODEL, X)
NAMES = {"model": "toy", "data": "random"}


def run(folder: Path, attack: Attacker, model: SmallConvNet = MODEL) -> Path:
    runs.run(folder, attack, model, (X, Y), NAMES)
    return folder


def test_what_counts_is_what_no_attack_has_broken(tmp_path: Path) -> None:
    budget = sp.Budget(k=6)
    attacks = [sp.SparsePGD(budget, 8, "projected"), sp.SparseRS(budget, 200)]
    found = [runs.run(tmp_path / attack.name, attack, MODEL, (X, Y), NAMES) for attack in attacks]
    for attack in attacks:
        entered = board.add(tmp_path / "board", tmp_path / attack.name)
    standing = sum(not a.fooled and not b.fooled for a, b in zip(found[0].rows, found[1].rows, strict=True))
    assert standing < min(sum(not row.fooled for row in record.rows) for record in found)  # each breaks some alone
    assert entered.robust == standing
    assert entered.robust_accuracy == standing / 10
    assert entered.strongest.robust_accuracy == min(record.robust_accuracy for record in found)
    (file,) = (tmp_path / "board").iterdir()
    assert file.name == "toy-k6-pixels-random-10.json"
    assert board.contenders(tmp_path / "board") == [entered]


def test_groups_have_short_names_and_others_of_the_same_sizes_a_file_of_their_own(tmp_path: Path) -> None:
    for number, sets in enumerate(([[0, 1], [2, 3]], [[0, 2], [1, 3]])):
        place = run(tmp_path / str(number), sp.SparsePGD(sp.Budget(1, sp.Groups(sets)), 1, "projected"))
        board.add(tmp_path / "board", place)
    found = board.contenders(tmp_path / "board")
    assert all(re.fullmatch(r"toy-k1-group-2-of-2-places-[0-9a-f]{8}-random-10\.json", one.file) for one in found)
    assert len({one.file for one in found}) == 2
    assert [title for title, _ in board.boards(found)] == ["k = 1 group (2 of 2 places), 10 images of random"] * 2


def test_one_image_and_one_step_are_counted_without_an_s(tmp_path: Path) -> None:
    runs.run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=3), 1), MODEL, (X[:1], Y[:1]), NAMES)
    entered = board.add(tmp_path / "board", tmp_path / "run")
    ((title, _),) = board.boards([entered])
    assert title == "k = 3 pixels, 1 image of random"
    assert entered.attempts[0].length == "spgd-unprojected (1 step)"


def test_the_same_attack_again_takes_its_own_place(tmp_path: Path) -> None:
    place = run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=3), 2))
    once, twice = (board.add(tmp_path / "board", place) for _ in range(2))
    assert once == twice
    longer = run(tmp_path / "longer", sp.SparsePGD(sp.Budget(k=3), 4))
    assert len(board.add(tmp_path / "board", longer).attempts) == 2


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    attack = sp.SparsePGD(sp.Budget(k=3), 2)
    board.add(tmp_path / "board", run(tmp_path / "one", attack))
    other = run(tmp_path / "two", attack, SmallConvNet(seed=5))
    with pytest.raises(UnsupportedError, match=r"toy-k3-pixels-random-10\.json holds another model of the same name"):
        board.add(tmp_path / "board", other)


def test_runs_that_are_no_entry_are_refused(tmp_path: Path) -> None:
    budget = sp.Budget(k=2)
    curve = run(tmp_path / "curve", Smallest(sp.SparsePGD(budget, 2), budget))
    with pytest.raises(UnsupportedError, match="no single budget; use a run of one attack at one k"):
        board.add(tmp_path / "board", curve)
    with pytest.raises(SourceError, match=r"no records in .*spgd leaderboard --add RUN"):
        board.contenders(tmp_path / "nothing")


def test_models_on_other_images_of_the_same_name_are_not_ranked_together(tmp_path: Path) -> None:
    attack = sp.SparsePGD(sp.Budget(k=3), 2)
    board.add(tmp_path / "board", run(tmp_path / "one", attack))
    runs.run(tmp_path / "two", attack, MODEL, (X.flip(0), Y.flip(0)), NAMES | {"model": "other"})
    board.add(tmp_path / "board", tmp_path / "two")
    found = list(board.boards(board.contenders(tmp_path / "board")))
    assert [len(rows) for _, rows in found] == [1, 1]
    assert all(re.fullmatch(r"k = 3 pixels, 10 images of random \([0-9a-f]{8}\)", title) for title, _ in found)
    assert len({title for title, _ in found}) == 2


def test_a_run_whose_images_were_changed_is_not_entered(tmp_path: Path) -> None:
    place = run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=3), 2))
    pictures = place / "adversarial.safetensors"
    data = bytearray(pictures.read_bytes())
    data[-1] ^= 1
    pictures.write_bytes(data)
    with pytest.raises(SourceError, match=r"adversarial\.safetensors does not match run\.json"):
        board.add(tmp_path / "board", place)
    assert not (tmp_path / "board").exists()


def test_names_are_text_on_the_page(tmp_path: Path) -> None:
    names = {"model": "<img src=x> a|b\\|c", "data": "<script>"}
    runs.run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=3), 2), MODEL, (X, Y), names)
    board.add(tmp_path / "board", tmp_path / "run")
    page = markdown(board.contenders(tmp_path / "board"))
    assert "<img" not in page
    assert "<script" not in page
    (line,) = (line for line in page.splitlines() if line.startswith("| &lt;img"))
    assert line.count("|") == len(board.HEADER) + 1


def test_a_record_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    board.add(tmp_path, run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=3), 2)))
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    content["attempts"][0]["standing"] += "1"
    file.write_text(json.dumps(content))
    with pytest.raises(SourceError, match="one letter for each of 10 images"):
        board.contenders(tmp_path)


def test_the_command_enters_runs_prints_the_table_and_writes_the_page(tmp_path: Path) -> None:
    place, page = run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=1, pattern=sp.Rows()), 2)), tmp_path / "page.md"
    words = ["leaderboard", "--add", str(place), "--folder", str(tmp_path / "board"), "--page", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "k = 1 row, 10 images of random" in done.output
    assert "toy" in done.output
    assert page.read_text() == markdown(board.contenders(tmp_path / "board"))
    assert "spgd-unprojected (2 steps)" in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_before_a_run_is_entered(tmp_path: Path) -> None:
    place = run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=1, pattern=sp.Rows()), 2))
    with pytest.raises(SourceError, match=r"cannot be written: Is a directory; choose another --out"):
        leaderboard([place], tmp_path / "board", tmp_path)
    assert not (tmp_path / "board").exists()


def test_the_most_robust_model_stands_first() -> None:
    found = board.contenders(ROOT / "leaderboard")
    for _, rows in board.boards(found):
        robust = [float(row[2].rstrip("%")) for row in rows]
        assert robust == sorted(robust, reverse=True)


def test_large_budgets_and_sets_of_images_come_first() -> None:
    found = board.contenders(ROOT / "leaderboard")
    sizes = {(one.budget["k"], one.words, one.images): None for one in found}
    titles = [title for title, _ in board.boards(found)]
    assert titles[0] == "k = 20 pixels, 1,000 images of cifar10-test"
    assert [int(title.split()[2]) for title in titles] == sorted((k for k, *_ in sizes), reverse=True)


def test_runs_of_one_attack_at_one_length_are_listed_together_and_equal_values_once(tmp_path: Path) -> None:
    entered = board.add(tmp_path / "board", run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=1), 2)))
    standing = ("1111000000", "1100000000", "0000001111")  # of seeds 0, 1, 2
    attempts = (entered.attempts[0].model_copy(update={"standing": one}) for one in standing)
    row = entered.model_copy(update={"attempts": tuple(attempts)}).row()
    assert row[-1] == "spgd-unprojected (2 steps) 20.0%, 40.0%"


def test_the_shipped_page_is_that_of_the_shipped_records() -> None:
    shown = (ROOT / "docs" / "leaderboard.md").read_text()
    assert shown == markdown(board.contenders(ROOT / "leaderboard")), "run spgd leaderboard --page docs/leaderboard.md"


def test_shipped_records_are_of_the_shipped_models() -> None:
    from sparsepgd import zoo
    from sparsepgd.runs.identity import model_digest, stable_digest

    for one in board.contenders(ROOT / "leaderboard"):
        model = zoo.load(one.model)
        if one.model_digest is None:
            assert one.model_sha256 == model_digest(model)
        else:
            assert one.model_digest == stable_digest(model)


def test_runs_under_another_version_of_torch_join_by_the_digest_that_does_not_depend_on_it(tmp_path: Path) -> None:
    old, new = (
        board.from_run(load(run(tmp_path / str(steps), sp.SparsePGD(sp.Budget(k=3), steps)))) for steps in (1, 2)
    )
    assert old.model_digest is not None
    elsewhere = old.model_copy(update={"model_sha256": "printed differently"})
    assert len(board.joined(elsewhere, new).attempts) == 2
    older = old.model_copy(update={"model_digest": None})
    assert board.joined(older, new).model_digest == new.model_digest
    for other in (
        elsewhere.model_copy(update={"model_digest": None}),
        old.model_copy(update={"model_digest": "another"}),
    ):
        with pytest.raises(UnsupportedError, match="holds another model of the same name"):
            board.joined(other, new)
