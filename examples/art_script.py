"""A script for the Adversarial Robustness Toolbox; each changed line stands below the one it replaces."""

import numpy as np
from torch import nn

import sparsepgd as sp
from sparsepgd.zoo import bundled_images, load

try:
    from art.estimators.classification import PyTorchClassifier

    from sparsepgd.adapters.art import ARTAttack
except ImportError:
    raise SystemExit("this example needs the extra art: pip install 'sparsepgd[art]'") from None

x_test, y_test = (tensor.numpy() for tensor in bundled_images(16))
classifier = PyTorchClassifier(load("small-plain"), nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0, 1))
print(f"clean accuracy: {np.mean(classifier.predict(x_test).argmax(1) == y_test):.1%}")

# attack = SaliencyMapMethod(classifier, theta=1.0, gamma=0.02)
attack = ARTAttack(classifier, sp.SparsePGD(sp.Budget(k=20), steps=50))
x_adv = attack.generate(x=x_test, y=y_test)

pixels = (x_adv != x_test).any(1).sum((1, 2)).max()
print(f"robust accuracy: {np.mean(classifier.predict(x_adv).argmax(1) == y_test):.1%}, at most {pixels} pixels changed")
