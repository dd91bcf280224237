"""A torchattacks script; the changed line stands below the one it replaces."""

import torch

import sparsepgd as sp
from sparsepgd.adapters import Outside
from sparsepgd.zoo import bundled_images, load

try:
    import torchattacks

    from sparsepgd.adapters.torchattacks import TorchAttack
except ImportError:
    raise SystemExit("this example needs the extra torchattacks: pip install 'sparsepgd[torchattacks]'") from None

images, labels = bundled_images(16)
model = load("small-plain").eval()

# attack = torchattacks.Pixle(model)
attack = TorchAttack(model, sp.SparsePGD(sp.Budget(k=20), steps=50))
both = torchattacks.MultiAttack([torchattacks.FGSM(model, eps=1 / 255), attack])
for name, x_adv in {"ours": attack(images, labels), "after FGSM": both(images, labels)}.items():
    with torch.no_grad():
        right = model(x_adv).argmax(1) == labels
    print(f"{name}: robust accuracy {right.float().mean():.1%}")

# the other way round: their attack in our cascade, reduced to 20 pixels and verified
budget = sp.Budget(k=20)
cascade = sp.SparseAutoAttack(budget, attacks=(Outside(budget, "torchattacks:Pixle"), sp.SparsePGD(budget, steps=50)))
print(cascade.history(cascade(model, images, labels)))
