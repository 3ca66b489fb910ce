"""Images to ids and back, and tokenizers on disk."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vqlab
from vqlab import Tokenizer, VqlabError, storage
from vqlab.quantizers import CODEBOOKS, TOPOLOGIES, NonFiniteError

KINDS = pytest.mark.parametrize("kind", list(CODEBOOKS))


def config(kind: str = "vqvae", sizes: tuple[int, ...] = (16,), **changes: object) -> dict:
    quantizer = {
        "topology": changes.pop("topology", "residual"),
        "normalize": changes.pop("normalize", True),
        "codebook_dim": changes.pop("codebook_dim", 6 if kind == "none" else 4),
        "levels": [] if kind == "none" else [{"kind": kind, "codebook_size": k} for k in sizes],
    }
    encoder = {"name": "conv", "width": 8, "residual_blocks": 1, "residual_width": 4, "downsamplings": 2}
    return {"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer, **changes}


def trained(kind: str, sizes: tuple[int, ...] = (16,), steps: int = 4, **changes: object) -> Tokenizer:
    torch.manual_seed(0)
    tokenizer = Tokenizer(config(kind, sizes, **changes)).train()
    optimizer = torch.optim.Adam([p for p in tokenizer.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        images = torch.rand(4, tokenizer.channels, 16, 16)
        out = tokenizer(images)
        optimizer.zero_grad()
        ((out.reconstruction - images).square().mean() + out.quantizer.loss).backward()
        optimizer.step()
        tokenizer.quantizer.after_step()
    return tokenizer.eval()


@pytest.fixture(params=[(kind, sizes) for kind in CODEBOOKS for sizes in ((16,), (16, 8, 8))], ids=str)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(*request.param)


def images(count: int = 3, h: int = 16, w: int = 24) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


# -- any size ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "w"), [(33, 47), (16, 18), (2, 2), (1, 1), (1, 40), (16, 24)])
def test_images_of_any_size_come_back_in_their_size(tokenizer: Tokenizer, h: int, w: int) -> None:
    given = images(2, h, w)
    ids = tokenizer.encode(given)
    assert ids.shape[1:3] == tokenizer.token_grid(h, w) == (-(-h // 4), -(-w // 4))
    back = tokenizer.decode_indices(ids, size=(h, w))
    assert back.shape == (2, 3, h, w)
    assert torch.equal(back, tokenizer.decode_indices(ids)[..., :h, :w])
    padded = torch.nn.functional.pad(given.float(), (0, -w % 4, 0, -h % 4), mode="replicate").byte()
    assert torch.equal(tokenizer.encode(padded), ids)
    assert tokenizer.decode_indices(ids[0], size=(h, w)).shape == (3, h, w)


def test_a_size_that_the_ids_cannot_have(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(images(1, 16, 24))
    for size in ((17, 24), (12, 24), (16, 20), (0, 24)):
        with pytest.raises(ValueError, match=r"have other ids|at least one pixel"):
            tokenizer.decode_indices(ids, size=size)


@pytest.mark.parametrize(
    ("encoder", "decoder", "factor"),
    [
        ({"name": "conv", "width": 8}, {"name": "vit", "width": 12, "depth": 1}, 4),
        ({"name": "timm:resnet10t", "stage": 1}, {"name": "conv", "width": 8}, 4),
        ({"name": "timm:resnet10t", "stage": 2}, {"name": "vit", "width": 12, "depth": 1}, 8),
    ],
    ids=str,
)
def test_mixed_encoders_and_decoders(encoder: dict, decoder: dict, factor: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(config(encoder=encoder, decoder=decoder))
    tokenizer(torch.rand(2, 3, 32, 32))
    tokenizer.eval()
    ids = tokenizer.encode(images(2, 32, 40))
    assert tokenizer.factor == factor
    assert ids.shape == (2, 32 // factor, 40 // factor, 1)
    assert tokenizer.decode_indices(ids).shape == (2, 3, 32, 40)
    again = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path))
    assert again.config() == tokenizer.config()
    assert torch.equal(again.encode(images(2, 32, 40)), ids)


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        ({"name": "timm:resnet10t"}, None, "needs a 'decoder'"),
        ({"name": "conv"}, {"width": 8}, "with a 'name'"),
        ({"name": "conv"}, {"name": "titok"}, "do not fit"),
        ({"name": "conv"}, {"name": "pixels"}, "unknown decoder 'pixels'"),
        ({"name": "titok"}, {"name": "vit"}, "do not fit"),
        ({"name": "conv", "downsamplings": 3}, {"name": "conv", "downsamplings": 2}, "the encoder needs 8"),
    ],
    ids=str,
)
def test_decoders_that_do_not_fit(encoder: dict, decoder: dict | None, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        Tokenizer(config(encoder=encoder, **({"decoder": decoder} if decoder else {})))


# -- encode and decode ---------------------------------------------------------------------------------------


def test_shapes_and_ranges(tokenizer: Tokenizer) -> None:
    levels = tokenizer.quantizer.num_levels
    for h, w in ((16, 24), (4, 4), (32, 8)):
        ids = tokenizer.encode(images(3, h, w))
        assert ids.shape == (3, h // 4, w // 4, levels)
        assert ids.dtype == torch.int64
        for level, size in enumerate(tokenizer.quantizer.codebook_sizes):
            assert 0 <= int(ids[..., level].min()) <= int(ids[..., level].max()) < size
        decoded = tokenizer.decode_indices(ids)
        assert decoded.shape == (3, 3, h, w)
        assert decoded.dtype == torch.float32
        assert float(decoded.min()) >= 0.0
        assert float(decoded.max()) <= 1.0
        assert not decoded.requires_grad
        assert tokenizer.embed(ids).shape == (3, 6, h // 4, w // 4)


def test_decoded_images_are_clamped() -> None:
    tokenizer = trained("vqvae")
    with torch.no_grad():
        list(tokenizer.decoder.modules())[-1].bias.copy_(torch.tensor([5.0, -5.0, 0.0]))
    decoded = tokenizer.decode_indices(tokenizer.encode(images()))
    assert float(decoded[:, 0].min()) == float(decoded[:, 0].max()) == 1.0
    assert float(decoded[:, 1].min()) == float(decoded[:, 1].max()) == 0.0


def test_one_image_without_a_batch_axis(tokenizer: Tokenizer) -> None:
    batch = images()
    ids = tokenizer.encode(batch[1])
    assert torch.equal(ids, tokenizer.encode(batch[1:2])[0])
    torch.testing.assert_close(tokenizer.decode_indices(ids), tokenizer.decode_indices(ids[None])[0])
    torch.testing.assert_close(tokenizer.embed(ids), tokenizer.embed(ids[None])[0])


def test_uint8_equals_floats_over_255(tokenizer: Tokenizer) -> None:
    assert torch.equal(tokenizer.encode(images()), tokenizer.encode(images().float() / 255))


def test_ids_do_not_depend_on_the_rest_of_the_batch(tokenizer: Tokenizer) -> None:
    batch = images(6)
    whole = tokenizer.encode(batch)
    for i in range(6):
        assert torch.equal(tokenizer.encode(batch[i]), whole[i])
    assert torch.equal(tokenizer.encode(batch.flip(0)), whole.flip(0))
    torch.testing.assert_close(tokenizer.decode_indices(whole)[2:3], tokenizer.decode_indices(whole[2:3]))


def test_memory_layouts(tokenizer: Tokenizer) -> None:
    batch = images()
    want = tokenizer.encode(batch)
    assert torch.equal(tokenizer.encode(batch.to(memory_format=torch.channels_last)), want)
    assert torch.equal(tokenizer.encode(batch.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)), want)
    assert torch.equal(tokenizer.encode(batch[:1].expand(3, -1, -1, -1)), want[:1].expand(3, -1, -1, -1))


def test_forward_agrees_with_encode_and_decode(tokenizer: Tokenizer) -> None:
    unit = images().float() / 255
    out = tokenizer(unit)
    assert torch.equal(out.quantizer.indices, tokenizer.encode(unit))
    torch.testing.assert_close(out.reconstruction, tokenizer.decode(out.quantizer.quantized))
    assert out.reconstruction.dtype == torch.float32
    if not tokenizer.quantizer.is_soft:
        torch.testing.assert_close(out.reconstruction.clamp(0, 1), tokenizer.decode_indices(out.quantizer.indices), rtol=1e-4, atol=1e-5)


@KINDS
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_fewer_levels(kind: str, topology: str) -> None:
    tokenizer = trained(kind, (16, 8, 8), topology=topology)
    ids = tokenizer.encode(images())
    pictures = []
    for levels in (1, 2, 3):
        assert torch.equal(tokenizer.encode(images(), levels), ids[..., :levels])
        pictures.append(tokenizer.decode_indices(ids[..., :levels]))
        assert pictures[-1].shape == (3, 3, 16, 24)
    assert not torch.equal(pictures[0], pictures[1])
    for levels in (0, 4):
        with pytest.raises(ValueError, match=r"levels must lie in 1\.\.3"):
            tokenizer.encode(images(), levels)
    with pytest.raises(ValueError, match=r"levels must lie in 1\.\.3"):
        tokenizer.decode_indices(torch.zeros(1, 2, 2, 4, dtype=torch.int64))


@KINDS
def test_refused_ids(kind: str) -> None:
    tokenizer = trained(kind, steps=0)
    for bad in (-1, 16):
        with pytest.raises(ValueError, match=r"indices must lie in 0\.\.15"):
            tokenizer.decode_indices(torch.full((1, 2, 2, 1), bad))
    with pytest.raises(ValueError, match="indices must be integers"):
        tokenizer.decode_indices(torch.zeros(1, 2, 2, 1))
    for shape in ((4,), (2, 2), (1, 1, 2, 2, 1)):
        with pytest.raises(ValueError, match="indices must be"):
            tokenizer.decode_indices(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.rand(2, 1, 16, 16), "expected 3 colour channels, got 1"),
        (torch.rand(2, 4, 16, 16), "expected 3 colour channels, got 4"),
        (torch.rand(2, 16, 16, 3), r"axis order is \(b, 3, h, w\)"),
        (torch.rand(16, 16, 3), r"axis order is \(b, 3, h, w\)"),
        (torch.rand(16, 16), "expected images"),
        (torch.rand(2, 3, 0, 4), "at least one pixel, got 0x4"),
        (torch.rand(2, 3, 16, 16) * 2 - 1, r"must lie in \[0, 1\]"),
        (torch.rand(2, 3, 16, 16) * 255, r"must lie in \[0, 1\]"),
        (torch.full((2, 3, 16, 16), float("nan")), r"must lie in \[0, 1\]"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.int64), "must be uint8 or floats"),
    ],
)
def test_refused_images(bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained("vqvae", steps=0).encode(bad)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_numbers_of_channels(channels: int) -> None:
    tokenizer = trained("ddcl", channels=channels)
    ids = tokenizer.encode(torch.rand(2, channels, 8, 8))
    assert tokenizer.decode_indices(ids).shape == (2, channels, 8, 8)


def test_an_empty_batch() -> None:
    tokenizer = trained("ddcl")
    assert tokenizer.encode(torch.zeros(0, 3, 8, 8)).shape == (0, 2, 2, 1)


def test_without_a_quantizer() -> None:
    tokenizer = trained("none", normalize=False)
    unit = images().float() / 255
    out = tokenizer(unit)
    torch.testing.assert_close(out.reconstruction, tokenizer.decode(tokenizer.encoder(unit * 2 - 1)))
    assert out.quantizer.indices.shape == (3, 4, 6, 0)
    for call in (
        lambda: tokenizer.encode(unit),
        lambda: tokenizer.decode_indices(torch.zeros(1, 2, 2, 1, dtype=torch.int64)),
    ):
        with pytest.raises(ValueError, match="has no ids"):
            call()


# -- training ------------------------------------------------------------------------------------------------


@KINDS
def test_a_few_steps_learn_one_batch(kind: str) -> None:
    torch.manual_seed(0)
    settings = config(kind, (32,))
    settings["encoder"].update(width=32, residual_width=16)
    tokenizer = Tokenizer(settings).train()
    steps = 320 if kind == "gumbel" else 80  # gradients of samples are noisy
    tokenizer.quantizer.prepare(steps)
    optimizer = torch.optim.Adam([p for p in tokenizer.parameters() if p.requires_grad], lr=5e-3)
    # Running statistics and averages catch up while the encoder comes to rest.
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=2)
    batch = torch.nn.functional.interpolate(torch.rand(8, 3, 1, 1), scale_factor=16)
    errors = []
    for _ in range(steps):
        out = tokenizer(batch)
        error = (out.reconstruction - batch).square().mean()
        optimizer.zero_grad()
        (error + out.quantizer.loss).backward()
        optimizer.step()
        schedule.step()
        tokenizer.quantizer.after_step()
        errors.append(error.item())
    assert errors[-1] < 0.5 * errors[0]
    hard = tokenizer.eval().decode_indices(tokenizer.encode(batch))
    assert float((hard - batch).square().mean()) < 0.5 * errors[0]


@KINDS
def test_one_nan_pixel_in_a_training_batch_is_named_and_changes_nothing(kind: str) -> None:
    tokenizer = trained(kind).train()
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    batch = torch.rand(2, 3, 16, 16)
    batch[1, 0, 3, 3] = float("nan")
    with pytest.raises(NonFiniteError, match="input of the quantizer"):
        tokenizer(batch)
    assert all(torch.equal(value, tokenizer.state_dict()[name]) for name, value in before.items())


@KINDS
def test_bfloat16_autocast_around_the_quantizer(kind: str) -> None:
    tokenizer = trained(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tokenizer(images().float() / 255)
        ids = tokenizer.encode(images())
        decoded = tokenizer.decode_indices(ids)
    assert out.reconstruction.dtype == out.quantizer.quantized.dtype == decoded.dtype == torch.float32
    assert torch.equal(out.quantizer.indices, ids)
    plain = tokenizer.encode(images())
    assert float((plain == ids).float().mean()) > 0.5


def test_number_of_parameters() -> None:
    tokenizer = trained("vqvae", (16, 8), codebook_dim=6, steps=0)
    conv = sum(p.numel() for m in (tokenizer.encoder, tokenizer.decoder) for p in m.parameters())
    assert tokenizer.num_parameters == conv + (16 + 8) * 6


@KINDS
def test_deepcopy(kind: str) -> None:
    tokenizer = trained(kind)
    assert torch.equal(copy.deepcopy(tokenizer).encode(images()), tokenizer.encode(images()))


# -- files ---------------------------------------------------------------------------------------------------


def test_saving_and_loading_is_bit_equal(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.save_pretrained(tmp_path / "tok") == tmp_path / "tok"
    again = vqlab.Tokenizer.from_pretrained(str(tmp_path / "tok"))
    assert not any(module.training for module in again.modules())
    assert again.config() == tokenizer.config()
    for name, value in tokenizer.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    ids = tokenizer.encode(images())
    assert torch.equal(again.encode(images()), ids)
    assert torch.equal(again.decode_indices(ids), tokenizer.decode_indices(ids))
    unit = images().float() / 255
    assert torch.equal(again(unit).reconstruction, tokenizer(unit).reconstruction)
    assert torch.equal(again(unit).quantizer.loss, tokenizer(unit).quantizer.loss)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("kind", [*CODEBOOKS, "none"])
def test_every_setting_survives(kind: str, topology: str, tmp_path: Path) -> None:
    tokenizer = trained(kind, (16, 8), topology=topology, normalize=False, codebook_dim=6)
    again = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path))
    assert again.config() == tokenizer.config()
    unit = images().float() / 255
    assert torch.equal(again(unit).reconstruction, tokenizer(unit).reconstruction)


@KINDS
def test_a_loaded_tokenizer_goes_on_training(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    again = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path)).train()
    batch = torch.rand(4, 3, 16, 16)
    assert torch.equal(again(batch).quantizer.loss, tokenizer.train()(batch).quantizer.loss)


def test_nothing_but_tensors_and_plain_types(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", never)
    monkeypatch.setattr("pickle.load", never)
    Tokenizer.from_pretrained(tmp_path)


def test_a_saved_tokenizer_survives_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained("vqvae")
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.encode(images())

    def full_disk(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        trained("ddcl").save_pretrained(tmp_path)
    assert torch.equal(Tokenizer.from_pretrained(tmp_path).encode(images()), ids)
    assert len(list(tmp_path.iterdir())) == 2


def edit(folder: Path, *path: object, value: object) -> None:
    """Change one field of a saved configuration."""
    content = json.loads((folder / "config.json").read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("tokenizer", "quantizer", "levels", 0, "codebook_size"),
            1024,
            r"quantizer\.levels\.0\..* has shape \(16.*asks for \(1024|weights (hold|lack) 'quantizer\.levels\.0\.project_in",
        ),
        (("tokenizer", "quantizer", "codebook_dim"), 5, r"has shape .* asks for|weights lack 'quantizer\.levels\.0\.project_in"),
        (("tokenizer", "latent_dim"), 7, r"has shape .* asks for"),
        (("tokenizer", "channels"), 1, r"coder.* has shape .* asks for"),
        (("tokenizer", "encoder", "width"), 16, r"has shape .* asks for"),
        (("tokenizer", "encoder", "residual_blocks"), 2, r"encoder\.layers|weights"),
        (
            ("tokenizer", "quantizer", "normalize"),
            False,
            r"weights (hold|lack) '(quantizer\.space\.norm|encoder\.layers)\.",
        ),
        (("tokenizer", "quantizer", "levels"), [], "codebook_dim must be the latents' 6, got 4"),
        (("tokenizer", "colour"), "rgb", "unknown key 'colour'"),
        (("tokenizer", "encoder", "depth"), 3, "encoder 'conv': .*depth"),
        (("tokenizer", "encoder", "name"), "resnet", "unknown encoder 'resnet'"),
        (("tokenizer", "encoder", "width"), "wide", "width must be an integer"),
        (("tokenizer", "encoder"), "conv", "'encoder' must be a mapping of settings, got 'conv'"),
        (("tokenizer", "encoder"), {"width": 8}, "'encoder' needs a 'name'"),
        (("tokenizer", "quantizer", "topology"), "tree", "topology must be one of"),
        (("tokenizer", "quantizer", "levels", 0, "kind"), "pq", "unknown quantizer 'pq'"),
        (("tokenizer", "quantizer", "levels", 0, "beta"), 1, "unknown setting 'beta'"),
        (("tokenizer", "quantizer", "levels", 0), 7, "mapping of settings"),
        (("tokenizer", "quantizer", "levels"), "all", "mapping of settings"),
        (("tokenizer", "quantizer"), None, "'quantizer' must be a mapping of settings, got None"),
        (("tokenizer", "latent_dim"), 0, "latent_dim"),
        (("tokenizer", "latent_dim"), -3, "latent_dim"),
        (("tokenizer", "channels"), 0, "channels"),
        (("tokenizer", "latent_dim"), "six", "'latent_dim' must be an integer of at least 1, got 'six'"),
        (("tokenizer", "channels"), 3.0, "'channels' must be an integer of at least 1, got 3.0"),
        (("tokenizer", "quantizer", "codebook_dim"), 4.5, "codebook_dim"),
        (("format_version",), 3, "format_version is 3, this vqlab reads 1 to 2"),
    ],
)
@KINDS
def test_configurations_that_do_not_fit(kind: str, path: tuple, value: object, message: str, tmp_path: Path) -> None:
    trained(kind, steps=1).save_pretrained(tmp_path)
    edit(tmp_path, *path, value=value)
    with pytest.raises(VqlabError, match=message) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["channels", "latent_dim", "encoder", "quantizer"])
def test_missing_fields_are_named(name: str, tmp_path: Path) -> None:
    trained("vqvae", steps=0).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["tokenizer"][name]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(VqlabError, match=f"'{name}'"):
        Tokenizer.from_pretrained(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    tokenizer = trained("ddcl")
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    first = sorted(state)[0]

    save_file({name: value for name, value in state.items() if name != first}, path)
    with pytest.raises(VqlabError, match=f"the weights lack '{first}'"):
        Tokenizer.from_pretrained(tmp_path)
    save_file({**state, "extra": torch.zeros(1)}, path)
    with pytest.raises(VqlabError, match="the weights hold 'extra'"):
        Tokenizer.from_pretrained(tmp_path)
    save_file({"bert.weight": torch.zeros(1)}, path)
    with pytest.raises(VqlabError, match=r"the weights hold 'bert.weight'|the weights lack"):
        Tokenizer.from_pretrained(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(VqlabError, match=r"cannot read .*model\.safetensors"):
        Tokenizer.from_pretrained(tmp_path)
    path.unlink()
    with pytest.raises(VqlabError, match=r"model\.safetensors"):
        Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(VqlabError, match=r"nowhere is not a tokenizer: it has no config\.json"):
        Tokenizer.from_pretrained(tmp_path / "nowhere")


def test_loading_does_not_touch_the_random_numbers(tmp_path: Path) -> None:
    trained("ddcl").save_pretrained(tmp_path)
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    Tokenizer.from_pretrained(tmp_path)
    assert torch.equal(torch.rand(3), want)


# -- compilers -----------------------------------------------------------------------------------------------


@KINDS
def test_encoding_is_one_graph(kind: str) -> None:
    torch.compiler.reset()  # every kind compiles the same code anew, which happens a limited number of times
    tokenizer = trained(kind, (16, 8))
    x = torch.rand(2, 3, 16, 16) * 2 - 1
    want = tokenizer.quantizer.encode(tokenizer.encoder(x))

    def ids(x: torch.Tensor) -> torch.Tensor:
        return tokenizer.quantizer.encode(tokenizer.encoder(x))

    assert torch.equal(torch.compile(ids, fullgraph=True, backend="aot_eager")(x), want)


@KINDS
def test_encoding_can_be_exported(kind: str) -> None:
    class Encode(torch.nn.Module):
        def __init__(self, tokenizer: Tokenizer) -> None:
            super().__init__()
            self.tokenizer = tokenizer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.tokenizer.quantizer.encode(self.tokenizer.encoder(x))

    tokenizer = trained(kind, (16, 8))
    x = torch.rand(2, 3, 16, 16)
    program = torch.export.export(Encode(tokenizer).eval(), (x,))
    assert torch.equal(program.module()(x), tokenizer.quantizer.encode(tokenizer.encoder(x)))
