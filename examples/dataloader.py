"""Attack your own data: a DataLoader, a Dataset, or inputs that are not images, such as tabular features."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import sparsepgd as sp
from sparsepgd.sources import as_tensors

# Images: any Dataset of (image, label) pairs; shuffle=False keeps their order.
images = TensorDataset(*sp.load_data("bundled", 32))
x, y = as_tensors(DataLoader(images, batch_size=8))
model = sp.load_model("zoo:small-plain").model
print("images   ", sp.SparsePGD(sp.Budget(k=10), steps=30)(model, x, y))

# Tabular features (B, F): the budget counts single features, or groups given as sets of indices.
generator = torch.Generator().manual_seed(0)
table = torch.rand(64, 12, generator=generator)
weight = torch.randn(12, 3, generator=generator)
answer = (table @ weight).argmax(1)


def classifier(rows: torch.Tensor) -> torch.Tensor:
    return rows @ weight


print("features ", sp.SparsePGD(sp.Budget(k=2, pattern=sp.Features()), steps=50)(classifier, table, answer))
groups = sp.Groups([[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10, 11]])
print("groups   ", sp.SparsePGD(sp.Budget(k=1, pattern=groups), steps=50)(classifier, table, answer))

# Signals (B, C, L): windows of five consecutive points, or whole channels.
signal = torch.rand(16, 3, 50, generator=generator)
kernel = torch.randn(4, 3, 9, generator=generator)


def network(signals: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv1d(signals, kernel).relu().mean(2)


said = network(signal).argmax(1)
for name, pattern in (("stretches", sp.Groups.windows(50, 5)), ("sensors  ", sp.Groups.sensors(3, 50))):
    print(name, sp.SparseRS(sp.Budget(k=1, pattern=pattern), queries=200)(network, signal, said))
