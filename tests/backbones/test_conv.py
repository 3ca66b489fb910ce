"""The convolutional encoder and decoder."""

import json

import pytest
import torch
from torch import nn

from vqlab.backbones import ConvConfig, ConvDecoder, ConvEncoder, backbone_config, build_decoder, build_encoder
from vqlab.backbones.conv import ResidualBlock
from vqlab.errors import VqlabError


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("h", "w"), [(32, 32), (8, 20)])
def test_round_trip_of_shapes(channels: int, h: int, w: int) -> None:
    config = backbone_config("conv", {})
    assert isinstance(config, ConvConfig)
    encoder = build_encoder("conv", 5, config, channels)
    decoder = build_decoder(5, config, channels, config.factor)
    x = torch.randn(2, channels, h, w)
    z = encoder(x)
    assert z.shape == (2, 5, h // config.factor, w // config.factor)
    y = decoder(z)
    assert y.shape == x.shape
    y.square().mean().backward()
    for module in (encoder, decoder):
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize("downsamplings", [0, 1, 2, 3])
@pytest.mark.parametrize("residual_blocks", [0, 1, 3])
@pytest.mark.parametrize("width", [1, 8, 9])
def test_any_width_depth_and_number_of_downsamplings(downsamplings: int, residual_blocks: int, width: int) -> None:
    config = ConvConfig(width=width, residual_blocks=residual_blocks, residual_width=4, downsamplings=downsamplings)
    encoder, decoder = ConvEncoder(3, config), ConvDecoder(3, config)
    x = torch.randn(1, 3, 16, 24, requires_grad=True)
    z = encoder(x)
    assert config.factor == 2**downsamplings
    assert z.shape == (1, 3, 16 // config.factor, 24 // config.factor)
    y = decoder(z)
    assert y.shape == x.shape
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_the_standard_model() -> None:
    """Two 4x4 stride-2 convolutions (64, 128), a 3x3 one, two residual blocks, 1x1 to the latents; mirrored."""
    config = ConvConfig()
    encoder, decoder = ConvEncoder(64, config), ConvDecoder(64, config)
    convs = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    block = [(128, 32, 3, 1), (32, 128, 1, 1)]
    assert convs == [(3, 64, 4, 2), (64, 128, 4, 2), (128, 128, 3, 1), *block, *block, (128, 64, 1, 1)]
    ups = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in decoder.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert ups == [(128, 64, 4, 2), (64, 3, 4, 2)]
    # No activation after the last layer of either: latents and pixels are not confined to one sign.
    assert isinstance(list(encoder.modules())[-1], nn.Conv2d)
    assert isinstance(list(decoder.modules())[-1], nn.ConvTranspose2d)


def test_residual_block_by_hand() -> None:
    block = ResidualBlock(4, 2)
    x = torch.randn(1, 4, 5, 5)
    before = x.clone()
    hidden = nn.functional.conv2d(x.clamp_min(0), block.conv3.weight, block.conv3.bias, padding=1).clamp_min(0)
    want = x + nn.functional.conv2d(hidden, block.conv1.weight, block.conv1.bias)
    torch.testing.assert_close(block(x), want)
    assert torch.equal(x, before)


@pytest.mark.parametrize("residual_blocks", [0, 2])
@pytest.mark.parametrize("downsamplings", [0, 2])
def test_inputs_are_left_as_they_were(residual_blocks: int, downsamplings: int) -> None:
    config = ConvConfig(width=8, residual_blocks=residual_blocks, residual_width=4, downsamplings=downsamplings)
    for module, x in (
        (ConvEncoder(8, config), torch.randn(1, 3, 8, 8)),
        (ConvDecoder(8, config), torch.randn(1, 8, 2, 2)),
    ):
        before = x.clone()
        module(x)
        assert torch.equal(x, before)


def test_gradients_with_in_place_activations() -> None:
    config = ConvConfig(width=3, residual_blocks=2, residual_width=2, downsamplings=1)
    encoder, decoder = ConvEncoder(2, config, 1).double(), ConvDecoder(2, config, 1).double()
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: decoder(encoder(x)), (x,))


def test_channels_last_gives_the_same_values() -> None:
    config = ConvConfig(width=16)
    encoder = ConvEncoder(8, config)
    x = torch.randn(2, 3, 16, 16)
    want = encoder(x)
    got = encoder.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_settings_make_the_same_configuration_again() -> None:
    config = ConvConfig(width=48, residual_blocks=1, residual_width=5, downsamplings=3)
    assert backbone_config("conv", json.loads(json.dumps(config.settings()))) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "width must be an integer of at least 1, got 0"),
        ({"width": 8.0}, "width must be an integer"),
        ({"width": "8"}, "width must be an integer"),
        ({"width": True}, "width must be an integer"),
        ({"width": None}, "width must be an integer"),
        ({"residual_blocks": -1}, "residual_blocks must be an integer of at least 0"),
        ({"residual_width": 0}, "residual_width"),
        ({"downsamplings": -1}, "downsamplings"),
        ({"depth": 3}, "encoder 'conv': .*depth"),
    ],
)
def test_refused_settings(settings: dict, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        backbone_config("conv", settings)


def test_unknown_backbone() -> None:
    with pytest.raises(VqlabError, match="unknown encoder 'resnet': choose from conv"):
        backbone_config("resnet", {})
