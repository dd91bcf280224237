"""The networks: shapes, the common key names, where softplus is and where not."""

import pytest
import torch
from torch import nn

from sparsepgd.errors import ShapeError, UnsupportedError
from sparsepgd.problem.lean import Affine, lean
from sparsepgd.zoo import PreActResNet, preact_resnet18, small_preact_resnet, wide_resnet28_5
from sparsepgd.zoo.normalise import KNOWN, Normalised

TINY = {"widths": (4, 8), "blocks": (1, 2)}


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    "build",
    [preact_resnet18, small_preact_resnet, wide_resnet28_5],
)
@pytest.mark.parametrize("num_classes", [10, 43])
def test_logits_have_one_row_an_image_and_one_column_a_class(build, num_classes):
    network = build(num_classes).eval()
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, num_classes)


def test_preact_resnet18_has_the_common_keys():
    state = preact_resnet18().state_dict()
    shapes = {
        "conv1.weight": (64, 3, 3, 3),
        "layer1.0.bn1.running_mean": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.shortcut.0.weight": (128, 64, 1, 1),
        "layer4.1.bn2.weight": (512,),
        "layer4.1.conv2.weight": (512, 512, 3, 3),
        "bn.num_batches_tracked": (),
        "bn.bias": (512,),
        "linear.weight": (10, 512),
        "linear.bias": (10,),
    }
    assert {key: tuple(state[key].shape) for key in shapes} == shapes
    assert "layer1.0.shortcut.0.weight" not in state, "the first stage keeps width and resolution"
    assert len(state) == 1 + 8 * (5 + 1 + 5 + 1) + 3 + 5 + 2  # stem, blocks, three shortcuts, bn, linear


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_number_of_parameters(activation):
    assert count(preact_resnet18(activation=activation)) == 11_172_170
    assert count(small_preact_resnet(activation=activation)) == 372_058


def test_small_network_fits_into_two_megabytes():
    state = small_preact_resnet().state_dict()
    assert sum(value.numel() * value.element_size() for value in state.values()) < 2_000_000


def test_the_wide_network_fits_into_the_weights_of_the_repository_in_half_precision():
    with torch.device("meta"):
        state = wide_resnet28_5().half().state_dict()
    assert sum(value.numel() * value.element_size() for value in state.values()) < 25_000_000


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_in_half_precision_every_batch_normalisation_runs_with_the_activation_after_it(activation, monkeypatch):
    fused = []
    activated = Affine.activated
    monkeypatch.setattr(Affine, "activated", lambda self, x, name: (fused.append(name), activated(self, x, name))[1])
    network = PreActResNet(**TINY, activation=activation, stem=2).eval()  # as wide networks are made
    copied = lean(network, torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        copied(torch.rand(2, 3, 8, 8))
    assert fused == [activation] * 6 + ["relu"]


def test_softplus_in_the_blocks_and_relu_at_the_end():
    network = preact_resnet18()
    inside = [module for module in network.modules() if isinstance(module, nn.Softplus)]
    assert len(inside) == 8
    assert all(module.beta == 1 for module in inside)
    assert not any(isinstance(module, nn.ReLU) for module in network.modules())

    network = PreActResNet(**TINY, activation="softplus").eval()
    seen = []
    network.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    nn.init.constant_(network.bn.bias, -1e3)
    network(torch.rand(2, 3, 8, 8))
    assert torch.equal(seen[0], torch.zeros(2, 8)), "ReLU cuts to exact zero, softplus would not"


def test_the_projection_sees_the_activated_input():
    block = PreActResNet(**TINY).layer2[0].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 4, 8, 8)
    expected = block.shortcut(torch.relu(block.bn1(x)))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("build", [preact_resnet18, small_preact_resnet])
def test_an_image_alone_gives_the_logits_it_has_in_a_batch(build):
    torch.manual_seed(0)
    network, x = build().eval(), torch.rand(3, 3, 32, 32)
    alone = torch.cat([network(image) for image in x.split(1)])
    torch.testing.assert_close(network(x), alone, atol=1e-4, rtol=1e-4)


def test_normalisation_is_inside():
    torch.manual_seed(0)
    network = PreActResNet(**TINY, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)).eval()
    bare = PreActResNet(**TINY).eval()
    state = network.state_dict()
    mean, std = state.pop("mean"), state.pop("std")
    bare.load_state_dict(state)
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(network(x), bare((x - mean) / std))


def test_channels_last_and_bfloat16_autocast():
    torch.manual_seed(0)
    network, x = small_preact_resnet().eval(), torch.rand(2, 3, 32, 32)
    expected = network(x)
    network, x = (
        network.to(memory_format=torch.channels_last),
        x.contiguous(memory_format=torch.channels_last),
    )
    torch.testing.assert_close(network(x), expected, atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(network(x).float(), expected, atol=0.1, rtol=0.1)


def test_one_graph_for_the_compiler():
    torch.manual_seed(0)
    network, x = PreActResNet(**TINY, mean=(0.5,) * 3, std=(0.25,) * 3).eval(), torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(torch.compile(network, backend="eager", fullgraph=True)(x), network(x))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"blocks": (1,)}, r"widths=\(4, 8\), blocks=\(1,\); expected one positive number"),
        ({"blocks": (1, 0)}, "expected one positive number"),
        ({"widths": (), "blocks": ()}, "expected one positive number"),
        ({"activation": "gelu"}, "activation='gelu'; use one of relu, softplus"),
        ({"mean": (0.5, 0.5, 0.5)}, "give both or neither"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises(UnsupportedError, match=message):
        PreActResNet(**{**TINY, **wrong})


@pytest.mark.parametrize("network", [small_preact_resnet(), Normalised(nn.Conv2d(3, 2, 3), KNOWN["imagenet"])])
def test_grey_images_are_not_spread_over_three_channels_by_the_normalisation(network):
    with pytest.raises(ShapeError, match=r"images of shape \(2, 1, 32, 32\); .* 3 channels"):
        network(torch.rand(2, 1, 32, 32))
