"""Attack 16 images with 20 pixels each and draw four of them: clean, adversarial, difference."""

import torch
from PIL import Image

import sparsepgd as sp
from sparsepgd import zoo

x, y = zoo.bundled_images(16)
model = zoo.load("small-plain")
attack = sp.SparsePGD(sp.Budget(k=20), steps=100)
result = attack(model, x, y, seed=0)
print(result)

shown = result.fooled.nonzero()[:4, 0]
clean, adversarial = x[shown], result.x_adv[shown]
rows = torch.cat([clean, adversarial, (adversarial - clean).abs()], dim=3)  # side by side
sheet = (torch.cat(list(rows), dim=1) * 255).round().to(torch.uint8).permute(1, 2, 0)
Image.fromarray(sheet.numpy()).resize((96 * 6, 32 * 6 * len(shown)), Image.Resampling.NEAREST).save("quickstart.png")
