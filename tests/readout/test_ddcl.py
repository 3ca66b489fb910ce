"""The readout against definitions in float64; padding, permutations, gradients; encoders of other libraries."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from vqlab.assignment import soft_assign_reference
from vqlab.quantizers import NonFiniteError
from vqlab.readout import DDCLReadout, ReadoutOutput, ReadoutStack

B, N, D, K = 3, 7, 6, 4
FIELDS = ("tokens", "pooled", "histogram", "summaries", "indices", "assignment")


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask() -> Tensor:
    return torch.arange(N) < torch.tensor([7, 4, 1])[:, None]


def trained(tokens: Tensor, mask: Tensor | None = None, **options: object) -> DDCLReadout:
    """A readout that has seen one batch, in eval mode."""
    torch.manual_seed(1)
    readout = DDCLReadout(tokens.shape[2], K, **options)
    readout(tokens, mask)
    return readout.eval()


def equal(a: ReadoutOutput, b: ReadoutOutput) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in FIELDS) and torch.equal(a.loss, b.loss)


def test_every_output_equals_its_definition(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    out = readout(tokens, mask)
    with torch.no_grad():
        z = readout.space.enter(tokens[mask]).double()
        p, t = readout.codebook.prototypes.double(), float(readout.codebook.temperature)
        reference = soft_assign_reference(z, p, t)
        q = torch.softmax(-(z[:, None] - p).square().sum(-1) / t, -1)
    torch.testing.assert_close(out.tokens[mask], reference.centroid.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.assignment[mask], q.float(), atol=1e-5, rtol=1e-5)
    for name, value in (("L_q", reference.l_q), ("L_OLS", reference.l_ols), ("V", reference.v)):
        torch.testing.assert_close(out.parts[name].double(), value, atol=1e-5, rtol=1e-5)
    assert torch.equal(out.indices[mask], reference.indices)
    start = 0
    for b, length in enumerate(mask.sum(1).tolist()):
        own, real = q[start : start + length].float(), tokens[b, :length]
        torch.testing.assert_close(out.histogram[b], own.mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out.pooled[b], out.tokens[b, :length].mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out.summaries[b], (own / own.sum(0)).T @ real, atol=1e-4, rtol=1e-4)
        start += length


def test_the_decomposition_is_exact(tokens: Tensor, mask: Tensor) -> None:
    parts = trained(tokens, mask)(tokens, mask).parts
    torch.testing.assert_close(parts["L_q"], parts["L_OLS"] + parts["V"], atol=1e-6, rtol=1e-6)
    assert parts["V"] > 0


@pytest.mark.parametrize("garbage", [0.0, 1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("training", [True, False])
def test_what_stands_at_padding_changes_nothing(tokens: Tensor, mask: Tensor, garbage: float, training: bool) -> None:
    results, states, gradients = [], [], []
    for fill in (0.5, garbage):
        readout = trained(tokens, mask, codebook_dim=3).train(training)
        x = tokens.masked_fill(~mask[..., None], fill).requires_grad_()
        out = readout(x, mask)
        (out.pooled.square().sum() + out.loss).backward()
        assert x.grad is not None
        results.append(out)
        states.append(readout.state_dict())
        gradients.append(x.grad)
    assert equal(*results)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert torch.equal(gradients[0], gradients[1])
    assert not gradients[0][~mask].any()
    assert not results[0].tokens[~mask].any()
    assert not results[0].assignment[~mask].any()
    assert (results[0].indices[~mask] == -1).all()


def test_more_padding_and_left_padding_change_nothing(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    out = readout(tokens, mask)
    wide = readout(torch.cat([tokens, torch.ones(B, 5, D)], 1), torch.cat([mask, torch.zeros(B, 5, dtype=torch.bool)], 1))
    left = readout(torch.cat([torch.ones(B, 5, D), tokens], 1), torch.cat([torch.zeros(B, 5), mask], 1))
    for other in (wide, left):
        for name in ("pooled", "histogram", "summaries"):
            torch.testing.assert_close(getattr(other, name), getattr(out, name))
        torch.testing.assert_close(other.loss, out.loss)


def test_a_sequence_alone_gives_what_it_gives_in_a_batch(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    out = readout(tokens, mask)
    for b, length in enumerate(mask.sum(1).tolist()):
        alone = readout(tokens[b : b + 1, :length])
        torch.testing.assert_close(alone.pooled[0], out.pooled[b])
        torch.testing.assert_close(alone.histogram[0], out.histogram[b])


def test_order_of_tokens_and_of_sequences(tokens: Tensor) -> None:
    readout = trained(tokens)
    out = readout(tokens)
    turned = torch.randperm(N)
    moved = readout(tokens[:, turned])
    torch.testing.assert_close(moved.tokens, out.tokens[:, turned])
    torch.testing.assert_close(moved.pooled, out.pooled)
    torch.testing.assert_close(readout(tokens.flip(0)).histogram, out.histogram.flip(0))


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_masks_of_any_number_type(tokens: Tensor, mask: Tensor, kind: torch.dtype) -> None:
    readout = trained(tokens, mask)
    assert equal(readout(tokens, mask.to(kind)), readout(tokens, mask))


def test_gradients_reach_tokens_and_prototypes_through_every_output(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    for output in ("tokens", "pooled", "histogram", "summaries", "loss"):
        x = tokens.clone().requires_grad_()
        out = getattr(readout(x, mask), output)
        (out * torch.linspace(0.5, 2.0, out.numel()).view(out.shape)).sum().backward()
        assert x.grad is not None
        assert float(x.grad.abs().sum()) > 0, output
        for parameter in readout.codebook_parameters():
            assert parameter.grad is not None
            assert float(parameter.grad.abs().sum()) > 0, output
        readout.zero_grad()


def test_the_gradient_of_the_histogram_equals_finite_differences(tokens: Tensor) -> None:
    readout = trained(tokens)
    direction = torch.randn_like(tokens)
    x = tokens.clone().requires_grad_()
    readout(x).histogram[:, 0].sum().backward()
    assert x.grad is not None
    h = 1e-2
    with torch.no_grad():
        change = (readout(tokens + h * direction).histogram - readout(tokens - h * direction).histogram)[:, 0].sum() / (2 * h)
    torch.testing.assert_close((x.grad * direction).sum(), change, atol=2e-3, rtol=2e-2)


def test_bad_input_is_refused_by_name(tokens: Tensor, mask: Tensor) -> None:
    readout = DDCLReadout(D, K)
    with pytest.raises(ValueError, match=r"width 6, got shape \(3, 7, 5\)"):
        readout(tokens[..., :5])
    with pytest.raises(ValueError, match=r"tokens must be \(b, n, d\)"):
        readout(tokens[0])
    with pytest.raises(ValueError, match="must be"):
        readout(tokens, mask[:, :4])
    with pytest.raises(ValueError, match="True or 1"):
        readout(tokens, mask * 2.0)
    with pytest.raises(ValueError, match="at least one real token"):
        readout(tokens, mask & False)
    with pytest.raises(NonFiniteError):
        readout(tokens.masked_fill(tokens > 1, float("nan")))


def test_bfloat16_tokens_and_autocast_are_computed_in_float32(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    with torch.autocast("cpu", torch.bfloat16):
        out = readout(tokens.bfloat16(), mask)
    assert out.pooled.dtype == out.loss.dtype == torch.float32
    torch.testing.assert_close(out.pooled, readout(tokens.bfloat16().float(), mask).pooled)


def test_loaded_state_gives_the_same_output(tokens: Tensor, mask: Tensor) -> None:
    readout = trained(tokens, mask)
    other = DDCLReadout(D, K)
    other.load_state_dict(readout.state_dict())
    assert equal(other.eval()(tokens, mask), readout(tokens, mask))


def test_training_separates_prototypes_and_cools() -> None:
    torch.manual_seed(1)
    corners = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 4.0], [0.0, -4.0]])
    x = corners[torch.randint(4, (20, 30))] + 0.1 * torch.randn(20, 30, 2)
    readout = DDCLReadout(2, 4, normalize=False, init="data", tau_start=0.3, tau_end=0.02, loss_weight=2.0)
    readout.prepare(150)
    before = float(readout.codebook.schedule.tau)
    optimizer = torch.optim.Adam(readout.codebook_parameters(), lr=0.05)
    for _ in range(150):
        out = readout(x)
        assert out.parts["V"] >= 0
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        readout.after_step()
    assert float(readout.codebook.schedule.tau) < before / 10
    found = readout.codebook.prototypes.detach()
    assert torch.cdist(corners, found).amin(1).max() < 0.2
    assert set(readout.diagnostics()) == {"margin", "separation", "separation_nearest"}
    assert float(readout.diagnostics()["margin"]) > 1


def test_parameter_groups_are_two_time_scales() -> None:
    readout = DDCLReadout(6, 4, codebook_dim=3)
    rest, prototypes = readout.parameter_groups(1e-3, ratio=0.1, weight_decay=0.01)
    assert prototypes["lr"] == pytest.approx(1e-2)
    assert prototypes["weight_decay"] == 0
    assert [id(p) for p in prototypes["params"]] == [id(readout.codebook.prototypes)]
    assert len(rest["params"]) + 1 == len(list(readout.parameters()))


@pytest.mark.parametrize("carry", ["tokens", "summaries"])
def test_a_stack_hands_on_what_it_says(tokens: Tensor, mask: Tensor, carry: str) -> None:
    stack = ReadoutStack(D, [6, 4, 2], carry=carry)
    stack(tokens, mask)
    stack.eval()
    first, second, third = stack(tokens, mask)
    assert [out.histogram.shape[1] for out in (first, second, third)] == [6, 4, 2]
    handed, its_mask = (first.tokens, mask) if carry == "tokens" else (first.summaries, None)
    assert equal(second, stack.readouts[1](handed, its_mask))
    assert third.tokens.shape == ((B, N, D) if carry == "tokens" else (B, 4, D))
    for out in (first, second, third):
        torch.testing.assert_close(out.parts["L_q"], out.parts["L_OLS"] + out.parts["V"], atol=1e-5, rtol=1e-5)
        assert out.parts["V"] >= 0
    assert len(stack.codebook_parameters()) == 3


@pytest.mark.parametrize(("sizes", "carry"), [([2, 4], "tokens"), ([], "tokens"), ([4, 2], "something")])
def test_stacks_that_make_no_sense_are_refused(sizes: list[int], carry: str) -> None:
    with pytest.raises(ValueError, match=r"carry|compresses"):
        ReadoutStack(D, sizes, carry=carry)


def test_an_encoder_of_hugging_face_in_three_lines() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16
    )
    encoder = transformers.BertModel(config).eval()
    batch = {"input_ids": torch.randint(50, (2, 9)), "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4])}

    readout = DDCLReadout(dim=16, codebook_size=4)
    out = readout(encoder(**batch).last_hidden_state, batch["attention_mask"])
    out.pooled.sum().backward()

    assert out.pooled.shape == (2, 16)
    assert (out.indices[1, 5:] == -1).all()
    assert encoder.embeddings.word_embeddings.weight.grad is not None
    # The ids at padding do not matter either, all the way from the encoder's input.
    batch["input_ids"][1, 5:] = 7
    readout.eval()
    one = readout(encoder(**batch).last_hidden_state, batch["attention_mask"]).pooled
    batch["input_ids"][1, 5:] = 9
    torch.testing.assert_close(readout(encoder(**batch).last_hidden_state, batch["attention_mask"]).pooled, one)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224"])
def test_an_encoder_of_timm_in_three_lines(name: str) -> None:
    vit: nn.Module = timm.create_model(name, pretrained=False, img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2)
    images = torch.rand(2, 3, 32, 32)

    readout = DDCLReadout(dim=24, codebook_size=4)
    out = readout(vit.forward_features(images)[:, vit.num_prefix_tokens :])
    out.pooled.sum().backward()

    assert out.tokens.shape == (2, 16, 24)
    assert vit.patch_embed.proj.weight.grad.abs().sum() > 0
