"""The ViT decoder."""

import pytest
import torch

from vqlab.backbones import ViTConfig, ViTDecoder, decoder_config
from vqlab.errors import VqlabError

SMALL = ViTConfig(width=24, depth=2, heads=3)


@pytest.mark.parametrize("factor", [1, 4, 7])
@pytest.mark.parametrize("grid", [(8, 8), (1, 1), (2, 5)])
def test_shapes_and_gradients(factor: int, grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    decoder = ViTDecoder(5, SMALL, factor)
    latents = torch.randn(2, 5, *grid, requires_grad=True)
    out = decoder(latents)
    assert out.shape == (2, 3, factor * grid[0], factor * grid[1])
    (out * torch.randn_like(out)).sum().backward()
    assert latents.grad is not None
    assert torch.isfinite(latents.grad).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in decoder.parameters())


def test_pixels_come_from_their_own_token() -> None:
    torch.manual_seed(0)
    decoder = ViTDecoder(5, ViTConfig(width=24, depth=1, heads=3), 4).eval()
    latents = torch.randn(1, 5, 3, 6)
    changed = latents.clone()
    changed[..., 1, 4] += 20.0
    with torch.no_grad():
        difference = (decoder(changed) - decoder(latents)).abs().sum(1)[0]
    cells = difference.unfold(0, 4, 4).unfold(1, 4, 4).sum((2, 3))
    assert divmod(int(cells.argmax()), 6) == (1, 4)


def test_equal_tokens_at_two_places_decode_differently() -> None:
    torch.manual_seed(0)
    decoder = ViTDecoder(5, SMALL, 4).eval()
    with torch.no_grad():
        out = decoder(torch.ones(1, 5, 4, 4))
    assert not torch.allclose(out[..., 4:8, 4:8], out[..., 8:12, 4:8])
    assert not torch.allclose(out[..., 4:8, 4:8], out[..., 4:8, 8:12])


@pytest.mark.parametrize("settings", [{"width": 0}, {"width": 30, "heads": 3}, {"width": 28, "heads": 3}, {"mlp_ratio": 0}, {"colour": 1}])
def test_refused_settings(settings: dict) -> None:
    with pytest.raises(VqlabError, match="vit"):
        decoder_config("vit", settings)
