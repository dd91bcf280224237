"""A foolbox script; each changed line stands below the one it replaces."""

import sparsepgd as sp
from sparsepgd.zoo import bundled_images, load

try:
    import foolbox as fb

    from sparsepgd.adapters.foolbox import FoolboxAttack
except ImportError:
    raise SystemExit("this example needs the extra foolbox: pip install 'sparsepgd[foolbox]'") from None

images, labels = bundled_images(16)
model = fb.PyTorchModel(load("small-plain").eval(), bounds=(0, 1), device="cpu")
print(f"clean accuracy: {fb.utils.accuracy(model, images, labels):.1%}")

# attack = fb.attacks.LinfPGD(steps=50)
# epsilons = [2 / 255, 4 / 255, 8 / 255]
attack = FoolboxAttack(sp.SparsePGD(sp.Budget(k=20), steps=50))
epsilons = [1, 5, 20]  # pixels
raw, clipped, is_adv = attack(model, images, labels, epsilons=epsilons)

for epsilon, success in zip(epsilons, is_adv, strict=True):
    print(f"{epsilon:2} pixels: robust accuracy {1 - success.float().mean():.1%}")
