"""What holds for one level of every kind of codebook."""

import copy
import json

import pytest
import torch

from vqlab.errors import VqlabError
from vqlab.quantizers import CODEBOOKS, Codebook, build_codebook
from vqlab.quantizers.base import NonFiniteError, check_tokens
from vqlab.quantizers.peers.implicit import ImplicitCodebook

KINDS = pytest.mark.parametrize("kind", list(CODEBOOKS))
#: Kinds whose ids are not the codes nearest to the token, and why.
OTHER_RULES = {
    "bsq": "signs of the token on the grid's side of the projection",
    "fsq": "the token is bounded by tanh first",
    "gumbel": "argmax of learned logits",
    "lfq": "signs of the token on the grid's side of the projection",
}
VARIANTS = pytest.mark.parametrize(
    "settings",
    [
        *({"kind": kind} for kind in CODEBOOKS),
        {"kind": "vqvae", "update": "gradient"},
        {"kind": "ddcl", "usage_weight": 0.0},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)


def book(kind: str, dim: int = 4, codebook_size: int = 8, **settings: object) -> Codebook:
    return build_codebook({"kind": kind, "codebook_size": codebook_size, **settings}, dim)


@VARIANTS
@pytest.mark.parametrize(("n", "k", "d"), [(50, 8, 4), (1, 8, 4), (8, 64, 3), (50, 1, 4), (30, 5, 1)])
def test_shapes_types_and_finite_figures(settings: dict, n: int, k: int, d: int) -> None:
    kind = CODEBOOKS[settings["kind"]]
    if issubclass(kind, ImplicitCodebook) and k in (1, 5) and (kind.kind, k) != ("fsq", 5):
        with pytest.raises(VqlabError, match="codebook_size of"):
            build_codebook({**settings, "codebook_size": k}, d)
        return
    level = build_codebook({**settings, "codebook_size": k}, d).train()
    z = torch.randn(n, d, requires_grad=True)
    for _ in range(3):
        out = level(z)
        (out.loss + out.quantized.square().mean()).backward()
        level.after_step()
        assert out.quantized.shape == (n, d)
        assert out.quantized.dtype == torch.float32
        assert out.indices.shape == (n,)
        assert out.indices.dtype == torch.int64
        assert 0 <= int(out.indices.min()) <= int(out.indices.max()) < k
        assert out.loss.shape == ()
        assert all(v.shape == () and not v.requires_grad and torch.isfinite(v) for v in out.parts.values()), out.parts
        # The entropies of the loss of lfq and bsq look at an assignment, too.
        assert (out.mean_assignment is not None) == (level.is_soft or "mean_entropy" in out.parts)
        if out.mean_assignment is not None:
            assert float(out.mean_assignment.sum()) == pytest.approx(1.0, abs=1e-5)
    assert level.codes.shape == (k, d)
    assert torch.isfinite(level.codes).all()
    assert torch.isfinite(z.grad).all()


@KINDS
def test_names_of_the_parts(kind: str) -> None:
    names = set(book(kind).train()(torch.randn(20, 4)).parts)
    expected = {
        "ddcl": {"L_q", "L_OLS", "V", "entropy", "free_energy", "usage_penalty", "tau", "temperature"},
        "vqvae": {"distortion", "commitment", "revived"},
    }
    assert names >= expected.get(kind, set())


@VARIANTS
def test_indices_are_the_nearest_codes_and_equal_encodes(settings: dict) -> None:
    level = build_codebook({**settings, "codebook_size": 32}, 4).train()
    for training in (True, False):
        level.train(training)
        z = torch.randn(200, 4)
        out = level(z)
        distance = torch.cdist(z.double(), level.codes.detach().double())
        if settings["kind"] not in OTHER_RULES:
            assert torch.equal(out.indices, distance.argmin(-1))
        assert torch.equal(level.encode(z), out.indices)


@KINDS
def test_what_ids_decode_to_is_what_hard_levels_hand_on(kind: str) -> None:
    level = book(kind, codebook_size=64).eval()
    z = torch.randn(200, 4)
    out = level(z)
    codes = level.lookup(out.indices)
    assert torch.equal(codes, level.codes[out.indices])
    assert torch.allclose(out.quantized, codes, atol=1e-5) != level.is_soft


@pytest.mark.parametrize("kind", [kind for kind in CODEBOOKS if issubclass(CODEBOOKS[kind], ImplicitCodebook)])
def test_a_grid_in_its_own_dimension_learns_nothing_and_has_tokens_for_every_code(kind: str) -> None:
    level = book(kind, CODEBOOKS[kind].default_dim(64), 64)
    assert list(level.parameters()) == []
    assert len(level.encode(2 * torch.randn(20_000, level.dim)).unique()) == 64


@KINDS
def test_lookup_refuses_what_is_no_index(kind: str) -> None:
    level = book(kind)
    for bad in (-1, 8, 10**9):
        with pytest.raises(ValueError, match=r"indices must lie in 0\.\.7"):
            level.lookup(torch.tensor([0, bad]))
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match="indices must be integers"):
            level.lookup(torch.zeros(3, dtype=dtype))
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        assert torch.equal(level.lookup(torch.tensor([[7, 0]], dtype=dtype)), level.codes[[7, 0]][None])
    assert level.lookup(torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


@KINDS
def test_settings_rebuild_the_same_level(kind: str) -> None:
    level = book(kind).train()
    level(torch.randn(30, 4))
    settings = json.loads(json.dumps({"kind": kind, "codebook_size": 8, **level.settings()}, allow_nan=False))
    again = build_codebook(settings, 4)
    again.load_state_dict(level.state_dict())
    assert again.settings() == level.settings()
    z = torch.randn(10, 4)
    torch.testing.assert_close(level.eval()(z).loss, again.eval()(z).loss, rtol=0, atol=0)


@KINDS
def test_frozen_codebook_keeps_its_bytes_while_the_encoder_learns(kind: str) -> None:
    level = book(kind).train()
    level(torch.randn(60, 4))
    level.after_step()
    level.freeze()
    before = level.codes.detach().clone()
    z = torch.randn(60, 4, requires_grad=True)
    optimizer = torch.optim.AdamW([z, *(p for p in level.parameters() if p.requires_grad)], lr=0.1, weight_decay=0.1)
    start = z.detach().clone()
    for _ in range(40):
        optimizer.zero_grad()
        out = level(z)
        (out.loss + (out.quantized - 1).square().mean()).backward()
        optimizer.step()
        level.after_step()
    assert before.numpy().tobytes() == level.codes.detach().numpy().tobytes()
    assert not torch.equal(z.detach(), start)
    level.freeze(False)
    for _ in range(3):
        out = level(z)
        (out.loss + (out.quantized - 1).square().mean()).backward()
        for p in level.codebook_parameters():
            p.data.sub_(0.1 * p.grad)
        level.after_step()
    assert before.numpy().tobytes() != level.codes.detach().numpy().tobytes()


@KINDS
def test_a_frozen_fresh_codebook_is_not_initialised_from_data(kind: str) -> None:
    level = book(kind).train()
    level.freeze()
    before = level.codes.detach().clone()
    level(torch.randn(60, 4) + 5)
    assert torch.equal(level.codes.detach(), before)


@KINDS
def test_codebook_parameters_are_the_trained_codes(kind: str) -> None:
    level = book(kind)
    trained = {id(p) for p in level.parameters() if p.requires_grad}
    assert {id(p) for p in level.codebook_parameters()} == trained


@KINDS
def test_deepcopy_is_independent(kind: str) -> None:
    level = book(kind).train()
    out = level(torch.randn(60, 4, requires_grad=True))
    (out.loss + out.quantized.square().mean()).backward()
    copied = copy.deepcopy(level)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.equal(copied.codes, level.codes)
    copied.after_step()


@KINDS
@pytest.mark.parametrize(
    ("dim", "codebook_size", "name"), [(0, 8, "dim"), (-1, 8, "dim"), (4, 0, "codebook_size"), (4, -5, "codebook_size")]
)
def test_refused_sizes(kind: str, dim: int, codebook_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        CODEBOOKS[kind](dim, codebook_size)


def test_check_tokens_names_the_tensor() -> None:
    check_tokens("x", torch.zeros(3, 1))
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(NonFiniteError, match=r"latents: NaN or inf in a tensor of shape \(2, 2\)"):
            check_tokens("latents", torch.tensor([[0.0, bad], [1.0, 1.0]]))
    with pytest.raises(ValueError, match="at least one token"):
        check_tokens("latents", torch.zeros(0, 2))


@KINDS
def test_being_frozen_is_part_of_the_state(kind: str) -> None:
    level, other = book(kind).train(), book(kind).train()
    level.freeze()
    other.load_state_dict(level.state_dict())
    assert other.frozen
    assert not [p for p in other.parameters() if p.requires_grad]
    before = other.codes.detach().clone()
    other(torch.randn(60, 4))
    other.after_step()
    assert torch.equal(other.codes.detach(), before)
    level.freeze(False)
    other.load_state_dict(level.state_dict())
    assert not other.frozen
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in book(kind).parameters()]
    if hasattr(other, "initialised"):  # starts from data
        other(torch.randn(60, 4) + 5)
        assert not torch.equal(other.codes.detach(), before)
