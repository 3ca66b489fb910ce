"""Stacks of every kind of codebook, on maps and sequences."""

import copy
import gc
import io

import pytest
import torch
from torch import nn

from vqlab.quantizers import CODEBOOKS, DDCLCodebook, NonFiniteError, Quantizer, QuantizerOutput, VQCodebook
from vqlab.quantizers.stack import STACKS

KINDS = pytest.mark.parametrize("kind", list(CODEBOOKS))
#: Kinds for several levels; the others refuse them in a configuration, since all levels would have one fixed grid.
STACKED = pytest.mark.parametrize("kind", [kind for kind in CODEBOOKS if CODEBOOKS[kind].stackable])
EACH_STACK = pytest.mark.parametrize("topology", STACKS)
#: Kinds whose codes start from data, at its place and scale.
DATA_STARTED = ("ddcl", "vqvae", "rotation")


def batches(count: int, *shape: int, seed: int = 1) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw) for _ in range(count)]


def reseeded(quantizer: Quantizer, x: torch.Tensor) -> QuantizerOutput:
    """A pass whose noise, where the kind draws any, is the same at each call."""
    torch.manual_seed(0)
    return quantizer(x)


# -- shapes --------------------------------------------------------------------------------------------------


@STACKED
@EACH_STACK
@pytest.mark.parametrize(
    ("dim", "codebook_dim", "shape"),
    [
        (8, 8, (2, 8, 5, 7)),
        (8, 8, (2, 8, 8, 8)),
        (8, 4, (1, 8, 3, 3)),
        (32, 8, (2, 32, 4, 4)),
        (1, 1, (2, 1, 3, 4)),
        (8, 8, (2, 11, 8)),
        (8, 8, (2, 8, 8)),
        (32, 8, (1, 6, 32)),
        (1, 1, (2, 3, 1)),
        (8, 8, (1, 8, 1, 1)),
    ],
)
@pytest.mark.parametrize("sizes", [(16,), (16, 8, 4)])
def test_shapes(kind, topology, dim, codebook_dim, shape, sizes, make) -> None:
    quantizer = make(kind, dim, sizes, codebook_dim, topology)
    grid = shape[2:] if len(shape) == 4 else shape[1:2]
    for training in (True, False):
        quantizer.train(training)
        x = torch.randn(shape, requires_grad=True)
        out = quantizer(x)
        assert out.quantized.shape == shape
        assert out.quantized.dtype == torch.float32
        assert out.indices.shape == (shape[0], *grid, len(sizes))
        assert out.indices.dtype == torch.int64
        assert len(out.parts) == len(out.mean_assignment) == len(out.prefixes) == len(sizes)
        assert all(prefix.shape == shape for prefix in out.prefixes)
        assert torch.equal(out.prefixes[-1], out.quantized)
        (out.loss + out.quantized.square().mean()).backward()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(v) for part in out.parts for v in part.values())
        for level in range(len(sizes)):
            assert 0 <= int(out.indices[..., level].min()) <= int(out.indices[..., level].max()) < sizes[level]
        assert quantizer.encode(x).shape == out.indices.shape
        assert quantizer.decode_indices(out.indices).shape == shape
        quantizer.after_step()


@STACKED
@EACH_STACK
def test_the_declared_layout_is_used_even_when_sides_equal_channels(kind, topology, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8), topology=topology)
    fit(quantizer, batches(3, 2, 8, 8, 8))
    quantizer.eval()
    x = torch.randn(2, 8, 8, 8)
    whole = quantizer(x)
    for i in range(8):  # every token alone gives what it gives in the map
        for j in (0, 5):
            one = quantizer(x[:, :, i : i + 1, j : j + 1])
            torch.testing.assert_close(one.quantized[:, :, 0, 0], whole.quantized[:, :, i, j], rtol=1e-5, atol=1e-5)
            assert torch.equal(one.indices[:, 0, 0], whole.indices[:, i, j])
    turned = quantizer(x.transpose(2, 3))
    assert torch.equal(turned.indices, whole.indices.transpose(1, 2))
    torch.testing.assert_close(turned.quantized, whole.quantized.transpose(2, 3))
    sequence = quantizer(x.flatten(2).transpose(1, 2))
    assert torch.equal(sequence.indices, whole.indices.flatten(1, 2))
    flipped = quantizer(x.flip(0))
    assert torch.equal(flipped.indices, whole.indices.flip(0))


@KINDS
@pytest.mark.parametrize("training", [True, False])
def test_memory_layouts(kind, training, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8))
    fit(quantizer, batches(2, 2, 8, 6, 5))
    quantizer.train(training)
    x = torch.randn(2, 8, 6, 5)
    row = torch.randn(1, 8, 1, 5)
    wide = torch.randn(2, 16, 12, 10)
    for contiguous, other in (
        (x, x.to(memory_format=torch.channels_last)),
        (row.repeat(2, 1, 6, 1), row.expand(2, 8, 6, 5)),
        (wide[:, ::2, ::2, ::2].contiguous(), wide[:, ::2, ::2, ::2]),
        (x.flip(3).contiguous(), x.transpose(2, 3).contiguous().transpose(2, 3).flip(3)),
    ):
        a, b = reseeded(copy.deepcopy(quantizer), contiguous), reseeded(copy.deepcopy(quantizer), other)
        torch.testing.assert_close(a.quantized, b.quantized)
        torch.testing.assert_close(a.loss, b.loss)
        assert torch.equal(a.indices, b.indices)
    out = quantizer(x.to(memory_format=torch.channels_last))
    assert out.quantized.is_contiguous(memory_format=torch.channels_last)


@KINDS
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 7, 4, 4), "expected 8 channels on axis 1"),
        ((2, 4, 4, 8), "expected 8 channels on axis 1"),
        ((2, 8, 7), "expected 8 channels on axis 2"),
        ((8,), "expected a map"),
        ((5, 8), "expected a map"),
        ((1, 2, 8, 3, 3), "expected a map"),
    ],
)
def test_refused_shapes(kind, shape, message, make) -> None:
    quantizer = make(kind)
    for call in (quantizer, quantizer.encode, quantizer.eval()):
        with pytest.raises(ValueError, match=message):
            call(torch.randn(shape))


@KINDS
def test_a_training_batch_without_tokens_is_refused(kind, make, state_bytes) -> None:
    quantizer = make(kind).train()
    before = state_bytes(quantizer)
    with pytest.raises(ValueError, match="at least one token"):
        quantizer(torch.zeros(0, 8, 4, 4))
    assert state_bytes(quantizer) == before
    assert quantizer.eval().encode(torch.zeros(0, 8, 4, 4)).shape == (0, 4, 4, 1)


# -- ids -----------------------------------------------------------------------------------------------------


@STACKED
@EACH_STACK
@pytest.mark.parametrize("sizes", [(32,), (32, 16, 8)])
@pytest.mark.parametrize(("training", "normalize"), [(False, True), (False, False), (True, False)])
def test_forward_and_encode_give_the_same_ids(kind, topology, sizes, training, normalize, make, fit) -> None:
    quantizer = make(kind, 8, sizes, 4, topology, normalize)
    inputs = batches(6, 4, 8, 6, 6)
    fit(quantizer, inputs[:3])
    quantizer.train(training)
    for x in inputs:
        out = quantizer(x)
        assert torch.equal(out.indices, quantizer.encode(x))
        quantizer.after_step()


@STACKED
@EACH_STACK
def test_the_first_training_batch_of_a_normalised_stack_agrees_with_encode(kind, topology, make) -> None:
    quantizer = make(kind, 8, (32, 16), topology=topology).train()
    x = torch.randn(4, 8, 6, 6)
    assert torch.equal(quantizer(x).indices, quantizer.encode(x))


@STACKED
@EACH_STACK
def test_encode_equals_a_chain_by_hand(kind, topology, make, fit) -> None:
    quantizer = make(kind, 8, (32, 16, 8), topology=topology)
    fit(quantizer, batches(4, 4, 8, 6, 6))
    quantizer.eval()
    x = torch.randn(4, 8, 6, 6)
    ids = quantizer.encode(x)
    z = quantizer.space.enter(x.permute(0, 2, 3, 1).reshape(-1, 8)).double()
    total, rest = torch.zeros_like(z), z
    for i, level in enumerate(quantizer.codebooks):
        nearest = torch.cdist(rest, level.codes.detach().double()).argmin(-1)
        if kind == "gumbel":  # its rule is not the distance
            nearest = level.encode(rest.float())
        assert torch.equal(ids[..., i].flatten(), nearest)
        code = level.codes.detach().double()[nearest]
        total, rest = (total + code, rest - code) if topology == "residual" else (code, code)
        by_hand = total.view(4, 6, 6, 8).permute(0, 3, 1, 2)
        torch.testing.assert_close(quantizer.decode_indices(ids[..., : i + 1]).double(), by_hand, rtol=1e-5, atol=1e-5)


@STACKED
@EACH_STACK
def test_fewer_levels(kind, topology, make, fit) -> None:
    quantizer = make(kind, 8, (32, 16, 8), topology=topology)
    fit(quantizer, batches(2, 4, 8, 6, 6))
    x = torch.randn(4, 8, 6, 6)
    for training in (True, False):
        quantizer.train(training)
        ids = quantizer.encode(x)
        for levels in (1, 2, 3):
            assert torch.equal(quantizer.encode(x, levels), ids[..., :levels])
            assert quantizer.decode_indices(ids[..., :levels]).shape == x.shape
        for levels in (0, 4, -1):
            with pytest.raises(ValueError, match=r"levels must lie in 1\.\.3"):
                quantizer.encode(x, levels)
    for count in (0, 4):
        with pytest.raises(ValueError, match=r"levels must lie in 1\.\.3"):
            quantizer.decode_indices(torch.zeros(2, 3, 3, count, dtype=torch.int64))


@pytest.mark.parametrize("kind", DATA_STARTED)  # 30 steps are too few for codes that start elsewhere
def test_more_residual_levels_are_closer(kind, make, fit) -> None:
    quantizer = make(kind, 4, (32, 32, 32))
    x = torch.randn(8, 4, 8, 8)
    fit(quantizer, [x] * 30)
    quantizer.eval()
    ids = quantizer.encode(x)
    z = quantizer.space.enter(x.movedim(1, -1).reshape(-1, 4)).view(8, 8, 8, 4).movedim(-1, 1)
    errors = [(quantizer.decode_indices(ids[..., :n]) - z).square().mean().item() for n in (1, 2, 3)]
    assert errors[2] < 0.7 * errors[1] < 0.49 * errors[0], errors


@KINDS
@pytest.mark.parametrize("bad", [-1, 16, 10**12])
def test_ids_out_of_range_are_refused(kind, bad, make) -> None:
    quantizer = make(kind, 8, (16, 16))
    ids = torch.zeros(2, 3, 3, 2, dtype=torch.int64)
    ids[1, 2, 0, 1] = bad
    with pytest.raises(ValueError, match=r"indices must lie in 0\.\.15"):
        quantizer.decode_indices(ids)
    with pytest.raises(ValueError, match="indices must be integers"):
        quantizer.decode_indices(ids.float())
    with pytest.raises(ValueError, match="indices must be"):
        quantizer.decode_indices(ids[0, 0])


# -- state ---------------------------------------------------------------------------------------------------


@STACKED
@EACH_STACK
@pytest.mark.parametrize("steps", [0, 5])
def test_eval_changes_no_state(kind, topology, steps, make, fit, state_bytes) -> None:
    quantizer = make(kind, 8, (16, 8), 4, topology)
    fit(quantizer, batches(steps, 4, 8, 5, 5))
    quantizer.eval()
    before = state_bytes(quantizer)
    x = torch.randn(4, 8, 5, 5)
    a, b = quantizer(x), quantizer(x)
    assert torch.equal(a.quantized, b.quantized)
    assert torch.equal(a.indices, b.indices)
    assert torch.equal(a.loss, b.loss)
    quantizer.encode(x)
    quantizer.decode_indices(a.indices)
    assert state_bytes(quantizer) == before


@KINDS
@pytest.mark.parametrize("steps", [0, 3])
def test_encoding_in_the_midst_of_training_changes_no_state(kind, steps, make, fit, state_bytes) -> None:
    quantizer = make(kind, 8, (16, 8), 4)
    fit(quantizer, batches(steps, 4, 8, 5, 5))
    quantizer.train()
    before = state_bytes(quantizer)
    x = torch.randn(4, 8, 5, 5) + 3
    ids = quantizer.encode(x)
    assert state_bytes(quantizer) == before
    assert all(module.training for module in quantizer.modules())
    assert torch.equal(quantizer.eval().encode(x), ids)
    with pytest.raises(ValueError, match="channels"):
        quantizer.train().encode(torch.randn(1, 5, 2, 2))
    assert all(module.training for module in quantizer.modules())


@KINDS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("steps", [0, 3])
def test_nan_stops_before_any_state_changes(kind, bad, steps, make, fit, state_bytes) -> None:
    quantizer = make(kind, 8, (16, 8), 4)
    fit(quantizer, batches(steps, 4, 8, 5, 5))
    quantizer.train()
    before = state_bytes(quantizer)
    x = torch.randn(4, 8, 5, 5)
    x[1, 3, 2, 2] = bad
    with pytest.raises(NonFiniteError, match="input of the quantizer: NaN or inf"):
        quantizer(x)
    assert state_bytes(quantizer) == before
    fit(quantizer, batches(2, 4, 8, 5, 5))
    assert all(torch.isfinite(v.float()).all() for v in quantizer.state_dict().values())


@STACKED
@EACH_STACK
def test_loading_the_state_and_going_on_gives_the_same_numbers(kind, topology, make) -> None:
    """Stop after 4 steps and go on to 30 in another process, against 30 in one go."""

    def optimizer_of(quantizer: Quantizer) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in quantizer.parameters() if p.requires_grad], lr=0.05)

    def run(quantizer: Quantizer, first: int, last: int) -> list[float]:
        optimizer, losses = optimizer_of(quantizer.train()), []
        for x in batches(30, 4, 8, 5, 5)[first:last]:
            out = reseeded(quantizer, x)
            optimizer.zero_grad()
            (out.loss + (out.quantized - x).square().mean()).backward()
            optimizer.step()
            quantizer.after_step()
            losses.append(float(out.loss.detach()))
        return losses

    one = make(kind, 8, (64, 16), 4, topology)
    one.prepare(30)
    run(one, 0, 4)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    losses = run(one, 4, 30)

    torch.manual_seed(4321)
    two = make(kind, 8, (64, 16), 4, topology)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True))
    assert run(two, 4, 30) == losses
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(one.eval().encode(x), two.eval().encode(x))


@KINDS
def test_deepcopy_of_a_stack_in_training(kind, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8)).train()
    quantizer(torch.randn(2, 8, 4, 4, requires_grad=True))
    other = copy.deepcopy(quantizer)
    before = copy.deepcopy(quantizer.state_dict())
    fit(other, batches(3, 2, 8, 4, 4))
    assert all(torch.equal(value, quantizer.state_dict()[name]) for name, value in before.items())


@STACKED
def test_after_step_prepare_freeze_reach_every_level(kind, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8))
    fit(quantizer, batches(2, 4, 8, 5, 5))
    quantizer.freeze()
    before = [level.codes.detach().clone() for level in quantizer.codebooks]
    fit(quantizer, batches(25, 4, 8, 5, 5))
    assert all(torch.equal(a, b.codes.detach()) for a, b in zip(before, quantizer.codebooks, strict=True))
    quantizer.freeze(False)
    fit(quantizer, batches(2, 4, 8, 5, 5))
    assert not any(torch.equal(a, b.codes.detach()) for a, b in zip(before, quantizer.codebooks, strict=True))


def test_prepare_reaches_the_temperatures(make) -> None:
    quantizer = make("ddcl", 8, (16, 8), tau_start=0.2, tau_end=0.1)
    quantizer.prepare(2)
    quantizer.after_step()
    quantizer.after_step()
    assert [float(level.schedule.tau) for level in quantizer.codebooks] == pytest.approx([0.1, 0.1])


@KINDS
@pytest.mark.parametrize("codebook_dim", [8, 4])
def test_calibration_takes_the_statistics_and_nothing_else(kind, codebook_dim, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8), codebook_dim)
    fit(quantizer, batches(3, 4, 8, 5, 5))
    quantizer.eval()
    before = copy.deepcopy(quantizer.state_dict())
    x = 3 * torch.randn(6, 8, 5, 5) + 2
    for given in (x.bfloat16().float(), x.flatten(2).transpose(1, 2)):  # a map, a sequence
        quantizer.calibrate(given)
        tokens = given.movedim(1, -1).reshape(-1, 8) if given.dim() == 4 else given.reshape(-1, 8)
        inside = quantizer.space.project_in(tokens)
        torch.testing.assert_close(quantizer.space.norm.mean, inside.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(quantizer.space.norm.variance, inside.var(0, correction=0), rtol=1e-4, atol=1e-5)
        entered = quantizer.space.enter(tokens)
        torch.testing.assert_close(entered.mean(0), torch.zeros(codebook_dim), rtol=0, atol=1e-4)
        torch.testing.assert_close(entered.std(0, correction=0), torch.ones(codebook_dim), rtol=1e-3, atol=0)
    changed = {name for name, value in quantizer.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"space.norm.mean", "space.norm.variance"}
    after = copy.deepcopy(quantizer.state_dict())
    quantizer.calibrate(torch.zeros(0, 8, 5, 5))  # says nothing about the latents
    assert all(torch.equal(value, after[name]) for name, value in quantizer.state_dict().items())


def test_calibration_without_normalisation_has_nothing_to_do(make, state_bytes) -> None:
    quantizer = make("ddcl", 8, (16,), normalize=False)
    before = state_bytes(quantizer)
    quantizer.calibrate(torch.randn(2, 8, 4, 4))
    assert state_bytes(quantizer) == before


# -- numbers -------------------------------------------------------------------------------------------------


@STACKED
@EACH_STACK
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("value", [0.0, 3.0, -300.0])
def test_constant_input_through_four_levels(kind, topology, normalize, value, make, fit) -> None:
    quantizer = make(kind, 8, (16, 16, 16, 16), topology=topology, normalize=normalize)
    x = torch.full((2, 8, 4, 4), value)
    losses = fit(quantizer, [x] * 20)
    assert all(torch.isfinite(torch.tensor(losses)))
    for mode in (True, False):
        out = quantizer.train(mode)(x)
        assert torch.isfinite(out.quantized).all()
        for parts in out.parts:
            assert all(torch.isfinite(v) for v in parts.values())
            assert float(parts.get("V", torch.zeros(()))) >= 0
    assert all(torch.isfinite(v.float()).all() for v in quantizer.state_dict().values())


@pytest.mark.parametrize("kind", DATA_STARTED)
@EACH_STACK
def test_large_values_in_float16(kind, topology, make) -> None:
    quantizer = make(kind, 8, (16, 8), topology=topology, normalize=False)
    signs = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    x = (300 * signs * torch.ones(2, 8, 4, 4)).half()
    out = quantizer.train()(x)
    quantizer.after_step()
    assert torch.isfinite(out.loss)
    out = quantizer.eval()(x)
    codes = quantizer.codebooks[0].codes.detach().double()
    expected = torch.cdist(x.double().movedim(1, -1).reshape(-1, 8), codes).argmin(-1)
    assert torch.equal(out.indices[..., 0].flatten(), expected)
    torch.testing.assert_close(out.quantized, x.float(), rtol=5e-2, atol=0)
    torch.testing.assert_close(quantizer.decode_indices(out.indices), x.float(), rtol=5e-2, atol=0)


@KINDS
@pytest.mark.parametrize("codebook_dim", [8, 4])
@pytest.mark.parametrize("training", [True, False])
def test_float32_inside_under_autocast(kind, codebook_dim, training, make, fit) -> None:
    quantizer = make(kind, 8, (16, 8), codebook_dim)
    fit(quantizer, batches(2, 4, 8, 5, 5))
    quantizer.train(training)
    x = torch.randn(4, 8, 5, 5).bfloat16()
    plain_quantizer = copy.deepcopy(quantizer)
    plain = reseeded(plain_quantizer, x.float())
    plain_quantizer.after_step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = reseeded(quantizer, x)
        quantizer.after_step()
        ids, decoded = quantizer.encode(x), quantizer.decode_indices(out.indices)
    assert out.quantized.dtype == decoded.dtype == out.loss.dtype == torch.float32
    assert torch.equal(out.quantized, plain.quantized)
    assert torch.equal(out.loss, plain.loss)
    assert torch.equal(out.indices, plain.indices)
    assert torch.equal(ids, plain_quantizer.encode(x.float()))
    assert torch.equal(decoded, plain_quantizer.decode_indices(out.indices))
    for (name, a), b in zip(quantizer.state_dict().items(), plain_quantizer.state_dict().values(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


@KINDS
def test_two_hundred_steps_keep_the_latents_bounded(kind, make) -> None:
    encoder, decoder = nn.Linear(12, 8), nn.Linear(8, 12)
    quantizer = make(kind, 8, (32,)).train()
    quantizer.prepare(200)
    modules = nn.ModuleList([encoder, quantizer, decoder])
    optimizer = torch.optim.Adam([p for p in modules.parameters() if p.requires_grad], lr=1e-2)
    x = torch.randn(4, 16, 12)
    raw, inside, losses = [], [], []
    for _ in range(200):
        z = encoder(x)
        out = quantizer(z)
        reconstruction = (decoder(out.quantized) - x).square().mean()
        optimizer.zero_grad()
        (reconstruction + out.loss).backward()
        optimizer.step()
        quantizer.after_step()
        raw.append(float(z.norm(dim=-1).mean().detach()))
        inside.append(float(out.quantized.norm(dim=-1).mean().detach()))
        losses.append(float(reconstruction.detach()))
    assert max(raw) < 10 * raw[0]
    assert min(raw) > 0.1 * raw[0]
    assert max(inside) < 8**0.5 * 2
    assert losses[-1] < 0.8 * losses[0]


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["ema", "gradient"])
def test_straight_through_of_a_residual_stack(update, make) -> None:
    quantizer = make("vqvae", 8, (16, 8, 4), normalize=False, update=update)
    x, weight = torch.randn(2, 9, 8, requires_grad=True), torch.randn(2, 9, 8)
    out = quantizer(x)
    (out.quantized * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight)
    torch.testing.assert_close(out.quantized, quantizer.decode_indices(out.indices), rtol=1e-5, atol=1e-5)


def test_every_commitment_of_a_residual_stack_reaches_the_encoder(make) -> None:
    quantizer = make("vqvae", 3, (4, 4, 4), normalize=False, commitment_weight=0.5)
    x = torch.randn(1, 20, 3, requires_grad=True)
    out = quantizer(x)
    out.loss.backward()
    z = x.detach()[0]
    expected, total = torch.zeros(20, 3), torch.zeros(20, 3)
    for i, level in enumerate(quantizer.codebooks):
        total = total + level.codes[out.indices[0, :, i]]
        expected += 0.5 * 2 * (z - total) / z.numel()  # the codes before are constants
    torch.testing.assert_close(x.grad[0], expected, rtol=1e-4, atol=1e-6)


def test_soft_stacks_have_exact_gradients() -> None:
    levels = [DDCLCodebook(3, 5, init="random", tau_start=0.5, tau_end=0.5).double() for _ in range(2)]
    stack = Quantizer(3, levels, normalize=False).eval()
    z = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)

    def residual(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = levels[0](z[0])
        code = levels[0].codes[torch.cdist(z[0], levels[0].codes).argmin(-1)]
        second = levels[1](z[0] - code)
        return code + second.quantized, first.loss + second.loss

    assert torch.autograd.gradcheck(residual, (z,))
    want, loss = residual(z)
    out = stack(z.float())
    torch.testing.assert_close(out.quantized[0].double(), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.prefixes[0][0].double(), levels[0](z[0]).quantized, rtol=1e-4, atol=1e-4)
    assert out.loss.item() == pytest.approx(loss.item(), rel=1e-4)


def test_codes_of_earlier_soft_levels_learn_from_the_last_output() -> None:
    levels = [DDCLCodebook(3, 5, init="random", tau_start=0.5) for _ in range(2)]
    stack = Quantizer(3, levels, normalize=False).eval()
    z, weight = torch.randn(1, 40, 3), torch.randn(40, 3)
    out = stack(z)
    (out.quantized[0] * weight).sum().backward()
    # By hand: output = c1 + mu2(z - c1), mu2 with Jacobian J2 = (2/T) Cov_q(p), so c1 receives (1 - J2) of the output's gradient.
    p = levels[1].prototypes.detach()
    code = levels[0].prototypes.detach()[out.indices[0, :, 0]]
    q = torch.softmax(-torch.cdist(z[0] - code, p).square() / levels[1].temperature, -1)
    centred = p - (q @ p)[:, None]
    jacobian = 2 / levels[1].temperature * torch.einsum("nk,nki,nkj->nij", q, centred, centred)
    expected = torch.zeros(5, 3).index_add_(0, out.indices[0, :, 0], weight - torch.einsum("nij,nj->ni", jacobian, weight))
    torch.testing.assert_close(levels[0].prototypes.grad, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("order", ["soft-hard", "hard-soft"])
def test_mixed_residual_stacks(order) -> None:
    levels = [DDCLCodebook(4, 16), VQCodebook(4, 16)]
    quantizer = Quantizer(4, levels if order == "soft-hard" else levels[::-1], normalize=False).train()
    x, weight = torch.randn(1, 50, 4, requires_grad=True), torch.randn(1, 50, 4)
    out = quantizer(x)
    (out.quantized * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight)  # one straight-through, once
    assert quantizer.is_soft
    assert [m is not None for m in out.mean_assignment] == ([True, False] if order == "soft-hard" else [False, True])


@KINDS
def test_loss_is_the_sum_of_the_levels(kind, make) -> None:
    quantizer = make(kind, 8, (16, 8), normalize=False).eval()
    x = torch.randn(2, 9, 8)
    first, second = quantizer.codebooks
    one = first(x.view(-1, 8))
    two = second(x.view(-1, 8) - first.lookup(one.indices))
    assert quantizer(x).loss.item() == pytest.approx((one.loss + two.loss).item(), rel=1e-6)


# -- refusals ------------------------------------------------------------------------------------------------


@KINDS
def test_contradictory_stacks(kind) -> None:
    cls = CODEBOOKS[kind]
    with pytest.raises(ValueError, match="at least one level"):
        Quantizer(4, [])
    with pytest.raises(ValueError, match="topology must be one of"):
        Quantizer(4, [cls(4, 8)], topology="parallel")
    with pytest.raises(ValueError, match=r"share one codebook_dim, got \[4, 5\]"):
        Quantizer(4, [cls(4, 8), cls(5, 8)])
    with pytest.raises(ValueError, match="must not grow"):
        Quantizer(4, [cls(4, 8), cls(4, 16)], topology="cascade")
    Quantizer(4, [cls(4, 8), cls(4, 8)], topology="cascade")


@pytest.mark.parametrize("kind", ["ddcl", "vqvae", "gumbel"])  # the rest keep no state of their own
def test_memory_stays_flat(kind, make, fit) -> None:
    """Nothing in a quantizer grows with the number of steps."""
    quantizer = make(kind, 8, (16, 8))

    def tensors_after(steps: int) -> int:
        fit(quantizer, batches(steps, 4, 8, 5, 5))
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    few = tensors_after(3)
    assert tensors_after(50) <= few
