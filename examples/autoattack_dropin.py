"""An evaluation script written for AutoAttack; the two changed lines stand below those they replace."""

# from autoattack import AutoAttack
from sparsepgd import AutoAttack
from sparsepgd.zoo import bundled_images, load

x_test, y_test = bundled_images(32)
model = load("small-plain")

# adversary = AutoAttack(model, norm="Linf", eps=8 / 255, version="standard", device="cpu")
adversary = AutoAttack(model, norm="L0", eps=20, version="standard", device="cpu", steps=50, queries=100)
x_adv = adversary.run_standard_evaluation(x_test, y_test, bs=250)

changed = (x_adv != x_test).any(1).flatten(1).sum(1)
print(f"{int((changed > 0).sum())} adversarial images, at most {int(changed.max())} pixels changed")
