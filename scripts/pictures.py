"""Draw the pictures of docs/attacks.md and docs/patterns.md: clean image, adversarial image, perturbation.

    python scripts/pictures.py [attacks] [patterns]

The pages say what is drawn: a picture ``images/attacks/NAME.png`` shows the attack of that name, a picture
``images/patterns/NAME.png`` the budget in the same row. The result after a picture of an attack is written too.
"""

import contextlib
import re
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import sparsepgd as sp
from sparsepgd import options, zoo
from sparsepgd.errors import counted

DOCS = Path(__file__).parent.parent / "docs"
IMAGES = DOCS / "images"
SCALE, GAP = 4, 2  # file pixels per image pixel, and columns between images
ATTACKED, K = 47, 8  # the bundled image that every attack is shown on, and its pixels
ATTACK = re.compile(r"^!\[[^]]*\]\(images/attacks/([\w+-]+)\.png\).*$", re.M)
PATTERN = re.compile(r"\(images/patterns/([\w-]+)\.png\) \| `([^`]+)`")
NAMES = {  # used by the rows of docs/patterns.md
    "sp": sp,
    "mask": torch.arange(32).expand(32, 32) < 16,
    "cross": torch.eye(7).add(torch.eye(7).flip(0)).clamp(max=1),
    "tiles": sp.Groups(
        [[32 * (4 * i + a) + 4 * j + b for a in range(4) for b in range(4)] for i in range(8) for j in range(8)]
    ),
}


def strip(*pictures: Tensor) -> Image.Image:
    """Pictures (3, H, W) side by side, with transparent gaps."""
    height, width = pictures[0].shape[1:]
    cells = torch.zeros(4, height, len(pictures) * (width + GAP) - GAP)
    for i, picture in enumerate(pictures):
        at = slice(i * (width + GAP), i * (width + GAP) + width)
        cells[:3, :, at], cells[3, :, at] = picture, 1
    levels = (255 * cells).round().byte().permute(1, 2, 0)
    whole = Image.fromarray(levels.numpy(), "RGBA")
    return whole.resize((SCALE * whole.width, SCALE * whole.height), Image.Resampling.NEAREST)


def grey(change: Tensor) -> Tensor:
    """A perturbation in which 0 is grey and the largest magnitude white or black."""
    return 0.5 + change / (2 * change.abs().max().clamp(min=1 / 255))


def save(picture: Image.Image, kind: str, name: str) -> None:
    (IMAGES / kind).mkdir(exist_ok=True)
    picture.save(IMAGES / kind / f"{name}.png", optimize=True)


def draw_attack(name: str) -> str:
    """Draw one attack and describe its result."""
    if name in ("saa", "saa+"):
        return draw_ensemble(name)
    x, y = (tensor[ATTACKED:] for tensor in zoo.bundled_images(ATTACKED + 1))
    budget = sp.Budget(k=1, pattern=sp.Patches(5)) if name == "loap" else sp.Budget(k=K)
    result = options.preset(name, budget, "quick")(zoo.load("small-plain"), x, y)
    save(strip(x[0], result.x_adv[0], grey(result.x_adv[0] - x[0])), "attacks", name)
    if not bool(result.fooled):
        return "not fooled"
    before, after = (zoo.CIFAR10_CLASSES[int(one)] for one in (result.clean_prediction, result.prediction))
    passes = int(result.forwards + result.backwards)
    return f"{counted(int(result.l0), 'pixels')}, {before} becomes {after}; passes: {passes}"


def draw_ensemble(name: str) -> str:
    """Draw one image for each member that fooled one. The attack is short, so the first member leaves survivors."""
    x, y = zoo.bundled_images(200)
    result = options.attack(name, sp.Budget(k=3), 20, queries=300)(zoo.load("small-plain"), x, y)
    rows = {member: row for row, member in reversed(list(enumerate(result.broken_by))) if member}
    members = [member for member in options.attack(name, sp.Budget(k=3), 20).names if member in rows]
    pairs = [(result.x_adv[rows[one]], grey(result.x_adv[rows[one]] - x[rows[one]])) for one in members]
    save(strip(*(part for pair in pairs for part in pair)), "attacks", name)
    return f"{len(members)} images, 3 pixels each, broken by {', '.join(members)}"


def draw_pattern(name: str, code: str, fresh: list[int]) -> None:
    """Draw a budget on the first fooled image that is not shown yet."""
    x, y = zoo.bundled_images(40)
    with contextlib.chdir(IMAGES):  # for sticker.png
        budget = eval(code, NAMES)
    result = sp.SparseAnneal(budget, steps=200)(zoo.load("small-plain"), x, y)
    fooled = [i for i in result.fooled.nonzero()[:, 0].tolist() if i not in fresh]
    i = fooled[0]
    fresh.append(i)
    save(strip(x[i], result.x_adv[i], grey(result.x_adv[i] - x[i])), "patterns", name)
    print(f"{name}: {int(result.l0[i])} pixels, {int(result.fooled.sum())} of {len(x)} fooled")


def main() -> None:
    wanted = sys.argv[1:] or ["attacks", "patterns"]
    if "attacks" in wanted:
        page = DOCS / "attacks.md"
        page.write_text(
            ATTACK.sub(
                lambda one: f"![{one[1]}](images/attacks/{one[1]}.png) *{draw_attack(one[1])}*", page.read_text()
            )
        )
    if "patterns" in wanted:
        fresh: list[int] = []
        for name, code in PATTERN.findall((DOCS / "patterns.md").read_text()):
            draw_pattern(name, code, fresh)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
