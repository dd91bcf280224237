"""Weights in the layouts of RobustBench and of the official code give the function that they give there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.zoo import checkpoints
from sparsepgd.zoo.networks import Activation, PreActResNet
from sparsepgd.zoo.normalise import Normalisation
from sparsepgd.zoo.resnet import ResNet

X = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def tiny_resnet(num_classes: int = 10) -> ResNet:
    return ResNet((1, 1), num_classes)


def tiny_wide(num_classes: int = 10) -> PreActResNet:
    return PreActResNet((8, 16), (2, 1), num_classes, stem=4)


def random(network: nn.Module, seed: int = 0) -> nn.Module:
    """Weights and statistics of batch normalisation that all differ."""
    generator = torch.Generator().manual_seed(seed)
    for key, value in network.state_dict().items():
        if value.is_floating_point():
            low = 0.5 if "running_var" in key else -0.5
            value.copy_(torch.rand(value.shape, generator=generator) + low)
    return network.eval()


class OfficialBlock(nn.Module):
    """The form of the official code, which has a bias in every convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.shortcut(x)).relu()


class OfficialResNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1), nn.BatchNorm2d(64)
        self.layer1, self.layer2 = nn.Sequential(OfficialBlock(64, 64, 1)), nn.Sequential(OfficialBlock(64, 128, 2))
        self.classifier = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())).mean((2, 3)))


class WideBlock(nn.Module):
    """The form of RobustBench's WideResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x).relu()
        out = self.conv2(self.bn2(self.conv1(active)).relu())
        return out + (x if self.convShortcut is None else self.convShortcut(active))


class WideStage(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideForm(nn.Module):
    def __init__(self, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.block1 = WideStage(WideBlock(4, 8, 1), WideBlock(8, 8, 1))
        self.sub_block1 = WideStage(WideBlock(4, 8, 1))
        self.block2 = WideStage(WideBlock(8, 16, 2))
        self.bn1, self.fc = nn.BatchNorm2d(16), nn.Linear(16, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn1(self.block2(self.block1(self.conv1(x)))).relu().mean((2, 3)))


def test_the_official_resnet_gives_the_same_logits() -> None:
    official = random(OfficialResNet(7))
    state, how = checkpoints.unwrapped({"state_dict": official.state_dict(), "epoch": 3})
    network, _ = checkpoints.fitted(tiny_resnet, state, how, "resnet")
    torch.testing.assert_close(network.eval()(X), official(X), rtol=1e-4, atol=1e-4)
    assert how is None


@pytest.mark.parametrize("bias", [True, False])
def test_the_wide_resnet_of_robustbench_gives_the_same_logits(bias: bool) -> None:
    theirs = random(WideForm(5, bias))
    wrapped = {f"module.{key}": value for key, value in theirs.state_dict().items()}
    state, _ = checkpoints.unwrapped(wrapped)
    network, _ = checkpoints.fitted(tiny_wide, state, None, "wide_resnet28_10")
    torch.testing.assert_close(network.eval()(X), theirs(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["plain", "state_dict", "module", "sequential", "compiled", "last", "model.module"])
def test_wrappings_are_taken_off(form: str) -> None:
    own = random(PreActResNet((4, 8), (1, 1), 3))
    state = own.state_dict()
    wrapped: object = {
        "plain": state,
        "state_dict": {"state_dict": state, "optimizer": {"lr": 1}},
        "module": {f"module.{key}": value for key, value in state.items()},
        "sequential": {f"1.{key}": value for key, value in state.items()},
        "compiled": {f"_orig_mod.{key}": value for key, value in state.items()},
        "last": {"last": state, "best": random(PreActResNet((4, 8), (1, 1), 3), 1).state_dict()},
        "model.module": {"model": {f"module.{key}": value for key, value in state.items()}},
    }[form]
    found, how = checkpoints.unwrapped(wrapped)
    network, _ = checkpoints.fitted(lambda num_classes=10: PreActResNet((4, 8), (1, 1), num_classes), found, how, "p")
    assert torch.equal(network.eval()(X), own(X))


@pytest.mark.parametrize(
    "names",
    [("mean", "std"), ("mu", "sigma"), ("mean", "sigma"), ("mu", "std"), ("normalize.mean", "normalize.std"),
     ("0.mean", "0.std")],
)  # fmt: skip
def test_the_normalisation_in_a_checkpoint_is_found(names: tuple[str, str]) -> None:
    state = random(PreActResNet((4, 8), (1, 1), 3)).state_dict()
    prefix = "1." if names[0].startswith("0.") else "model." if "normalize" in names[0] else ""
    wrapped = {f"{prefix}{key}": value for key, value in state.items()}
    values = {names[0]: torch.tensor([0.5, 0.25, 0.125]), names[1]: torch.tensor([0.5, 1, 2])}
    found, how = checkpoints.unwrapped({**{key: one.view(1, 3, 1, 1) for key, one in values.items()}, **wrapped})
    assert how == Normalisation((0.5, 0.25, 0.125), (0.5, 1.0, 2.0))
    assert found.keys() == state.keys()
    same = {names[0]: torch.zeros(3), names[1]: torch.ones(3)}
    assert checkpoints.unwrapped({**wrapped, **same})[1] is None, "mean 0 and std 1 change nothing"


def test_networks_that_normalise_themselves_keep_their_buffers() -> None:
    own = zoo.load("small-plain")
    found, how = checkpoints.unwrapped(own.state_dict())
    network, left = checkpoints.fitted(zoo.small_preact_resnet, found, how, "small_preact_resnet")
    x, _ = zoo.bundled_images(2)
    assert left is None
    assert torch.equal(network.eval()(x), own(x))


def met_images(activation: Activation) -> nn.Module:
    """Fresh weights whose batch normalisation has seen images, as that of a trained network has."""
    torch.manual_seed(0)
    network, (x, _) = zoo.small_preact_resnet(activation=activation), zoo.bundled_images(32)
    with torch.no_grad():
        for _ in range(40):
            network(x)
    return network.eval()


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_the_activation_of_a_checkpoint_is_recognised_and_another_one_is_refused(activation: Activation) -> None:
    own, (x, _) = met_images(activation), zoo.bundled_images(2)
    found, how = checkpoints.unwrapped(own.state_dict())
    build, name = zoo.small_preact_resnet, "small_preact_resnet"
    for asked in ("", activation):
        network, _ = checkpoints.fitted(build, found, how, name, asked)
        assert torch.equal(network.eval()(x), own(x))
    other = {"relu": "softplus", "softplus": "relu"}[activation]
    with pytest.raises(SourceError, match=f"{name}:{other} was given, but .* shows {name}:{activation}"):
        checkpoints.fitted(build, found, how, name, other)


def test_an_activation_that_cannot_be_known_is_asked_for() -> None:
    build, state = zoo.small_preact_resnet, zoo.small_preact_resnet(activation="softplus").state_dict()
    found, how = checkpoints.unwrapped(state)
    with pytest.raises(SourceError, match="use small_preact_resnet:relu or small_preact_resnet:softplus"):
        checkpoints.fitted(build, found, how, "small_preact_resnet")
    network, _ = checkpoints.fitted(build, found, how, "small_preact_resnet", "softplus")
    assert any(isinstance(one, nn.Softplus) for one in network.modules())
    with pytest.raises(SourceError, match="activation 'gelu'; use p:relu or p:softplus"):
        checkpoints.fitted(build, found, how, "p", "gelu")
    with pytest.raises(SourceError, match="resnet has a fixed activation"):
        checkpoints.fitted(tiny_resnet, random(tiny_resnet(3)).state_dict(), None, "resnet", "relu")


@pytest.mark.parametrize(("name", "activation"), [("small-plain", "relu"), ("prn18-fast-ls", "softplus")])
def test_shipped_weights_show_their_activation(name: str, activation: str) -> None:
    if name not in zoo.names():
        pytest.skip("not in this installation")
    assert checkpoints.activation_of(zoo.load(name).state_dict()) == activation


def test_older_checkpoints_without_counters_load() -> None:
    own = random(tiny_resnet(3))
    state = {key: value for key, value in own.state_dict().items() if "num_batches" not in key}
    network, _ = checkpoints.fitted(tiny_resnet, state, None, "resnet")
    assert torch.equal(network.eval()(X), own(X))


def test_weights_that_do_not_fit_are_refused() -> None:
    state = random(tiny_resnet(3)).state_dict()
    for changed, message in (
        ({"init_conv.weight": X}, "network of Gowal et al. in RobustBench; use robustbench:NAME"),
        ({"other": X}, "these weights do not fit resnet: other"),
        ({**state, "extra.weight": X}, "extra.weight is unknown; use their own architecture"),
        ({**state, "conv1.weight": X}, r"conv1.weight is \(2, 3, 16, 16\), not \(64, 3, 3, 3\)"),
        ({key: value for key, value in state.items() if "bn1" not in key}, "bn1.weight is missing and .* more"),
    ):
        with pytest.raises(SourceError, match=message):
            checkpoints.fitted(tiny_resnet, changed, None, "resnet")
    for odd, message in (({"epoch": 3}, "the checkpoint holds epoch; expected a state dict"), ([1], "is a list")):
        with pytest.raises(SourceError, match=message):
            checkpoints.unwrapped(odd)


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (zoo.resnet18, 11_173_962),
        (zoo.vgg11, 9_231_114),
        (zoo.wide_resnet28_5, 9_132_634),
        (zoo.wide_resnet28_10, 36_479_194),
        (zoo.resnet34, 21_328_292),
    ],
)
def test_the_papers_networks_have_their_known_sizes(build: type, parameters: int) -> None:
    with torch.device("meta"):
        network = build(num_classes=100 if build is zoo.resnet34 else 10)
    assert sum(value.numel() for value in network.parameters()) == parameters


def test_keys_of_the_papers_networks_are_those_in_common_use() -> None:
    with torch.device("meta"):
        resnet, vgg = zoo.resnet18().state_dict(), zoo.vgg11().state_dict()
    assert {"conv1.weight", "bn1.bias", "layer2.0.shortcut.1.running_var", "layer4.1.bn2.weight", "linear.bias"} <= {
        *resnet
    }
    assert {"features.0.weight", "features.1.running_mean", "features.25.bias", "classifier.weight"} <= {*vgg}


@pytest.mark.parametrize("build", [lambda: tiny_resnet(4), lambda: zoo.vgg11(4)])
def test_networks_take_images_and_give_logits(build: type) -> None:
    x = torch.rand(2, 3, 32, 32)
    network = build().eval()
    assert network(x).shape == (2, 4)
    torch.testing.assert_close(network(x)[:1], network(x[:1]), atol=1e-5, rtol=1e-4)
