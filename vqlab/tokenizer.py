"""An image tokenizer: encoder, quantizer and decoder that travel together.

images --> encoder --> quantizer --> ids (b, h', w', levels)
                           |
reconstruction <-- decoder <-- codes
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqlab.backbones import (
    ConvConfig,
    DecoderConfig,
    TimmConfig,
    TitokConfig,
    backbone_config,
    build_decoder,
    build_encoder,
    decoder_config,
)
from vqlab.errors import VqlabError
from vqlab.fingerprint import fingerprint
from vqlab.hub import CARD_NAME, loading_snippet, local_folder, push_folder
from vqlab.images import as_unit_images, to_network, to_unit
from vqlab.quantizers import QuantizerOutput, build_quantizer
from vqlab.storage import check_state, read_tokenizer, write_tokenizer

if TYPE_CHECKING:
    from vqlab.export import ExportCheck


@dataclass(frozen=True)
class TokenizerOutput:
    """What a training pass gives: reconstruction (b, c, h, w) float32 on the scale of [0, 1] (not clamped), and the quantizer's output."""

    reconstruction: Tensor
    quantizer: QuantizerOutput


class Tokenizer(nn.Module):
    """Turns images into token ids and back.

    config: plain JSON types, {"channels", "latent_dim", "encoder": {"name", ...}, "decoder": {"name", ...}, "quantizer": {"topology",
    "normalize", "codebook_dim", "levels"}}; without "decoder" it is the counterpart of the encoder. Raises VqlabError naming the key that
    is missing, unknown or refused.

    factor: pixels per token along a side.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        unknown = sorted(set(config) - {"channels", "latent_dim", "encoder", "decoder", "quantizer"})
        if unknown:
            raise VqlabError(f"unknown key {unknown[0]!r} in the tokenizer's configuration")
        for name in ("channels", "latent_dim"):
            value = config.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise VqlabError(f"the tokenizer's {name!r} must be an integer of at least 1, got {value!r}")
        self.channels, dim = config["channels"], config["latent_dim"]
        for name in ("encoder", "quantizer"):
            if not isinstance(config.get(name), dict):
                raise VqlabError(f"the tokenizer's {name!r} must be a mapping of settings, got {config.get(name)!r}")
        encoder = dict(config["encoder"])
        if "name" not in encoder:
            raise VqlabError("the tokenizer's 'encoder' needs a 'name'")
        self.backbone_name = str(encoder.pop("name"))
        self.backbone = backbone_config(self.backbone_name, encoder)
        self.quantizer = build_quantizer(dim, config["quantizer"])
        latent_bias = not self.quantizer.normalize
        self.encoder = build_encoder(self.backbone_name, dim, self.backbone, self.channels, latent_bias)
        self.factor: int = self.encoder.factor  # type: ignore[assignment]
        self.decoder_name, self.decoder_config = self._decoder(config.get("decoder"))
        self.decoder = build_decoder(dim, self.decoder_config, self.channels, self.factor)

    def _decoder(self, given: Any) -> tuple[str, DecoderConfig]:
        """Name and settings of the decoder; a conv decoder of another encoder gets as many upsamplings as that encoder needs."""
        if given is None:
            if isinstance(self.backbone, TimmConfig):
                raise VqlabError("a timm encoder has no decoder of its own: the tokenizer needs a 'decoder'")
            return self.backbone_name, self.backbone
        if not isinstance(given, dict) or "name" not in given:
            raise VqlabError(f"the tokenizer's 'decoder' must be a mapping of settings with a 'name', got {given!r}")
        settings = dict(given)
        name = str(settings.pop("name"))
        if (name == "titok") != isinstance(self.backbone, TitokConfig):
            raise VqlabError(f"encoder {self.backbone_name} and decoder {name} do not fit: titok's tokens are a sequence, others' a grid")
        if name == "conv" and "downsamplings" not in settings and not isinstance(self.backbone, ConvConfig):
            if self.factor & (self.factor - 1):
                raise VqlabError(
                    f"a conv decoder doubles the resolution, but {self.backbone_name} has {self.factor} pixels per token: take vit"
                )
            settings["downsamplings"] = self.factor.bit_length() - 1
        return name, decoder_config(name, settings)

    # -- images and ids ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, images: Tensor, levels: int | None = None) -> Tensor:
        """Token ids: uint8 or floats in [0, 1], (b, c, h, w) -> (b, h', w', levels) int64; one image (c, h, w) -> (h', w', levels).

        Images of any size: sides that are no multiple of `factor` are padded at the bottom and the right by their last row and column;
        pass the size to `decode_indices` to get it back. Raises ValueError for values out of range, a wrong number of channels or levels,
        or images that are larger than the encoder reads.
        """
        single = images.dim() == 3
        ids = self.quantizer.encode(self.encode_features(self._check(images)), levels)
        return ids[0] if single else ids

    @torch.no_grad()
    def decode_indices(self, indices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Images of token ids: (b, h', w', levels) -> (b, c, h, w) float32 in [0, 1]; (h', w', levels) -> (c, h, w).

        size: (h, w) of the image that was encoded, where its sides are no multiples of `factor`; ids do not hold it. Fewer levels than the
        tokenizer has decode a coarser image. Raises ValueError for an id outside 0..codebook_size-1, or a size that these ids cannot have.
        """
        single = indices.dim() == self._single_dims
        images = self.decode(self.embed(indices[None] if single else indices)).clamp(0.0, 1.0)
        if size is not None:
            if self.padded_size(*size) != tuple(images.shape[-2:]):
                raise ValueError(f"images of {size[0]}x{size[1]} have other ids: these decode to {images.shape[-2]}x{images.shape[-1]}")
            images = images[..., : size[0], : size[1]]
        return images[0] if single else images

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """Sides of an image after padding, multiples of `factor`. Raises ValueError for an image without pixels or too large a one."""
        if height < 1 or width < 1:
            raise ValueError(f"an image needs at least one pixel, got {height}x{width}")
        fixed: int | None = getattr(self.encoder, "fixed_size", None)
        if fixed is None:
            return -(-height // self.factor) * self.factor, -(-width // self.factor) * self.factor
        if max(height, width) > fixed:
            raise ValueError(f"this tokenizer reads images of up to {fixed}x{fixed} pixels, got {height}x{width}: resize them first")
        return fixed, fixed

    def token_grid(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of an image's ids without their levels: (h', w'), or (n,) where tokens are a sequence."""
        if isinstance(self.backbone, TitokConfig):
            self.padded_size(height, width)
            return (self.backbone.tokens,)
        height, width = self.padded_size(height, width)
        return height // self.factor, width // self.factor

    @property
    def quantizes_sequences(self) -> bool:
        """Whether the tokens of an image are a sequence (n, levels) in place of a grid (h', w', levels)."""
        return isinstance(self.backbone, TitokConfig)

    @property
    def _single_dims(self) -> int:
        """Axes of one image's ids."""
        return 2 if self.quantizes_sequences else 3

    def decode(self, quantized: Tensor) -> Tensor:
        """Vectors on the grid to images, with gradients: (b, dim, h', w') -> (b, c, h, w) float32, not clamped."""
        return to_unit(self.decoder(quantized))

    @torch.no_grad()
    def codebook(self, level: int = 0) -> Tensor:
        """Vectors of all ids of one level, as the decoder reads them: (codebook_size, dim).

        In a residual stack or a pyramid the rows of the levels add up to what `embed` gives: a language model that starts with these tables
        and sums over levels starts with the tokenizer's own vectors. In a cascade only the last level is decoded. level: 0-based, the place
        on the last axis of ids. Raises ValueError for a level that is not there.
        """
        books, space = self.quantizer.codebooks, self.quantizer.space
        if not 0 <= level < len(books):
            raise ValueError(
                f"level must lie in 0..{len(books) - 1}, got {level}" if books else "a tokenizer without a quantizer has no codes"
            )
        table = space.leave(books[level].codes)
        if level > 0 and self.quantizer.topology != "cascade":  # the offset of the way out counts once in a sum over levels
            table = table - space.leave(torch.zeros_like(books[level].codes[:1]))
        return table.detach().clone()

    @torch.no_grad()
    def embed(self, indices: Tensor) -> Tensor:
        """Vectors that ids stand for: (b, h', w', levels) -> (b, dim, h', w'); (h', w', levels) -> (dim, h', w'). Of a sequence:
        (b, n, levels) -> (b, n, dim).

        Raises ValueError for an id outside 0..codebook_size-1.
        """
        single = indices.dim() == self._single_dims
        batch = (indices[None] if single else indices).to(next(self.parameters()).device)
        vectors = self.quantizer.decode_indices(batch)
        return vectors[0] if single else vectors

    def forward(self, images: Tensor) -> TokenizerOutput:
        """A training pass on checked images: (b, c, h, w) float in [0, 1] -> TokenizerOutput (soft where the quantizer is)."""
        out = self.quantizer(self.encode_features(images))
        return TokenizerOutput(self.decode(out.quantized), out)

    def encode_features(self, unit: Tensor) -> Tensor:
        """The encoder's output, what the quantizer reads: floats in [0, 1], (b, c, h, w) -> (b, dim, h', w'), with gradients."""
        return self.encoder(to_network(unit))

    def _check(self, images: Tensor) -> Tensor:
        unit = as_unit_images(images[None] if images.dim() == 3 else images, self.channels)
        h, w = unit.shape[-2:]
        padded = self.padded_size(h, w)
        if padded != (h, w):
            unit = F.pad(unit, (0, padded[1] - w, 0, padded[0] - h), mode="replicate")
        return unit.to(next(self.parameters()).device)

    def export_encoder(self, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] = 32) -> ExportCheck:
        """Write the graph from images to ids: see `vqlab.export.export_encoder`."""
        from vqlab.export import export_encoder

        return export_encoder(self, path, format, image_size)

    def export_decoder(self, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] = 32) -> ExportCheck:
        """Write the graph from ids to images: see `vqlab.export.export_decoder`."""
        from vqlab.export import export_decoder

        return export_decoder(self, path, format, image_size)

    # -- figures ----------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Parameters of encoder, decoder and quantizer, moving-average codebooks included."""
        return sum(p.numel() for p in self.parameters())

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the structure and all weights: equal where ids mean the same.

        Settings that only training reads do not count, nor do those that a later version of vqlab adds. Takes a pass over the weights.
        """
        quantizer = self.quantizer
        structure = {
            "channels": self.channels,
            "latent_dim": quantizer.dim,
            "encoder": self.backbone_name,
            "topology": quantizer.topology,
            "normalize": quantizer.normalize,
            "codebook_dim": quantizer.codebook_dim,
            "levels": [[book.kind, book.codebook_size] for book in quantizer.codebooks],
        }
        # Whether a codebook is frozen changes no id.
        tensors = {name: tensor for name, tensor in self.state_dict().items() if not name.endswith("_extra_state")}
        return fingerprint(structure, tensors)

    # -- files ------------------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The configuration that builds this tokenizer again."""
        return {
            "channels": self.channels,
            "latent_dim": self.quantizer.dim,
            "encoder": {"name": self.backbone_name, **self.backbone.settings()},
            **({} if self.decoder_config == self.backbone else {"decoder": {"name": self.decoder_name, **self.decoder_config.settings()}}),
            "quantizer": self.quantizer.settings(),
        }

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write model.safetensors and config.json (each atomically) into `folder` and return it."""
        return write_tokenizer(Path(folder), self.state_dict(), self.config())

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None, message: str = "Upload tokenizer") -> str:
        """Upload this tokenizer to the Hugging Face hub as `repo_id` (NAME/NAME), which is made if needed, and return its address.

        The page says how to load it; figures are on the card of a released folder, which `vqlab release --push_to_hub` uploads. token:
        instead of the one that `hf auth login` has stored. Raises VqlabError where the hub cannot be reached or refuses.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = self.save_pretrained(Path(name) / "tokenizer")
            sizes = " + ".join(map(str, self.quantizer.codebook_sizes))
            text = (
                f"# {repo_id}\n\nImage tokenizer, {sizes or 'no'} codes, {self.num_parameters:,} parameters.\n\n{loading_snippet(repo_id)}"
            )
            (folder / CARD_NAME).write_text(text, encoding="utf-8")
            return push_folder(folder, repo_id, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, revision: str | None = None) -> Tokenizer:
        """A tokenizer in `eval()` mode from a folder that `save_pretrained` wrote, or by its name (NAME/NAME) on the Hugging Face hub.

        A folder that exists is never looked for on the hub. revision: branch, tag or commit on the hub. Raises VqlabError naming the file
        or the field that is missing, damaged or does not fit, or where the hub cannot be reached; nothing is half-loaded.
        """
        folder = local_folder(folder, revision)
        config, state = read_tokenizer(folder)
        try:
            with torch.random.fork_rng(devices=[]):  # weights that are replaced at once must not cost the caller random numbers
                with torch.device("meta"):  # without memory: a damaged configuration may ask for any size
                    skeleton = cls(config)
                check_state(str(folder), skeleton.state_dict(), state)
                tokenizer = cls(config)
        except VqlabError:
            raise
        except Exception as error:  # settings of a wrong type fail in many ways
            reason = (str(error).splitlines() or [""])[0]
            raise VqlabError(f"{folder}: its configuration builds no tokenizer: {type(error).__name__}: {reason}") from error
        tokenizer.load_state_dict(state)
        return tokenizer.eval()
