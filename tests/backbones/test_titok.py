"""The one-dimensional encoder and decoder."""

import pytest
import torch

from vqlab import Tokenizer
from vqlab.backbones import TitokConfig, TitokDecoder, TitokEncoder, backbone_config
from vqlab.errors import VqlabError

SMALL = {"tokens": 6, "image_size": 16, "patch_size": 4, "width": 24, "depth": 1, "heads": 3}


def test_shapes_and_gradients() -> None:
    torch.manual_seed(0)
    config = TitokConfig(**SMALL)
    encoder, decoder = TitokEncoder(5, config), TitokDecoder(5, config)
    images = torch.rand(2, 3, 16, 16, requires_grad=True)
    latents = encoder(images)
    assert latents.shape == (2, 6, 5)
    out = decoder(latents)
    assert out.shape == (2, 3, 16, 16)
    (out * torch.randn_like(out)).sum().backward()
    for parameter in (images, *encoder.parameters(), *decoder.parameters()):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


def test_every_token_reads_the_whole_image_and_differs() -> None:
    torch.manual_seed(0)
    encoder = TitokEncoder(5, TitokConfig(**SMALL)).eval()
    images = torch.rand(1, 3, 16, 16)
    changed = images.clone()
    changed[..., :4, :4] = 1 - changed[..., :4, :4]
    with torch.no_grad():
        before, after = encoder(images), encoder(changed)
    assert ((before - after).abs().amax(2) > 0).all()
    assert len(before[0].unique(dim=0)) == 6


def test_sizes_that_do_not_fit() -> None:
    config = TitokConfig(**SMALL)
    with pytest.raises(ValueError, match="16x16, got 8x16"):
        TitokEncoder(5, config)(torch.rand(1, 3, 8, 16))
    with pytest.raises(ValueError, match="6 tokens, got 5"):
        TitokDecoder(5, config)(torch.rand(1, 5, 5))


@pytest.mark.parametrize("settings", [{"tokens": 0}, {"image_size": 30}, {"width": 26}, {"depth": 1.5}, {"colour": 1}])
def test_refused_settings(settings: dict) -> None:
    with pytest.raises(VqlabError, match="titok"):
        backbone_config("titok", settings)


@pytest.mark.parametrize("kind", ["ddcl", "vqvae"])
def test_a_tokenizer_of_sequences(kind: str, tmp_path: object) -> None:
    torch.manual_seed(0)
    level = {"kind": kind, "codebook_size": 8}
    config = {
        "channels": 3,
        "latent_dim": 5,
        "encoder": {"name": "titok", **SMALL},
        "quantizer": {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": [level, level]},
    }
    tokenizer = Tokenizer(config)
    tokenizer(torch.rand(4, 3, 16, 16)).reconstruction.sum().backward()
    tokenizer.eval()
    images = torch.rand(2, 3, 16, 16)
    ids = tokenizer.encode(images)
    assert ids.shape == (2, 6, 2)
    assert tokenizer.token_grid(16, 16) == (6,)
    assert tokenizer.decode_indices(ids).shape == (2, 3, 16, 16)
    assert tokenizer.embed(ids).shape == (2, 6, 5)
    assert tokenizer.decode_indices(ids[..., :1]).shape == (2, 3, 16, 16)
    single = tokenizer.encode(images[0])
    assert torch.equal(single, ids[0])
    torch.testing.assert_close(tokenizer.decode_indices(single), tokenizer.decode_indices(ids)[0], rtol=1e-4, atol=1e-5)
    small = tokenizer.encode(images[:, :, :9, :1])
    assert tokenizer.decode_indices(small, size=(9, 1)).shape == (2, 3, 9, 1)
    with pytest.raises(ValueError, match="up to 16x16"):
        tokenizer.encode(torch.rand(1, 3, 20, 16))
    again = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path))  # type: ignore[arg-type]
    assert torch.equal(again.encode(images), ids)
