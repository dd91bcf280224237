"""Results in notebooks: the table has the numbers and the pictures the images of the result, and names are escaped."""

from __future__ import annotations

import base64
import re
from io import BytesIO

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

import sparsepgd as sp
from sparsepgd.problem import notebook
from sparsepgd.problem.verify import untouched


def fooled_on(x: Tensor, which: list[int], by: tuple[str | None, ...]) -> sp.Result:
    """Made by hand: predicted 1, as it should be, and 0 after `l0` = 3, 4, ... pixels were changed."""
    y = torch.ones(len(x), dtype=torch.int64)
    result = untouched(x, y, torch.tensor([[0.0, 1.0]]).expand(len(x), 2))
    fooled = torch.zeros(len(x), dtype=torch.bool)
    fooled[which] = True
    return sp.Result(
        **{
            **vars(result),
            "fooled": fooled,
            "l0": torch.arange(len(x)) + 3,
            "steps": torch.full((len(x),), 7),
            "prediction": torch.where(fooled, 0, y),
            "broken_by": by,
        }
    )


def pictures(html: str) -> list[Tensor]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [pil_to_tensor(Image.open(BytesIO(base64.b64decode(one)))) for one in found]


def test_a_result_is_a_table_with_its_first_fooled_images() -> None:
    x = torch.randint(0, 256, (4, 3, 6, 5), generator=torch.Generator().manual_seed(0)) / 255
    html = fooled_on(x, [1, 3], (None, "a<b", None, "c"))._repr_html_()
    cells = dict(zip(*(re.findall(f"<{tag}>(.*?)</{tag}>", html) for tag in ("th", "td")), strict=True))
    assert cells == {
        "images": "4",
        "clean accuracy": "100.0%",
        "robust accuracy": "50.0%",
        "fooled": "2",
        "changed pixels, median": "4",
        "steps, median": "7",
    }
    assert "<p>fooled by a&lt;b: 1, c: 1</p>" in html
    assert re.findall("<figcaption[^>]*>(.*?)</figcaption>", html) == ["1 → 0<br>4 px", "1 → 0<br>6 px"]
    assert all(torch.equal(one, (255 * x[i]).round().byte()) for one, i in zip(pictures(html), (1, 3), strict=True))


def test_clean_images_and_class_names_are_shown_where_they_are_known() -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    html = "".join(notebook.thumbnails(fooled_on(x, [0], ("a", None)), x.flip(0), ("<cat>", "dog")))
    clean, adversarial = pictures(html)
    assert torch.equal(clean, (255 * x[1]).round().byte().expand(3, -1, -1))
    assert torch.equal(adversarial, (255 * x[0]).round().byte().expand(3, -1, -1))
    assert "dog → &lt;cat&gt;<br>3 px" in html


@pytest.mark.parametrize("shape", [(20, 3, 4, 4), (20, 2, 4, 4), (20, 5, 4, 400)])
def test_pictures_are_few_and_small_whatever_the_images_are(shape: tuple[int, ...]) -> None:
    found = pictures(fooled_on(torch.zeros(shape), list(range(20)), ("a",) * 20)._repr_html_())
    assert len(found) == notebook.MOST
    assert all(len(one) == 3 and max(one.shape) <= notebook.STORED for one in found)


def test_features_and_results_without_a_success_have_a_table_alone() -> None:
    for result in (
        fooled_on(torch.rand(3, 5), [0], ("a", None, None)),
        fooled_on(torch.rand(3, 1, 2, 2), [], (None,) * 3),
        fooled_on(torch.rand(0, 1, 2, 2), [], ()),
    ):
        html = result._repr_html_()
        assert "<td>" in html
        assert "<img" not in html
