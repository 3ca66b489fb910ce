"""Faults that image tokenizers are known for, each by the smallest input that shows it, where no other test has it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors import safe_open

from vqlab.data import BatchLoader, ImageSplit, load_images
from vqlab.evaluation import LevelMetrics
from vqlab.images import as_unit_images
from vqlab.metrics import psnr_per_image
from vqlab.metrics.features import ImageFeatures
from vqlab.metrics.frechet import FrechetDistance
from vqlab.quantizers import CODEBOOKS, Quantizer, build_codebook
from vqlab.quantizers.stack import STACKS
from vqlab.tokenizer import Tokenizer
from vqlab.training.module import TokenizerModule

ROOT = Path(__file__).parents[1]
RELEASED = sorted(path.parent for path in (ROOT / "checkpoints").glob("*/config.json"))
KINDS = pytest.mark.parametrize("kind", list(CODEBOOKS))
#: Kinds whose codes are a table that a test can set; the others compute theirs.
TABLES = ("ddcl", "vqvae", "rotation")
VARIANTS = pytest.mark.parametrize(
    "settings",
    [*({"kind": kind} for kind in TABLES), {"kind": "vqvae", "update": "gradient"}],
    ids=lambda settings: "-".join(settings.values()),
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# -- numbers -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_tokens_on_one_code_under_autocast_have_perplexity_exactly_one(kind: str, dtype: torch.dtype) -> None:
    level = build_codebook({"kind": kind, "codebook_size": 16, "init": "random"}, 4)
    with torch.no_grad():
        level.codes.copy_(100.0 * torch.arange(16)[:, None].expand(16, 4))
    quantizer = Quantizer(4, [level], normalize=False).eval()
    metrics = LevelMetrics(level)
    with torch.autocast("cpu", dtype=dtype):
        out = quantizer(torch.zeros(2, 4, 8, 8, dtype=dtype))
        metrics.update(out, 0, out.indices[..., 0])
        figures = metrics.compute()
    assert figures["utilization"] == 1 / 16
    for name in [name for name in figures if name.endswith("perplexity")]:
        assert figures[name] == 1.0, name
    assert all(value == value for value in figures.values()), figures


@VARIANTS
def test_a_token_opposite_to_its_code_has_a_finite_gradient(settings: dict[str, str]) -> None:
    code = torch.tensor([[1.0, 2.0, -1.0]])
    level = build_codebook({**settings, "codebook_size": 1, "init": "random"}, 3).train()
    with torch.no_grad():
        level.codes.copy_(code)
    # Against the code, on it, and without a direction at all.
    z = torch.cat([-code, -2 * code, code, 0 * code]).requires_grad_()
    out = level(z)
    (out.loss + out.quantized.square().mean()).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert float(z.grad[0].norm()) > 0
    assert all(torch.isfinite(p.grad).all() for p in level.parameters() if p.grad is not None)


# -- shapes and inputs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool])
def test_images_of_other_integer_types_are_refused_by_name(dtype: torch.dtype, make_config: Any) -> None:
    tokenizer = Tokenizer(make_config().tokenizer_config()).eval()
    with pytest.raises(ValueError, match=f"images must be uint8 or floats in .*, got {dtype}"):
        tokenizer.encode(torch.zeros(1, 3, 8, 8, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_of_other_float_types_are_handled(dtype: torch.dtype, make_config: Any) -> None:
    tokenizer = Tokenizer(make_config().tokenizer_config()).eval()
    images = torch.rand(2, 3, 16, 16).to(dtype)
    ids = tokenizer.encode(images)
    assert len(ids.unique()) > 1
    assert torch.equal(ids, tokenizer.encode(images.float()))
    assert torch.equal(tokenizer.encode(images[0]), ids[0])


VIT = {"depth": 1, "embed_dim": 12, "num_heads": 2}
#: Encoder, decoder and the least size of image that the encoder does not read; None where it reads all.
BACKBONES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, int | None]] = {
    "conv": ({"name": "conv", "width": 8}, None, None),
    "vit": (
        {"name": "timm:vit_tiny_patch16_224", "patch_size": 8, "image_size": 32, "options": VIT},
        {"name": "vit", "width": 12, "depth": 1},
        None,
    ),
    "convnet": ({"name": "timm:resnet10t", "stage": 2}, {"name": "vit", "width": 12, "depth": 1}, None),
    "titok": ({"name": "titok", "image_size": 32, "patch_size": 8, "tokens": 4, "width": 12, "depth": 1, "heads": 2}, None, 33),
}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("size", [(28, 36), (30, 33), (31, 31), (1, 1), (33, 47)])
def test_sizes_that_a_backbone_was_not_built_for(backbone: str, size: tuple[int, int]) -> None:
    encoder, decoder, too_large = BACKBONES[backbone]
    level = {"kind": "vqvae", "codebook_size": 8, "init": "random"}
    config = {"channels": 3, "latent_dim": 8, "encoder": encoder, **({"decoder": decoder} if decoder else {})}
    stack = {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": [level]}
    tokenizer = Tokenizer({**config, "quantizer": stack}).eval()
    images = torch.rand(2, 3, *size)
    if too_large is not None and max(size) >= too_large:
        with pytest.raises(ValueError, match="up to 32x32 pixels, got"):
            tokenizer.encode(images)
        return
    ids = tokenizer.encode(images)
    assert ids.shape[1:-1] == tokenizer.token_grid(*size)
    assert tokenizer.decode_indices(ids, size=size).shape == images.shape


# -- metrics -----------------------------------------------------------------------------------------------------------------------


def test_real_and_generated_images_pass_the_same_function() -> None:
    """Whatever the sizes and types of both sets, the network prepares them, and it is told nothing of which set they belong to."""

    class Counting(ImageFeatures):
        name, num_features = "counting", 3

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[torch.Tensor] = []

        def embed(self, pixels: torch.Tensor) -> torch.Tensor:
            self.seen.append(pixels)
            return torch.nn.functional.interpolate(pixels, (4, 4), mode="bilinear", antialias=True).mean((2, 3))

    distance = FrechetDistance(network := Counting())
    images = (torch.rand(50, 3, 9, 11, generator=torch.Generator().manual_seed(0)) * 255).byte()
    distance.update(images, real=True)
    distance.update(images.float() / 255, real=False)
    assert torch.equal(*network.seen)
    assert distance.compute() == pytest.approx(0, abs=1e-6)


def test_sanity_batches_before_the_first_epoch_leave_no_trace(make_config: Any, tmp_path: Path) -> None:
    data = load_images("sample")
    few = ImageSplit(data.train.images[:40, :, 8:24, 8:24], data.train.labels[:40])
    config = make_config()

    def fit(sanity_batches: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        tokenizer = Tokenizer(config.tokenizer_config())
        module = TokenizerModule(
            tokenizer, config.optim, lr=config.lr, pixel_variance=0.06, total_steps=5, calibration_images=few.images[:16]
        )
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            num_sanity_val_steps=sanity_batches,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        train = BatchLoader(few, 8, shuffle=True, augment=True, seed=0)
        test = BatchLoader(few, 15, shuffle=False, augment=False, seed=0)
        trainer.fit(module, train, test)
        assert int(module.evaluation.levels[0].usage.counts.sum()) == 40 * 16  # each test image once
        assert int(module.train_levels[0].usage.counts.sum()) == 40 * 16
        test_figures = {f"test/{name}": value for name, value in module.evaluation.compute().items()}
        return module.train_figures() | test_figures, tokenizer.state_dict()

    figures, state = fit(0)
    again, state_again = fit(2)
    assert again == figures
    assert all(torch.equal(value, state_again[name]) for name, value in state.items())


# -- checkpoints -------------------------------------------------------------------------------------------------------------------


def test_tokenizers_are_released() -> None:
    assert RELEASED


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_a_released_tokenizer_is_tensors_and_plain_types_and_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", never)
    monkeypatch.setattr("pickle.load", never)
    monkeypatch.setattr("pickle.loads", never)
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "evaluation.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5e6
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert all(torch.isfinite(file.get_tensor(name).float()).all() for name in file.keys())  # noqa: SIM118 (it is no mapping)
    measured = json.loads((folder / "evaluation.json").read_text())
    tokenizer = Tokenizer.from_pretrained(folder)
    images = load_images("sample").test.images[:60]
    psnr = psnr_per_image(tokenizer.decode_indices(tokenizer.encode(images)), as_unit_images(images)).mean()
    # 60 of the 10,000 images behind the released figure.
    assert float(psnr) == pytest.approx(measured["hard/psnr"], abs=1.5)


# -- scale -------------------------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("levels", [1, 2])
def test_a_soft_or_hard_pass_in_eval_is_one_graph(kind: str, levels: int, make_config: Any) -> None:
    if levels > 1 and not CODEBOOKS[kind].stackable:
        pytest.skip("one level only")
    tokenizer = Tokenizer(make_config(quantizer=kind, levels=levels).tokenizer_config()).eval()
    images = torch.rand(2, 3, 16, 16)
    torch.compiler.reset()
    with torch.no_grad():
        want = tokenizer(images)
        out = torch.compile(tokenizer, fullgraph=True, backend="aot_eager")(images)
    torch.testing.assert_close(out.reconstruction, want.reconstruction)
    assert torch.equal(out.quantizer.indices, want.quantizer.indices)


@VARIANTS
def test_three_compiled_training_steps_equal_eager_ones(settings: dict[str, str], make_config: Any) -> None:
    """With the backend that traces forward and backward as Inductor does, and leaves out its minutes of C++ compilation."""
    kind, update = settings["kind"], {name: value for name, value in settings.items() if name != "kind"}
    eager = Tokenizer(make_config(quantizer=kind, levels=2, codebook_size=[16, 8], **{kind: update}).tokenizer_config()).train()
    batches = torch.rand(4, 4, 3, 16, 16)
    eager(batches[0])  # codes and statistics from data, equal for both
    eager.quantizer.prepare(10)
    other = copy.deepcopy(eager)
    start = copy.deepcopy(eager.state_dict())

    def train(tokenizer: Tokenizer, forward: Any) -> list[float]:
        optimizer = torch.optim.SGD([p for p in tokenizer.parameters() if p.requires_grad], lr=0.05)
        losses = []
        for images in batches[1:]:
            out = forward(images)
            loss = (out.reconstruction - images).square().mean() + out.quantizer.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tokenizer.quantizer.after_step()
            losses.append(float(loss.detach()))
        return losses

    torch.compiler.reset()
    losses = train(other, torch.compile(other, backend="aot_eager"))
    assert losses == pytest.approx(train(eager, eager), rel=1e-4)
    for mine, want in zip(other.quantizer.codebooks, eager.quantizer.codebooks, strict=True):
        torch.testing.assert_close(mine.codes, want.codes, rtol=1e-4, atol=1e-5)
    end = eager.state_dict()
    for name, value in end.items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    # All of it did move.
    moving = [name for name in end if name.endswith(("prototypes", "codebook", "norm.mean", "layers.0.weight"))]
    assert len(moving) == 5
    assert not any(torch.equal(start[name], end[name]) for name in moving)


@pytest.mark.parametrize("kind", [*TABLES, "simvq"])  # a mixture of Gumbel-softmax or SoftVQ never equals a code
@pytest.mark.parametrize("topology", STACKS)
@pytest.mark.parametrize("training", [True, False])
def test_the_first_levels_mean_the_same_in_training_and_by_ids(kind: str, topology: str, training: bool) -> None:
    """What the decoder is trained on for fewer levels (`prefixes`) is what ids of as many levels decode to."""
    cold = {"tau_start": 1e-7, "tau_end": 1e-7} if CODEBOOKS[kind].is_soft else {}
    levels = [build_codebook({"kind": kind, "codebook_size": k, **cold}, 4) for k in (16, 8, 4)]
    quantizer = Quantizer(8, levels, topology=topology).train()
    x = torch.randn(4, 8, 6, 6)
    quantizer(x)
    out = quantizer.train(training)(x)
    for count, prefix in enumerate(out.prefixes, 1):
        torch.testing.assert_close(prefix, quantizer.decode_indices(out.indices[..., :count]), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(out.prefixes[0], out.prefixes[1], atol=1e-2)
