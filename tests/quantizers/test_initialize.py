"""Starting codebooks: distinct, finite, in the data."""

import pytest
import torch

from vqlab.quantizers.initialize import initial_codes, kmeans, sample_tokens


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("method", ["kmeans", "data"])
@pytest.mark.parametrize(
    ("tokens", "codebook_size"),
    [
        (torch.randn(8, 4), 64),
        (torch.randn(1, 4), 64),
        (torch.zeros(100, 4), 64),
        (torch.full((8, 4), 300.0), 64),
        (torch.full((1, 1), 1.3), 256),
        (torch.full((50, 1), 1e6), 64),
        (torch.randn(3, 2).repeat(50, 1), 64),
        (torch.randn(500, 4), 64),
        (torch.randn(64, 1), 64),
    ],
    ids=["8-tokens", "1-token", "zeros", "constant", "one-number", "large-constant", "3-points", "plenty", "exactly"],
)
def test_rows_are_distinct_finite_and_near_the_tokens(method: str, tokens: torch.Tensor, codebook_size: int) -> None:
    codes = initial_codes(tokens, codebook_size, method)
    assert codes.shape == (codebook_size, tokens.shape[1])
    assert torch.isfinite(codes).all()
    assert len(torch.unique(codes, dim=0)) == codebook_size
    # Within the data's box, give or take noise far below its scale.
    scale = float(tokens.std(0, correction=0).max()) * 0.1 + 1e-3 * float(tokens.abs().max()) + 1e-3
    assert float((codes - codes.clamp(tokens.amin(0), tokens.amax(0))).abs().max()) < scale


@pytest.mark.parametrize("method", ["kmeans", "data"])
def test_no_tokens_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        initial_codes(torch.zeros(0, 4), 8, method)


@pytest.mark.parametrize("method", ["random", "pca", ""])
def test_unknown_methods_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="'kmeans' or 'data'"):
        initial_codes(torch.randn(9, 4), 8, method)


def test_data_initialisation_takes_distinct_tokens() -> None:
    tokens = torch.randn(100, 3)
    codes = initial_codes(tokens, 40, "data")
    assert all((tokens == row).all(-1).any() for row in codes)


def test_sampling_takes_each_token_once_before_any_twice() -> None:
    tokens = torch.arange(5.0)[:, None]
    assert sorted(sample_tokens(tokens, 5).flatten().tolist()) == [0, 1, 2, 3, 4]
    picked = sample_tokens(tokens, 12).flatten().long()
    assert sorted(torch.bincount(picked).tolist()) == [2, 2, 2, 3, 3]
    draws = [sample_tokens(tokens, 7, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*draws)


def test_kmeans_step_is_lloyds() -> None:
    tokens = torch.tensor([[0.0], [1.0], [10.0], [12.0]])
    codes = kmeans(tokens, torch.tensor([[0.0], [9.0]]), iterations=1)
    assert codes.flatten().tolist() == [0.5, 11.0]


def test_kmeans_moves_an_empty_centre_to_the_worst_token() -> None:
    tokens = torch.tensor([[0.0], [0.1], [10.0]])
    codes = kmeans(tokens, torch.tensor([[0.0], [-500.0]]), iterations=2)
    assert sorted(codes.flatten().tolist()) == pytest.approx([0.05, 10.0])


def test_kmeans_lowers_the_distortion() -> None:
    tokens = torch.randn(1000, 4)
    start = sample_tokens(tokens, 32)
    distortion = [float(torch.cdist(tokens, kmeans(tokens, start, i)).amin(-1).square().mean()) for i in (0, 1, 3, 10)]
    assert distortion == sorted(distortion, reverse=True)
    assert distortion[-1] < 0.8 * distortion[0]


def test_more_empty_centres_than_tokens() -> None:
    assert torch.isfinite(kmeans(torch.randn(3, 2), torch.full((10, 2), 99.0))).all()
